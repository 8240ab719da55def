"""Tests of an evaluation's tables on the console and in `summary.md`, and of comparisons with published accuracies."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from result_files import all_results, model_result, task_results
from rich.console import Console

from rg_env.errors import ConfigError
from rg_env.evaluation.config import PublishedTable
from rg_env.evaluation.load import eval_config_of, load_eval_config
from rg_env.evaluation.report.content import Page
from rg_env.evaluation.results import PublishedFigure, Results, read_results, results_files
from rg_env.evaluation.scores import compare
from rg_env.evaluation.tables import markdown, print_results

CONFIGS = Path(__file__).parents[2] / "configs" / "eval"
LEAST = ["models={base: tiny, new: other}", "tasks=[leg_counting, maze]"]


def _texts(results: Results) -> list[list[str]]:
    """Return the lines of the console's tables and of summary.md, with cells separated by single spaces."""
    console = Console(file=io.StringIO(), width=80)
    print_results(results, console)
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [
        [" ".join(line.replace("|", " ").split()) for line in text.splitlines()]
        for text in (printed, markdown(results))
    ]


def test_reward_and_pass_at_k_are_means_over_tasks_and_left_out_questions_are_summed() -> None:
    first = {"a": model_result(0.5, reward=0.6, pass_at_k={"pass@1": 0.5, "pass@2": 0.7, "pass@4": 0.9}, left_out=3),
             "b": model_result(0.1, reward=-0.2, pass_at_k={"pass@1": 0.5, "pass@2": 0.1, "pass@4": 0.1})}  # fmt: skip
    second = {"a": model_result(0.5, reward=0.8, pass_at_k={"pass@1": 0.5, "pass@2": 0.5, "pass@4": 0.6}, left_out=1),
              "b": model_result(0.1, reward=0.1, pass_at_k={"pass@1": 0.5, "pass@2": 0.3, "pass@4": 0.2})}  # fmt: skip
    results = all_results([task_results(first), task_results(second, "gcd")])
    for lines in _texts(results):
        assert {"reward 0.700 -0.050", "pass@2 0.600 0.200", "pass@4 0.750 0.150", "left out 4 0"} <= {*lines}


def test_the_number_of_questions_is_a_range_if_models_answered_different_numbers() -> None:
    """Models skip questions that they were trained on, so their numbers can differ."""
    skips = {"a": model_result(0.5, n=20), "b": model_result(0.5, n=8), "c": model_result(0.5, n=20)}
    for models, n in ((skips, "8 to 20"), ({"a": model_result(0.5, n=20)}, "20")):
        for lines in _texts(all_results([task_results(models)])):
            assert [line for line in lines if line.startswith(f"maze {n} ")]


def test_the_table_explains_its_terms_and_has_no_empty_rows() -> None:
    """With one answer per question, for example, there are no rows for pass@k."""
    for lines in _texts(all_results([task_results({"a": 0.5})])):
        for words in ("clustered by question", "best constant answer", "(1 - constant)", "was trained on"):
            assert words in " ".join(lines)
        assert not [line for line in lines if line.startswith(("pass@", "left out", "failed calls", "cost "))]


def test_no_left_out_questions_are_reported_if_the_overlap_is_unknown() -> None:
    """A note names the model instead, and the statement is missing from the tables and the report."""
    note = "a: its training questions are not recorded, so its overlap with the questions is unknown"
    results = all_results([task_results({"a": 0.5})], notes=[note])
    page = Page("", "")
    page.add_results(results)
    for text in [*map(" ".join, _texts(results)), *(" ".join(table.notes) for table in page.tables)]:
        assert "was trained on" not in text
    assert note in markdown(results)


# Published accuracies


def table(rows: dict[str, Any], **changes: Any) -> dict[str, PublishedTable]:
    given = {"source": "a paper", "tolerance": 0.05, "num_examples": 100, "rows": rows, **changes}
    return {"paper": PublishedTable.model_validate_json(json.dumps(given))}


def figure(theirs: float, ours: float, n: int = 100, **changes: Any) -> PublishedFigure:
    """Compare one published accuracy with ours on `n` questions."""
    tasks = {"maze": task_results({"base": model_result(ours, n)})}
    (found,) = compare(table({"maze": {"accuracy": {"base": theirs}}}, **changes), tasks)
    return found


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("{}", "published.p.rows = {} @ command line: must contain at least 1 item"),
        ("{maze: {accuracy: {base: 16.7}}}", "base = 16.7 @ command line: must be at most 1"),
        ("{maze: {acuracy: {base: 0.5}}}", "did you mean 'accuracy'?"),
        ("{maze: {accuracy: {bsae: 0.5}}}", "published.p.rows.maze.accuracy.bsae = 0.5 @ command line: unknown model "
         "'bsae': did you mean 'base'?; only evaluated models"),
        ("{mase: {accuracy: {base: 0.5}}}", "unknown task 'mase': did you mean 'maze'?; rows can include only evaluat"),
        ("{all: {tasks: [maze, gcd], accuracy: {base: 0.5}}}", "published.p.rows.all.tasks = ['maze', 'gcd'] @ "
         "command line: unknown task 'gcd': available: leg_counting, maze; rows can include only"),
        ("{all: {tasks: [maze, maze], accuracy: {base: 0.5}}}", "names a task twice"),
    ],
)  # fmt: skip
def test_only_evaluated_models_and_tasks_can_be_compared(rows: str, message: str) -> None:
    """Wrong model or task names and percentages instead of fractions are reported with their location."""
    with pytest.raises(ConfigError) as caught:
        eval_config_of([*LEAST, f"published.p={{rows: {rows}, source: s, tolerance: 0.1}}"])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "ours", "n", "verdict"),
    [
        (0.50, 0.52, 100, "within_tolerance"),
        (0.50, 0.55, 10_000, "within_tolerance"),  # exactly at the tolerance, although the difference is significant
        (0.60, 0.65, 10_000, "within_tolerance"),
        (0.50, 0.60, 100, "within_chance"),
        (0.50, 0.40, 100, "within_chance"),
        (0.50, 0.80, 100, "beyond"),
        (0.50, 0.20, 100, "beyond"),
        (0.00, 0.40, 5, "within_chance"),
        (0.00, 0.80, 5, "beyond"),
    ],
)
def test_the_verdict(theirs: float, ours: float, n: int, verdict: str) -> None:
    found = figure(theirs, ours, n)
    assert found.verdict == verdict
    assert found.difference == pytest.approx(ours - theirs)
    low, high = found.difference_interval
    assert low <= found.difference <= high
    assert (verdict == "beyond") <= (not low <= 0 <= high)


def test_the_interval_of_the_difference_reflects_both_figures() -> None:
    """The interval is Newcombe's, from our interval and Wilson's interval of the published figure, which counts as
    exact if its n is unknown."""
    found, exact = figure(0.6, 0.8, 70, num_examples=80), figure(0.6, 0.8, 70, num_examples=None)
    ours = found.interval
    wilson = (0.4904, 0.7004)  # of 48 of 80
    low = 0.2 - ((0.8 - ours[0]) ** 2 + (wilson[1] - 0.6) ** 2) ** 0.5
    high = 0.2 + ((ours[1] - 0.8) ** 2 + (0.6 - wilson[0]) ** 2) ** 0.5
    assert found.difference_interval == pytest.approx((low, high), abs=1e-4)
    assert exact.difference_interval == pytest.approx((ours[0] - 0.6, ours[1] - 0.6))
    assert (found.published_n, exact.published_n, found.n) == (80, None, 70)


def test_a_row_of_several_tasks_has_their_mean() -> None:
    """Tasks have equal weight whatever their number of questions, and the row's n is the sum over its tasks."""
    tasks = {
        "maze": task_results({"base": model_result(0.2, 20), "new": model_result(0.9)}),
        "gcd": task_results({"base": model_result(0.6, 60), "new": model_result(0.9)}, "gcd"),
    }
    rows = {"both": {"tasks": ["maze", "gcd"], "accuracy": {"base": 0.5}}, "gcd": {"accuracy": {"new": 0.9}}}
    both, single = compare(table(rows), tasks)
    assert (both.ours, both.n, both.published_n) == (pytest.approx(0.4), 80, 200)
    widths = [end - start for start, end in (both.interval, tasks["maze"].models["base"].scores.measured[1])]
    assert widths[0] < widths[1]
    assert (single.row, single.tasks, single.model, single.verdict) == ("gcd", ["gcd"], "new", "within_tolerance")


def test_published_figures_are_in_the_tables() -> None:
    """Without published figures, the section is missing."""
    tasks = {"maze": task_results({"base": model_result(0.5, 100), "new": model_result(0.9, 100)})}
    rows = {"maze": {"accuracy": {"base": 0.48, "new": 0.5}}}
    results = all_results([*tasks.values()], published=compare(table(rows, source="arXiv [1]"), tasks))
    for lines in _texts(results):
        first, second = (line for line in lines if line.startswith("paper: maze"))
        assert first.startswith("paper: maze base 100 0.500 [0.402, 0.598] 0.480 +0.020 [")
        assert first.endswith("] 0.050 within tolerance")
        assert second.endswith("] 0.050 beyond")
        assert "paper: arXiv [1]" in lines
    assert "## Published figures" in markdown(results)
    assert "ublished" not in markdown(all_results([*tasks.values()]))


def test_the_papers_figures_are_within_their_sources_resolution() -> None:
    """Each is a mean of 3 answers per question, rounded to a tenth of a percent."""
    for file, models in (("paper_tables", 1), ("paper_tables_trained", 10)):
        config = load_eval_config(CONFIGS / f"{file}.yaml")
        found = {name for each in config.published.values() for row in each.rows.values() for name in row.accuracy}
        assert found == {*config.models}
        assert len(found) == models
        for each in config.published.values():
            for name, row in each.rows.items():
                answers = 3 * (each.num_examples or 0) * len(row.names(name))
                for share in row.accuracy.values():
                    assert abs(round(share * answers) / answers - share) < 0.0005 + 1e-9, (name, share)


@pytest.mark.slow
def test_the_tiny_policy_is_compared_with_published_figures(
    tmp_path: Path, rg_env: Callable[..., tuple[int, str, str]]
) -> None:
    """The exit code is 0 for any verdict, each task has its own settings, and resuming with another tolerance reuses
    the rollouts."""
    rows = {"leg_counting": {"accuracy": {"policy": 1.0}}, "short": {"accuracy": {"policy": 0.0}},
            "all": {"tasks": ["leg_counting", "short"], "accuracy": {"policy": 1.0}}}  # fmt: skip
    short = "{task: chain_sum, config: {max_terms: 2, max_digits: 1, min_digits: 1}, sampling: {max_tokens: 1}}"
    given = ["eval", "models={policy: tiny}", f"tasks={{leg_counting: {{}}, short: {short}}}", "num_examples=12",
             "sampling.max_tokens=90", f"published.card={{source: x, tolerance: 0.02, rows: {json.dumps(rows)}}}",
             f"output.dir={tmp_path / 'e'}"]  # fmt: skip
    code, printed, errors = rg_env(*given)
    assert code == 0, errors
    (file,) = results_files(tmp_path / "e")
    results = read_results(file)
    accuracy, _ = results.tasks["leg_counting"].models["policy"].scores.measured
    expected = [
        ("leg_counting", accuracy, "beyond"),
        ("short", 0.0, "within_tolerance"),
        ("all", accuracy / 2, "beyond"),
    ]
    assert [(each.row, each.ours, each.verdict) for each in results.published] == expected
    assert "card: leg_counting" in printed
    file.unlink()
    code, printed, errors = rg_env(*given, "--resume", "published.card.tolerance=1.0")
    assert (code, "beyond" in printed.split("Beyond: neither")[0], errors) == (0, False, "")
    assert len((tmp_path / "e" / "rollouts.jsonl").read_text().splitlines()) == 24
