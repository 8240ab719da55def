"""What came of a sweep: figures against independent computations, the table and the picture."""

import io
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from rich.console import Console

from rg_env.errors import InputError
from rg_env.jobs.sweep.comparison import Comparison, compare
from rg_env.jobs.sweep.plot import plot_comparison
from rg_env.jobs.sweep.table import markdown, print_comparison, write_table
from rg_env.training.evaluation.scores import Evaluation

T95 = {2: 12.706, 3: 4.303, 4: 3.182, 20: 2.093, 10: 2.262}
"""Two-sided 95 % of Student's t, from a printed table, by the number of values."""


def evaluation(step: int, chance: float, rng: random.Random, *, held_out: bool = True, **described: Any) -> Evaluation:
    """One answer to each of 20 problems, and to each of 10 held-out ones."""
    problems = []
    for number in range(30 if held_out else 20):
        correct = rng.random() < chance
        problems.append(
            [
                {
                    "problem": number,
                    "part": "held_out" if number >= 20 else "training",
                    "task": "maze" if number >= 20 else "ab",
                    "completion_tokens": rng.randint(10, 60),
                    "truncated": False,
                    "reward": 0.1 + correct,
                    "correct": correct,
                    "greedy_correct": rng.random() < chance,
                    "greedy_reward": 0.0,
                }
            ]
        )
    questions = [{"manifest_sha256": described.pop("hash", "h"), "prompts_sha256": "p"}]
    return Evaluation.of(step, problems, sampling={"temperature": 1.0, **described}, questions=questions)


class Folder:
    """The folder of a sweep, with what runs leave."""

    def __init__(self, folder: Path, points: Sequence[dict[str, Any]]):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.names = [f"point={number}" for number in range(len(points))]
        self.evaluations: dict[int, list[Evaluation]] = {}
        self.seconds: dict[int, float] = {}
        (folder / "sweep.yaml").write_text(json.dumps({"points": dict(zip(self.names, points, strict=True))}))

    def leave(self, number: int, chance: float = 0.5, steps: Sequence[int] = (0, 5, 10), **changes: Any) -> None:
        """The run of a point: `changes` of its evaluations and results."""
        run, rng = self.folder / self.names[number], random.Random(number)
        run.mkdir()
        results = {name: changes.pop(name) for name in ("interrupted", "error", "stopped_by") if name in changes}
        made = [evaluation(step, chance * (step + 5) / 15, rng, **changes) for step in steps]
        lines = [{"step": each.step, **each.metrics(), "time/evaluation": rng.random()} for each in made]
        lines += [{"step": step, "reward": 0.5, "step_time": rng.random()} for step in range(1, 11)]
        with (run / "metrics.jsonl").open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        self.evaluations[number] = made
        self.seconds[number] = sum(line.get("step_time", line.get("time/evaluation", 0)) for line in lines)
        before, after = (made[0].summary(), made[-1].summary()) if made else (None, None)
        whole = {"steps": 10, "interrupted": False, "error": None, "eval_before": before, "eval_after": after}
        (run / "train_results.json").write_text(json.dumps({**whole, **results}))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Folder]:
    return lambda *points: Folder(tmp_path / "sweep", points)


RATES = [{"training.learning_rate": rate, "seed": seed} for rate in (1e-6, 2e-6) for seed in (0, 1, 2)]


def of_rollouts(evaluation: Evaluation, key: str, part: str = "training") -> list[float]:
    return [float(each[key]) for each in evaluation.rollouts if each["part"] == part]


FIGURES: dict[str, tuple[int, str, str]] = {
    "accuracy_before": (0, "correct", "training"),
    "accuracy_after": (-1, "correct", "training"),
    "greedy_after": (-1, "greedy_correct", "training"),
    "reward_after": (-1, "reward", "training"),
    "held_out_after": (-1, "correct", "held_out"),
    "tokens_after": (-1, "completion_tokens", "training"),
}


def test_figures_are_means_over_seeds_with_students_intervals(make: Callable[..., Folder]) -> None:
    """From the answers themselves, by the textbook and a printed table of t."""
    sweep = make(*RATES)
    for number in range(6):
        sweep.leave(number, chance=0.4 + 0.1 * number)
    comparison = compare(sweep.folder)
    assert [group.values for group in comparison.groups] == [{"training.learning_rate": rate} for rate in (1e-6, 2e-6)]
    assert [group.over for group in comparison.groups] == ["3 seeds", "3 seeds"]
    for group, numbers in zip(comparison.groups, ([0, 1, 2], [3, 4, 5]), strict=True):
        expected = {
            name: [statistics.fmean(of_rollouts(sweep.evaluations[n][which], key, part)) for n in numbers]
            for name, (which, key, part) in FIGURES.items()
        }
        expected["seconds"] = [sweep.seconds[n] for n in numbers]
        assert group.figures.keys() == expected.keys()
        for name, values in expected.items():
            figure = group.figures[name]
            assert figure.mean == pytest.approx(statistics.fmean(values)), name
            half = T95[3] * statistics.stdev(values) / math.sqrt(3)
            assert figure.half_width == pytest.approx(half, rel=2e-4, abs=1e-9), name


def test_a_single_run_has_the_interval_over_its_questions(make: Callable[..., Folder]) -> None:
    """Seconds have none. So also where of several seeds only one has finished."""
    sweep = make({"seed": 0, "lora.r": 4}, {"seed": 1, "lora.r": 4}, {"seed": 0, "lora.r": 8})
    sweep.leave(0)
    sweep.leave(2)
    sweep.leave(1, interrupted=True)
    first, second = compare(sweep.folder).groups
    assert (first.over, second.over) == ("20 questions", "20 questions")
    assert (len(first.finished), len(first.runs)) == (1, 2)
    for number, group in ((0, first), (2, second)):
        for name, (which, key, part) in FIGURES.items():
            values = of_rollouts(sweep.evaluations[number][which], key, part)
            half = T95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
            assert group.figures[name].mean == pytest.approx(statistics.fmean(values)), name
            assert group.figures[name].half_width == pytest.approx(half, rel=3e-4, abs=1e-9), name
        assert group.figures["seconds"].half_width is None


def test_a_figure_that_not_all_seeds_have_is_left_out(make: Callable[..., Folder]) -> None:
    """A mean over some of them would stand beside means over all."""
    sweep = make(*RATES[:2])
    sweep.leave(0)
    sweep.leave(1, held_out=False)
    (group,) = compare(sweep.folder).groups
    assert group.figures.keys() == {*FIGURES, "seconds"} - {"held_out_after"}


def told(comparison: Comparison, width: int = 200) -> str:
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=width))
    return out.getvalue()


def test_runs_that_have_not_finished_are_named_with_their_number(make: Callable[..., Folder]) -> None:
    """As Slurm's array has it, and why, as far as that is known; their figures do not count."""
    sweep = make(*RATES)
    (sweep.folder / "logs").mkdir()
    sweep.leave(0)
    sweep.leave(1, chance=0.0, interrupted=True)
    sweep.leave(2, chance=0.0, error="the server\nis gone \x1b[31m[red]| x")
    (sweep.folder / "point=3").mkdir()
    (sweep.folder / "point=3" / "config.yaml").touch()
    (sweep.folder / "logs" / "point=4.failed").write_text("exit code 2: error: no model\n")
    comparison = compare(sweep.folder)
    assert comparison.groups[0].figures["accuracy_after"].mean == pytest.approx(
        statistics.fmean(of_rollouts(sweep.evaluations[0][-1], "correct"))
    )
    assert comparison.groups[1].figures == {}
    lines = told(comparison).splitlines()
    assert [line for line in lines if line.startswith("not in")] == [
        "not in the table: 2 point=1: not finished (interrupted after 10 steps)",
        "not in the table: 3 point=2: failed (the server is gone [31m[red]| x)",
        "not in the table: 4 point=3: not finished",
        "not in the table: 5 point=4: failed (exit code 2: error: no model)",
        "not in the table: 6 point=5: not started",
    ]
    (row,) = [line.split() for line in lines if line.strip().startswith("2e-06")]
    assert row == ["2e-06", *["–"] * 7, "0", "of", "3"]
    assert "- not in the table: 3 point=2: failed (the server is gone \\[31m\\[red\\]\\| x)" in markdown(comparison)


def test_a_run_that_a_monitor_stopped_does_not_count(make: Callable[..., Folder]) -> None:
    """Its figures are those of fewer steps than the others made."""
    sweep = make(*RATES[:2])
    sweep.leave(0)
    sweep.leave(1, chance=0.0, stopped_by="reward_hacking")
    comparison = compare(sweep.folder)
    assert [run.name for run in comparison.groups[0].finished] == ["point=0"]
    line = "not in the table: 2 point=1: stopped (by monitor reward_hacking after 10 steps)"
    assert line in told(comparison).splitlines()


def changed(text: str, **changes: Any) -> str:
    """The results with another last evaluation."""
    results = json.loads(text)
    return json.dumps({**results, "eval_after": {**results["eval_after"], **changes}})


WHOLE = "train_results.json is not what a run leaves"
DAMAGE: dict[str, tuple[str, Callable[[str], str], str]] = {
    "a number that is text": ("train_results.json", lambda text: changed(text, accuracy="high"), WHOLE),
    "no error": ("train_results.json", lambda text: changed(text, accuracy_se=None), WHOLE),
    "no list": ("train_results.json", lambda text: changed(text, questions=None), WHOLE),
    "infinity": ("train_results.json", lambda text: text.replace('"accuracy": ', '"accuracy": 1e999, "x": '), WHOLE),
    "another evaluation": ("train_results.json", lambda text: json.dumps({**json.loads(text), "eval_after": 3}), WHOLE),
    "broken off": ("metrics.jsonl", lambda text: text[:-9], "metrics.jsonl: line 13 is not what a run leaves"),
    "too short": ("metrics.jsonl", lambda text: text.partition('{"step": 10')[0], "ends at step 5 of 10"),
    "empty": ("metrics.jsonl", lambda text: "", "metrics.jsonl ends at step 0 of 10"),
    "no characters": ("metrics.jsonl", lambda text: "\udcff\n" + text, "metrics.jsonl: line 1 is not"),
    "no mapping": ("metrics.jsonl", lambda text: "[1]\n" + text, "metrics.jsonl: line 1 is not"),
    "no step": ("metrics.jsonl", lambda text: '{"eval/accuracy": 1}\n' + text, "metrics.jsonl: line 1 is not"),
    "NaN": ("metrics.jsonl", lambda text: text.replace('"step_time": ', '"step_time": NaN, "x": '), "line 4 is not"),
    "an infinite step": ("metrics.jsonl", lambda text: '{"step": 1e999}\n' + text, "metrics.jsonl: line 1 is not"),
    "nested": ("metrics.jsonl", lambda text: "[" * 100_000 + "\n" + text, "metrics.jsonl: line 1 is not"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_named_and_make_no_figures(make: Callable[..., Folder], damage: str) -> None:
    """Whatever is wrong with them: a line says so, with the file and what to do."""
    sweep = make(*RATES[:2])
    sweep.leave(0)
    sweep.leave(1, chance=0.0)
    name, change, words = DAMAGE[damage]
    file = sweep.folder / "point=1" / name
    file.write_text(change(file.read_text()), errors="surrogateescape")
    comparison = compare(sweep.folder)
    assert [run.name for run in comparison.groups[0].finished] == ["point=0"]
    (line,) = [line for line in told(comparison).splitlines() if line.startswith("not in")]
    assert line.startswith("not in the table: 2 point=1: damaged (")
    assert line.endswith("; move its folder away, and run it again)")
    assert words in line


def test_what_the_system_does_not_let_read_is_told(tmp_path: Path) -> None:
    """As a folder without permission: here a name that no file system takes."""
    (tmp_path / "sweep.yaml").write_text(json.dumps({"points": {"a" * 300: {"seed": 0}}}))
    (run,) = compare(tmp_path).runs
    assert (run.status, run.reason) == ("not finished", "what it left cannot be read: File name too long")


def test_a_run_without_its_metrics_and_one_with_broken_results(make: Callable[..., Folder]) -> None:
    """The second may go on: results are written at the very end."""
    sweep = make(*RATES[:2])
    sweep.leave(0)
    sweep.leave(1)
    (sweep.folder / "point=0" / "metrics.jsonl").unlink()
    results = sweep.folder / "point=1" / "train_results.json"
    results.write_text(results.read_text()[:99])
    assert [(run.status, run.reason) for run in compare(sweep.folder).runs] == [
        ("damaged", "metrics.jsonl: No such file or directory; move its folder away, and run it again"),
        ("not finished", "train_results.json is not what a run leaves"),
    ]


def test_the_files_are_written_though_nobody_reads_the_table(make: Callable[..., Folder]) -> None:
    """And the command ends as if by SIGPIPE, without a word; where they cannot be, the table is shown, and a line."""
    sweep = make(*RATES[:1])
    sweep.leave(0)
    command = [sys.executable, "-m", "rg_env.cli.main", "compare", str(sweep.folder)]
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")
    for name in ("comparison.md", "comparison.json", "comparison.png"):
        (sweep.folder / name).unlink()
    (sweep.folder / "comparison.md").mkdir()
    result = subprocess.run(command, capture_output=True, text=True)
    assert "accuracy after" in result.stdout
    line = f"error: cannot write the comparison to {sweep.folder}: Is a directory\n"
    assert (result.returncode, result.stderr) == (2, line)


def test_what_cannot_be_written_leaves_the_comparison_that_was_there(make: Callable[..., Folder]) -> None:
    sweep = make(*RATES[:1])
    sweep.leave(0)
    comparison = compare(sweep.folder)
    for name in ("comparison.md", "comparison.png"):
        (sweep.folder / name).mkdir()
    for write in (write_table, plot_comparison):
        with pytest.raises(OSError):
            write(comparison)
    assert not list(sweep.folder.glob("*.part"))


def test_the_table_is_on_the_console_and_in_files(make: Callable[..., Folder]) -> None:
    """The same cells; on a narrow console a column a group; no figure that no run has."""
    sweep = make(*RATES)
    for number in range(6):
        sweep.leave(number, held_out=False)
    comparison = compare(sweep.folder)
    write_table(comparison)
    text = (sweep.folder / "comparison.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert rows[0] == [
        *["learning\\_rate", "accuracy before", "accuracy after", "greedy after", "reward after", "tokens after"],
        *["seconds", "finished", "± over"],
    ]
    figures = comparison.groups[1].figures
    shown = [f"{figures[name].mean:.2f} ± {figures[name].half_width:.2f}" for name in list(FIGURES)[:4]]
    assert rows[2][:5] == ["2e-06", *shown]
    assert rows[2][-2:] == ["3 of 3", "3 seeds"]
    wide = [line.split("  ") for line in told(comparison).splitlines() if line.startswith("  2e-06")]
    assert [cell.strip() for cell in wide[0] if cell.strip()] == rows[2]
    narrow = [line.split("  ") for line in told(comparison, width=60).splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in narrow]
    for column in zip(*rows, strict=True):
        assert [column[0].replace("\\", ""), *column[1:]] in cells
    written = json.loads((sweep.folder / "comparison.json").read_text())
    assert written == comparison.as_json()
    assert written["groups"][1]["figures"]["reward_after"]["mean"] == figures["reward_after"].mean
    assert [run["status"] for run in written["runs"]] == ["finished"] * 6
    assert not list(sweep.folder.glob("*.part"))


def test_long_values_are_cut_and_none_looks_like_another(make: Callable[..., Folder]) -> None:
    """Prompts of hundreds of characters, and a text that looks like no value."""
    values: list[Any] = [f"{'a' * 99}{'b' * 99}", f"{'a' * 99}x{'b' * 99}", 1]
    lines = told(compare(make(*({"a.b": value} for value in values)).folder)).splitlines()
    cut = f"{'a' * 17} ... {'b' * 18}"
    assert [line.split("  ")[1] for line in lines if " of 1" in line] == [f"1: {cut}", f"2: {cut}", "3: 1"]
    assert max(map(len, lines)) <= 120
    values = [None, "null", None]
    sweep = make(*({"training.bf16": value, "seed": seed} for seed, value in enumerate(values)))
    cells = [
        line.split()[:2] for line in told(compare(sweep.folder)).splitlines() if " of " in line and "±" not in line
    ]
    assert cells == [["1:", "null"], ["2:", "null"]]


def test_runs_that_were_asked_otherwise_are_told_apart(make: Callable[..., Folder]) -> None:
    """Other questions, or other sampling settings: both make figures differ."""
    questions, sampling = "were not asked the same questions", "were not evaluated with the same sampling settings"
    for changes, notes in (
        ({}, []),
        ({"hash": "other"}, [questions]),
        ({"max_tokens": 5}, [sampling]),
        ({"hash": "other", "max_tokens": 5}, [questions, sampling]),
    ):
        sweep = make(*RATES[:2])
        sweep.leave(0)
        sweep.leave(1, **changes)
        comparison = compare(sweep.folder)
        assert comparison.notes == [f"The runs {note}: their figures differ for that, too." for note in notes]
        for name in sweep.names:
            for file in (sweep.folder / name).iterdir():
                file.unlink()
            (sweep.folder / name).rmdir()


@pytest.mark.parametrize(
    ("groups", "seeds", "steps", "width", "height"),
    [(2, 3, (0, 5, 10), 12, 3.2), (7, 1, (0, 10), 12, 4.0), (8, 1, (0, 10), 8, 4.4), (2, 1, (10,), 8, 3.2)],
    ids=["seeds", "many", "too many for curves", "one evaluation"],
)
def test_the_picture_has_a_line_a_group(
    make: Callable[..., Folder], groups: int, seeds: int, steps: Sequence[int], width: float, height: float
) -> None:
    """And curves beside it, where there are few groups and several evaluations."""
    text = r"$\frac$ is no formula " * 9
    points = [{"x.y": f"{text}{group}", "seed": seed} for group in range(groups) for seed in range(seeds)]
    sweep = make(*points)
    for number in range(len(points)):
        sweep.leave(number, steps=steps)
    picture = plot_comparison(compare(sweep.folder))
    assert picture == sweep.folder / "comparison.png"
    pixels = imread(picture)
    assert pixels.shape[:2] == pytest.approx((height * 120, width * 120), abs=1)
    assert len({tuple(pixel) for pixel in pixels.reshape(-1, pixels.shape[2])[::7]}) > 10  # not blank


def test_without_a_finished_run_there_is_no_picture(make: Callable[..., Folder]) -> None:
    sweep = make(*RATES)
    assert plot_comparison(compare(sweep.folder)) is None
    assert "0 of 3" in told(compare(sweep.folder))


@pytest.mark.parametrize(
    "text",
    [
        *[None, "", "[]", "points: {}", "points: [a]", "points: {a: 1}", "a: [", "\x00"],
        *[f"points: {{{name}: {{seed: 1}}}}" for name in ("../a", "/a", "..", "''")],
        "points: {a: {seed: 1}, b: {x: 2, seed: 1}}",
    ],
)
def test_folders_without_a_sweep_are_refused(tmp_path: Path, text: str | None) -> None:
    """Also where sweep.yaml was edited so that it names runs elsewhere."""
    if text is not None:
        (tmp_path / "sweep.yaml").write_text(text)
    told = "is not what a sweep leaves" if text is not None else "is no folder of a sweep: sweep.yaml: No such file"
    with pytest.raises(InputError, match=told):
        compare(tmp_path)
