"""Tests of comparing a sweep's runs: figures are checked against textbook formulas, then the table and the plot."""

import csv
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from matplotlib.image import imread
from result_files import all_results, model_result, task_results

from rg_env.errors import InputError
from rg_env.jobs.comparison import Comparison, compare, print_comparison, write_comparison

T95 = {3: 4.303}
"""Two-sided 95% quantile of Student's t by the number of values, from a printed table."""
RATES = [{"training.learning_rate": rate, "seed": seed} for rate in (1e-6, 2e-6) for seed in (0, 1, 2)]
KEYS = ("accuracy", "greedy_accuracy", "reward", "mean_completion_tokens")
FIGURES = {
    "accuracy_before": ("eval_before", "accuracy"),
    "accuracy_after": ("eval_after", "accuracy"),
    "greedy_after": ("eval_after", "greedy_accuracy"),
    "reward_after": ("eval_after", "reward"),
    "tokens_after": ("eval_after", "mean_completion_tokens"),
}
FILES = ["comparison.md", "comparison.json", "comparison.csv", "comparison.tex"]
SHARES = ("accuracy_before", "accuracy_after", "greedy_after", "held_out_after")


class Folder:
    """A sweep's folder, with the files of its runs."""

    def __init__(self, folder: Path, points: Sequence[dict[str, Any]]):
        self.folder = folder
        folder.mkdir()
        self.results: dict[int, dict[str, Any]] = {}
        points_by_name = {f"point={number}": values for number, values in enumerate(points)}
        (folder / "sweep.yaml").write_text(json.dumps({"points": points_by_name}))

    def leave(self, number: int, *, steps: Sequence[int] = (0, 5, 10), held_out: bool = True, **changes: Any) -> None:
        """Write the files of a run, with `changes` to its results."""
        run, rng = self.folder / f"point={number}", random.Random(number)
        run.mkdir()

        def scores(n: int) -> dict[str, Any]:
            figures = {key: rng.random() for key in KEYS}
            return figures | {"n": n, "intervals": {key: [0.1 * place, 0.9] for place, key in enumerate(KEYS)}}

        rest = {"questions": [], "sampling": {}, "tasks": {}}
        evaluations = [{**scores(20), "held_out": scores(10) if held_out else None, **rest} for _ in steps]
        lines = [{"step": step, "step_time": rng.random(), "reward": 0.5} for step in range(1, 11)]
        for step, each in zip(steps, evaluations, strict=True):
            lines.append({"step": step, "time/evaluation": rng.random(), "eval/accuracy": each["accuracy"]})
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.results[number] = {"steps": 10, "interrupted": False, "error": None, "eval_before": evaluations[0],
                                "eval_after": evaluations[-1], **changes}  # fmt: skip
        (run / "train_results.json").write_text(json.dumps(self.results[number]))
        self.results[number]["seconds"] = sum(each.get("step_time", each.get("time/evaluation")) for each in lines)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Folder]:
    return lambda *points: Folder(tmp_path / "sweep", points)


Printed = Callable[[Comparison], list[str]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Return a function that prints a comparison and returns the lines."""

    def lines(comparison: Comparison) -> list[str]:
        print_comparison(comparison)
        return capsys.readouterr().out.splitlines()

    return lines


def test_figures_are_means_over_seeds_with_intervals(make: Callable[..., Folder]) -> None:
    """Student's intervals match a printed table, and intervals of proportions stay between 0 and 1."""
    sweep = make(*RATES)
    for number in range(6):
        sweep.leave(number)
    comparison = compare(sweep.folder)
    assert [group.values for group in comparison.groups] == [{"training.learning_rate": rate} for rate in (1e-6, 2e-6)]
    assert [group.over for group in comparison.groups] == ["3 seeds", "3 seeds"]
    for group, numbers in zip(comparison.groups, ([0, 1, 2], [3, 4, 5]), strict=True):
        results = [sweep.results[number] for number in numbers]
        expected = {name: [each[when][key] for each in results] for name, (when, key) in FIGURES.items()}
        expected["held_out_after"] = [each["eval_after"]["held_out"]["accuracy"] for each in results]
        seconds = group.figures["seconds"]
        assert seconds.mean == pytest.approx(statistics.fmean(each["seconds"] for each in results))
        assert seconds.interval is None, "time depends on the machine"
        assert group.figures.keys() == {*expected, "seconds"}
        for name, values in expected.items():
            mean, (low, high) = group.figures[name].mean, group.figures[name].interval or (0, 0)
            assert mean == pytest.approx(statistics.fmean(values)), name
            if name in SHARES:
                assert 0 <= low < mean < high <= 1
            else:
                half = T95[3] * statistics.stdev(values) / math.sqrt(3)
                least = 0.0 if name == "tokens_after" else -math.inf
                assert (low, high) == pytest.approx((max(mean - half, least), mean + half), abs=5e-4), name


def write_answers(sweep: Folder, number: int, tasks: dict[str, list[list[bool]]]) -> None:
    """Write a finished run with these answers to each task's questions after training."""
    models = {name: model_result().model_copy(update={"correct": {f"q{n}": each for n, each in enumerate(answers)}})
              for name, answers in tasks.items()}  # fmt: skip
    results = all_results([task_results({"step 10": model}, name, part="training") for name, model in models.items()])
    shares = {name: fmean(value for each in answers for value in each) for name, answers in tasks.items()}
    scores = {name: {"accuracy": share, "intervals": {"accuracy": [0.0, 1.0]}} for name, share in shares.items()}
    after = {"step": 10, "n": 20, "accuracy": fmean(shares.values()), "intervals": {}, "tasks": scores}
    sweep.leave(number, eval_after=after)
    (sweep.folder / f"point={number}/eval_results").mkdir()
    file = sweep.folder / f"point={number}/eval_results/eval_step_10.json"
    file.write_text(results.model_dump_json())


def test_settings_are_tested_on_the_same_questions(make: Callable[..., Folder], printed: Printed) -> None:
    """Each question's answers are averaged over the seeds, and the test is the one of `paired_difference`. Tables have
    a column for each task."""
    sweep, rng = make(*RATES), random.Random(0)
    answers = {
        number: {task: [[rng.random() < (0.2 if number < 3 else 0.8)] for _ in range(20)] for task in ("maze", "gcd")}
        for number in range(6)
    }
    for number, tasks in answers.items():
        write_answers(sweep, number, tasks)
    comparison = compare(sweep.folder)
    (found,) = comparison.differences
    assert (found.b, found.a, found.n) == ("learning_rate=1e-6", "learning_rate=2e-6", 40)
    means = [
        fmean(a[0] for n in numbers for each in answers[n].values() for a in each) for numbers in ((0, 1, 2), (3, 4, 5))
    ]
    assert found.difference == pytest.approx(means[1] - means[0])
    assert found.interval[0] > 0.3
    assert found.p_value < 0.001
    group = comparison.groups[1]
    assert group.tasks["gcd"].mean == pytest.approx(fmean(a[0] for n in (3, 4, 5) for a in answers[n]["gcd"]))
    assert group.tasks["gcd"].interval is not None
    lines = printed(comparison)
    assert any("learning_rate=1e-6 → learning_rate=2e-6" in line and "< 0.001" in line for line in lines)
    assert any(line.split() == ["learning_rate", "maze", "gcd"] for line in lines)
    write_comparison(comparison)
    written = json.loads((sweep.folder / "comparison.json").read_text())
    assert written["differences"][0]["p_value"] == found.p_value
    assert "correct" not in written["groups"][0]["runs"][0]


def test_figures_are_in_csv_and_latex(make: Callable[..., Folder]) -> None:
    """The CSV file has the numbers with all digits; LaTeX has the cells of the table, with special characters
    escaped."""
    sweep = make(*({"model.name": name, "seed": seed} for name in ("a_1", "50% & {b}") for seed in range(3)))
    for number in range(6):
        write_answers(sweep, number, {"maze": [[True], [number > 2]], "gcd": [[True]]})
    comparison = compare(sweep.folder)
    write_comparison(comparison)
    with (sweep.folder / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model.name"] for row in rows] == ["a_1", "50% & {b}"]
    figure = comparison.groups[0].figures["accuracy_after"]
    assert figure.interval is not None
    ends = {"accuracy_after": figure.mean, "accuracy_after_low": figure.interval[0]}
    assert {key: float(rows[0][key]) for key in ends} == ends
    assert float(rows[0]["accuracy_after/maze"]) == 0.5
    latex = (sweep.folder / "comparison.tex").read_text()
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 3
    assert r"50\% \& \{b\} & " in latex
    assert r"a\_1 & " in latex
    assert f"& {figure.mean:.3f} [" in latex


def test_lengths_are_never_negative(make: Callable[..., Folder]) -> None:
    """An interval of a mean length is clipped at 0."""
    sweep = make(*RATES[:3])
    for number, tokens in enumerate((1.0, 2.0, 30.0)):
        sweep.leave(number, eval_after={"n": 20, "mean_completion_tokens": tokens, "intervals": {}})
    figure = compare(sweep.folder).groups[0].figures["tokens_after"]
    assert figure.mean == 11
    assert figure.interval is not None
    assert figure.interval[0] == 0
    assert figure.interval[1] > 30


def test_curves_are_means_by_setting(make: Callable[..., Folder], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("rg_env.evaluation.plots.curves.plot_curves", lambda curves, *rest: drawn.extend(curves))
    sweep = make(*RATES)
    for number in (0, 1, 2, 3):
        sweep.leave(number)
    write_comparison(compare(sweep.folder))
    assert [(curve.name, curve.runs) for curve in drawn] == [
        ("learning_rate=1e-6 (3 runs)", 3), ("learning_rate=2e-6", 1)]  # fmt: skip


def test_two_seeds_have_no_interval(make: Callable[..., Folder], printed: Printed) -> None:
    """With two seeds, an interval would be almost as wide as the scale."""
    sweep = make({"seed": 0}, {"seed": 1})
    for number, accuracy in enumerate((0.3, 0.2)):
        held_out = {"n": 5, "accuracy": 0.5, "intervals": {}} if number else None
        after = {"n": 20, "accuracy": accuracy, "intervals": {}, "held_out": held_out}
        sweep.leave(number, eval_after=after)
    comparison = compare(sweep.folder)
    assert "held_out_after" not in comparison.groups[0].figures, "a mean over some of the seeds"
    figure = comparison.groups[0].figures["accuracy_after"]
    assert (figure.mean, figure.interval) == (0.25, None)
    lines = printed(comparison)
    assert any("0.250 " in line and "2 seeds (too few)" in line for line in lines)
    assert write_comparison(comparison)[-2:] == ["comparison.png", "curves.png"]


def test_a_single_run_has_the_interval_over_its_questions(make: Callable[..., Folder]) -> None:
    """The interval comes from the run's evaluation, even if other seeds have not finished. Seconds have no interval."""
    sweep = make({"seed": 0, "lora.r": 4}, {"seed": 1, "lora.r": 4}, {"seed": 0, "lora.r": 8})
    for number in (0, 2):
        sweep.leave(number)
    sweep.leave(1, interrupted=True)
    first, second = compare(sweep.folder).groups
    assert (first.over, second.over) == ("20 questions", "20 questions")
    assert (len(first.finished), len(first.runs)) == (1, 2)
    for number, group in ((0, first), (2, second)):
        after = sweep.results[number]["eval_after"]
        assert group.figures["accuracy_after"].interval == tuple(after["intervals"]["accuracy"])
        assert group.figures["held_out_after"].interval == tuple(after["held_out"]["intervals"]["accuracy"])
        assert group.figures["tokens_after"].interval == tuple(after["intervals"]["mean_completion_tokens"])
        assert group.figures["seconds"].interval is None


def test_runs_that_do_not_count_are_named_with_number_and_reason(make: Callable[..., Folder], printed: Printed) -> None:
    """The number is the index in Slurm's array, and text from files is shown without control characters."""
    sweep = make(*RATES)
    (sweep.folder / "logs").mkdir()
    sweep.leave(0)
    sweep.leave(1, interrupted=True)
    sweep.leave(2, error="the server\nis gone \x1b[31m[red]| x")
    (sweep.folder / "point=3").mkdir()
    (sweep.folder / "point=3" / "config.yaml").touch()
    (sweep.folder / "logs" / "point=4.failed").write_text("exit code 2: error: no model\n")
    sweep.leave(5, stopped_by="reward_hacking")
    comparison = compare(sweep.folder)
    assert comparison.groups[0].figures["accuracy_after"].mean == sweep.results[0]["eval_after"]["accuracy"]
    assert comparison.groups[1].figures == {}
    lines = printed(comparison)
    assert [line for line in lines if line.startswith("not in")] == [
        "not in the table: 2 point=1: not finished (interrupted after 10 steps)",
        "not in the table: 3 point=2: failed (the server is gone [31m[red]| x)",
        "not in the table: 4 point=3: not finished",
        "not in the table: 5 point=4: failed (exit code 2: error: no model)",
        "not in the table: 6 point=5: stopped (by monitor reward_hacking after 10 steps)",
    ]
    (row,) = [line.split() for line in lines if line.strip().startswith("2e-6")]
    assert row == ["2e-6", *["–"] * 7, "0", "of", "3"]


@pytest.mark.parametrize("name", ["train_results.json", "metrics.jsonl"])
def test_a_damaged_file_of_a_run_is_named(make: Callable[..., Folder], name: str) -> None:
    """Nothing is computed from the other files, and the error names a fix."""
    sweep = make(*RATES[:2])
    sweep.leave(0)
    file = sweep.folder / "point=0" / name
    file.write_text("[1]\n" + file.read_text())
    with pytest.raises(InputError, match=rf"point=0/{name} is damaged: .*; restore it from a copy, or remove it"):
        compare(sweep.folder)


def test_folders_without_a_sweep_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a sweep, because it has no sweep.yaml"):
        compare(tmp_path)
    (tmp_path / "sweep.yaml").write_text("points: {}")
    with pytest.raises(InputError, match=r"sweep.yaml is damaged: "):
        compare(tmp_path)


@pytest.mark.slow  # starts three processes that draw plots
def test_the_files_are_written_even_if_stdout_is_closed(make: Callable[..., Folder]) -> None:
    """No error is printed. If a file cannot be written, the table and a one-line error are still printed."""
    sweep = make(*RATES[:1])
    sweep.leave(0)
    command = [sys.executable, "-m", "rg_env.cli.main", "compare", str(sweep.folder)]
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")
    for name, reason in (("comparison.md", "Is a directory"), ("comparison.png", "comparison.png")):
        (sweep.folder / name).unlink()
        (sweep.folder / name).mkdir()
        result = subprocess.run(command, capture_output=True, text=True)
        assert "accuracy after" in result.stdout
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert re.match(rf"error: cannot write .*{reason}", result.stderr)
        assert not list(sweep.folder.glob("*.part"))
        (sweep.folder / name).rmdir()
        (sweep.folder / name).touch()


def test_the_table_is_on_the_console_and_in_files(make: Callable[..., Folder], printed: Printed) -> None:
    """The console and the files have the same cells, without columns that no run has values for."""
    sweep = make(*RATES)
    for number in range(6):
        sweep.leave(number, held_out=False)
    comparison = compare(sweep.folder)
    assert write_comparison(comparison) == [*FILES, "comparison.png", "curves.png"]
    text = (sweep.folder / "comparison.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert rows[0] == [
        *["learning_rate", "accuracy before", "accuracy after", "greedy after", "reward after", "tokens after"],
        *["seconds", "finished", "interval over"],
    ]
    figures = comparison.groups[1].figures
    (low, high), mean = figures["accuracy_before"].interval or (0, 0), figures["accuracy_before"].mean
    assert rows[2][:2] == ["2e-6", f"{mean:.3f} [{low:.3f}, {high:.3f}]"]
    assert rows[2][-2:] == ["3 of 3", "3 seeds"]
    wide = [line.split("  ") for line in printed(comparison) if line.startswith("  2e-6")]
    assert [cell.strip() for cell in wide[0] if cell.strip()] == rows[2]
    written = json.loads((sweep.folder / "comparison.json").read_text())
    assert written["groups"][1]["figures"]["reward_after"]["mean"] == figures["reward_after"].mean
    first = written["groups"][0]["runs"][0]
    assert first["status"] == "finished"
    assert first["figures"]["accuracy_after"]["mean"] == sweep.results[0]["eval_after"]["accuracy"]


@pytest.mark.parametrize("values", [[f"{'a' * 99}{x}{'b' * 99}" for x in ("", "x")], [None, "null"]])
def test_values_are_shown_short_and_distinct(make: Callable[..., Folder], printed: Printed, values: list[Any]) -> None:
    lines = printed(compare(make(*({"a.b": value} for value in values)).folder))
    cells = [line.split("  ")[1] for line in lines if " of 1" in line]
    assert len(set(cells)) == 2
    assert max(map(len, lines)) <= 120
    assert all(line.isprintable() for line in lines)


def test_runs_that_were_evaluated_differently_are_noted(make: Callable[..., Folder]) -> None:
    sweep = make(*RATES[:2])
    sweep.leave(0)
    kinds = ("questions", "sampling settings")
    changes = {"questions": [{"manifest_sha256": None, "prompts_sha256": "p"}], "sampling": {"max_tokens": 5}}
    sweep.leave(1, eval_after=sweep.results[0]["eval_after"] | changes)
    assert compare(sweep.folder).notes == [
        f"The runs were evaluated with different {kind}, which may partly explain differences in their results."
        for kind in kinds
    ]


def test_the_plot_has_a_line_for_each_group(make: Callable[..., Folder]) -> None:
    groups, seeds = 3, 2
    text = r"$\frac$ is no formula " * 9
    sweep = make(*({"x.y": f"{text}{group}", "seed": seed} for group in range(groups) for seed in range(seeds)))
    assert write_comparison(compare(sweep.folder)) == FILES, "no run has finished"
    for number in range(groups * seeds):
        sweep.leave(number)
    assert write_comparison(compare(sweep.folder))[-2:] == ["comparison.png", "curves.png"]
    pixels = imread(sweep.folder / "comparison.png")
    assert 0 < pixels.shape[0] - groups * 0.4 * 120 < 240
    assert len({tuple(pixel) for pixel in pixels.reshape(-1, pixels.shape[2])[::7]}) > 10, "it is not blank"
