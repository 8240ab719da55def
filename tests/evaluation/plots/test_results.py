"""Tests of plots of results, which are read back from SVG: positions of models, bars, intervals and texts."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_files import all_results, model_result, of_task, run_evaluation, task_results
from svg_pictures import Picture

from rg_env.evaluation.plots.results import plot_results
from rg_env.evaluation.plots.style import COLORS, short_names
from rg_env.evaluation.results import Results, TaskResults

SHARE = st.floats(0, 1)
NAMES = [f"model {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]


def drawn(results: Results | TaskResults, folder: Path, title: str | None = None) -> Picture:
    results = of_task(results) if isinstance(results, TaskResults) else results
    return Picture(lambda file: plot_results(results, file, title), folder)


def scale(picture: Picture) -> Any:
    """Return a function that converts x coordinates to accuracies, from the ticks of the axis."""
    left, right = picture.text("0").x, picture.text("1").x
    return lambda x: (x - left) / (right - left)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(SHARE, SHARE, SHARE).map(sorted), min_size=1, max_size=6), st.none() | SHARE)
def test_dots_and_intervals_are_those_of_the_file(values: list[list[float]], floor: float | None) -> None:
    """The best model is first, above the others and in the legend."""
    models = {
        name: model_result(middle, intervals={"accuracy": (low, high)})
        for name, (low, middle, high) in zip(NAMES, values, strict=False)
    }
    with tempfile.TemporaryDirectory() as folder:
        picture = drawn(task_results(models, floor=floor), Path(folder))
    share, heights = scale(picture), []
    ordered = sorted(zip(NAMES, values, strict=False), key=lambda each: -each[1][1])
    names = [each.text for each in sorted(picture.texts, key=lambda each: each.y) if each.text in NAMES]
    assert names == [name for name, _ in ordered]
    for (_, (low, middle, high)), color in zip(ordered, COLORS, strict=False):
        dot = picture.marks(color.lower())[2]  # after the caps of the interval
        heights.append(dot[1])
        (line,) = picture.lines(color.lower(), 1.2)
        assert [share(x) for x in (line.left, dot[0], line.right)] == pytest.approx([low, middle, high], abs=1e-4)
    assert heights == sorted(heights)
    floors = [share(each.left) for each in picture.lines("#777777", 1.2)[:1]]  # excluding the legend
    assert floors == pytest.approx([] if floor is None else [floor], abs=1e-4)


def test_a_caption_names_questions_and_sampling(tmp_path: Path) -> None:
    models = {"base": model_result(0.5, 100, 3, failed=7), "seen": model_result(0.25, 88, 3, left_out=12)}
    words = drawn(task_results(models, n=100, rollouts_per_example=3, temperature=0.7), tmp_path).words
    assert "n = 100 questions, 3 rollouts each, temperature 0.7" in words
    assert "the best constant answer" in words
    assert "0.500 [0.402, 0.598], 7 failed calls" in words
    assert "0.250 [0.160, 0.340], n = 88" in words
    assert words.count("maze") == 2  # the title and the row
    words = drawn(task_results({"base": 0.5}, grading="upstream", floor=None), tmp_path, "").words
    assert "n = 20 questions, 1 rollout each, temperature 1, upstream grading" in words
    assert words.count("maze") == 1
    assert not any("constant" in each for each in words)


def test_few_models_on_few_tasks_are_drawn_as_dots_with_intervals(tmp_path: Path) -> None:
    """Models are sorted by macro average and tasks by mean accuracy, below the row of macro averages."""
    accuracies = {"maze": {"a": 0.1, "b": 0.6}, "gcd": {"a": 0.7, "b": 0.9}, "lcm": {"a": 0.4, "b": 0.5}}
    tasks = [task_results(models, task, floor=None if task == "lcm" else 0.3) for task, models in accuracies.items()]
    picture = drawn(all_results(tasks), tmp_path)
    rows = ["macro average", "gcd", "lcm", "maze"]
    heights = [picture.text(row).y for row in rows]
    assert heights == sorted(heights)
    share = scale(picture)
    for color, name, macro in ((COLORS[0], "b", 2 / 3), (COLORS[1], "a", 0.4)):
        expected = [macro, *(accuracies[task][name] for task in rows[1:])]
        dots = picture.marks(color.lower())[2 * 4 : 3 * 4]  # the caps of four intervals come first
        assert [share(x) for x, _ in dots] == pytest.approx(expected, abs=1e-3)
        intervals = picture.lines(color.lower(), 1.2)
        ends = [all_results(tasks).models[name].intervals["accuracy"]]
        ends += [all_results(tasks).tasks[task].models[name].scores.intervals["accuracy"] for task in rows[1:]]
        assert [share(each.left) for each in intervals] == pytest.approx([low for low, _ in ends], abs=1e-3)
        assert [share(each.right) for each in intervals] == pytest.approx([high for _, high in ends], abs=1e-3)
    assert picture.text("b").y < picture.text("a").y
    assert "3 tasks" in picture.words
    assert all(any(each.startswith(macro) for each in picture.words) for macro in ("0.667 [", "0.400 ["))
    floors = [each for each in picture.lines("#777777", 1.2) if each.left == each.right]
    assert [share(each.left) for each in floors] == pytest.approx([0.3, 0.3], abs=1e-3)
    assert "n = 20 questions per task, 1 rollout each, temperature 1" in picture.words


def test_the_average_of_a_training_run_excludes_held_out_tasks(tmp_path: Path) -> None:
    """The label of the average says that it covers training tasks."""
    answer = {"completion": "c", "reward": 0.0, "correct": True, "truncated": False}
    parts = {"gcd": "training", "lcm": "training", "maze": "held_out"}
    results = run_evaluation(0, [[{**answer, "part": part, "task": task}] for task, part in parts.items()])
    words = drawn(results, tmp_path).words
    assert "training tasks" in words
    assert "macro average" not in words


def test_many_models_and_tasks_do_not_overlap(tmp_path: Path) -> None:
    """All names are within the picture, on separate lines."""
    names, labels = [f"organisation/some-model-{n}" for n in range(20)], [f"task_{n}_" for n in range(30)]
    tasks = [task_results({name: (number + task) / 128 for number, name in enumerate(names)}, label)
             for task, label in enumerate(labels)]  # fmt: skip
    picture = drawn(all_results(tasks), tmp_path)
    for listed in (names, labels):
        heights = sorted((each.y, each.text) for each in picture.texts if each.text in listed)
        assert [text for _, text in heights] == listed[::-1]
        assert min(b - a for (a, _), (b, _) in itertools.pairwise(heights)) > 9  # points
    width, height = picture.size
    assert all(0 <= each.x <= width and 0 <= each.y <= height for each in picture.texts)


def test_a_model_without_results_on_all_tasks_is_marked(tmp_path: Path) -> None:
    """The label reports how many tasks its macro average covers."""
    tasks = [task_results({"a": model_result(0.5, failed=2), "b": 0.4}, "maze"), task_results({"a": 0.7}, "gcd")]
    words = drawn(all_results(tasks), tmp_path).words
    for start, end in (("0.400 [", "], 1 task"), ("0.600 [", "], 2 failed calls")):
        assert any(each.startswith(start) and each.endswith(end) for each in words)


@pytest.mark.parametrize("name", ["$\\frac{$ a\nb", "_hidden", "x" * 300, "%s {} \\ \u202e<b>&"])
def test_names_are_shown_as_they_are(name: str, tmp_path: Path) -> None:
    """Names with special characters are not interpreted as formulas and do not raise errors."""
    words = drawn(all_results([task_results({name: 0.5}, task=task) for task in (name, "x")]), tmp_path, name).words
    (label,) = short_names([name]).values()
    assert label in words
    assert set(short_names([name], 36).values()) & set(words)


def test_a_long_title_takes_several_lines(tmp_path: Path) -> None:
    """The lines stay within the picture and above the dots."""
    title = "all the words of a title that goes on " * 6
    picture = drawn(task_results({"a": 0.5}), tmp_path, title)
    lines = [each for each in picture.texts if each.text in title]
    assert " ".join(each.text for each in lines if len(each.text) > 1) == title.strip()
    assert all(each.x > 0 and each.y > 0 for each in lines)
    assert max(each.y for each in lines if len(each.text) > 1) < min(y for _, y in picture.marks(COLORS[0].lower()))


@given(st.lists(st.text(max_size=60) | st.text("ab/", min_size=40, max_size=70), unique=True, max_size=12))
def test_short_names_are_distinct(names: list[str]) -> None:
    """Each label is unique, short and on one line."""
    labels = short_names(names, 20)
    assert list(labels) == names
    assert len(set(labels.values())) == len(names)
    assert all(len(label) <= 20 + 4 and "\n" not in label for label in labels.values())
    shared = "outputs/a_very_long_experiment_name_that_goes_on/checkpoint-{}/merged_with_the_base_model_in_bf16"
    for step, label in zip((100, 200), short_names([shared.format(step) for step in (100, 200)]).values(), strict=True):
        assert f"checkpoint-{step}" in label
