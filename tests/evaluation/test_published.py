"""Published accuracies next to ours: the config section, the comparison, and the tables and files that show it."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from result_files import all_results, model_result, task_results
from rich.console import Console

from rg_env.errors import ConfigError
from rg_env.evaluation.config import PublishedTable, eval_config_of, load_eval_config
from rg_env.evaluation.results import PublishedFigure, Results, read_results
from rg_env.evaluation.scores import compare
from rg_env.evaluation.tables import markdown, print_results

REPOSITORY = Path(__file__).parents[2]
PAPER = REPOSITORY / "configs" / "eval" / "paper_tables.yaml"
LEAST = ["models={base: tiny, new: other}", "tasks=[leg_counting, maze]"]


def table(rows: dict[str, Any], **changes: Any) -> dict[str, PublishedTable]:
    given = {"source": "a paper", "tolerance": 0.05, "num_examples": 100, "rows": rows, **changes}
    return {"paper": PublishedTable.model_validate_json(json.dumps(given))}


def figure(theirs: float, ours: float, n: int = 100, **changes: Any) -> PublishedFigure:
    """One published figure of a task that we ask `n` questions of."""
    tasks = {"maze": task_results({"base": model_result(ours, n)})}
    (found,) = compare(table({"maze": {"accuracy": {"base": theirs}}}, **changes), tasks)
    return found


ROW = "{accuracy: {base: 0.5}}"


@pytest.mark.parametrize(
    ("rows", "more", "told"),
    [
        (f"{{maze: {ROW}}}", "tolerance: 0.1", "published.p.source: is required"),
        ("{}", "", "published.p.rows = {} @ command line: is empty"),
        ("{maze: {accuracy: {base: 16.7}}}", "", "base = 16.7 @ command line: must be at most 1"),
        ("{maze: {acuracy: {base: 0.5}}}", "", "did you mean 'accuracy'?"),
        ("{maze: {accuracy: {bsae: 0.5}}}", "", "published.p.rows.maze.accuracy.bsae = 0.5 @ command line: unknown "
         "model 'bsae': did you mean 'base'?; only evaluated models can be compared"),
        (f"{{mase: {ROW}}}", "", "unknown task 'mase': did you mean 'maze'?; rows must consist of evaluated tasks"),
        ("{all: {tasks: [maze, gcd], accuracy: {base: 0.5}}}", "", "published.p.rows.all.tasks = ['maze', 'gcd'] @ "
         "command line: unknown task 'gcd': available: leg_counting, maze; rows must consist of"),
        ("{all: {tasks: [maze, maze], accuracy: {base: 0.5}}}", "", "names a task twice"),
    ],
)  # fmt: skip
def test_what_is_not_evaluated_cannot_be_compared(rows: str, more: str, told: str) -> None:
    """A wrong model or task name, or percentages instead of fractions: one line with the location."""
    with pytest.raises(ConfigError) as caught:
        eval_config_of([*LEAST, f"published.p={{rows: {rows}, {more or 'source: s, tolerance: 0.1'}}}"])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "ours", "n", "verdict"),
    [
        (0.50, 0.52, 100, "within_tolerance"),
        (0.50, 0.55, 10_000, "within_tolerance"),  # at its very edge, however sure the difference is
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


def test_the_difference_is_as_unsure_as_both_figures() -> None:
    """As Newcombe has it, from Wilson's interval of theirs and from ours; without its n a figure counts as exact."""
    found, exact = figure(0.6, 0.8, 70, num_examples=80), figure(0.6, 0.8, 70, num_examples=None)
    ours = found.interval
    wilson = (0.4904, 0.7004)  # of 48 of 80
    low = 0.2 - ((0.8 - ours[0]) ** 2 + (wilson[1] - 0.6) ** 2) ** 0.5
    high = 0.2 + ((ours[1] - 0.8) ** 2 + (0.6 - wilson[0]) ** 2) ** 0.5
    assert found.difference_interval == pytest.approx((low, high), abs=1e-4)
    assert exact.difference_interval == pytest.approx((ours[0] - 0.6, ours[1] - 0.6))
    assert (found.published_n, exact.published_n, found.n) == (80, None, 70)


def test_a_row_of_several_tasks_is_their_mean() -> None:
    """Each task counts the same, whatever its number of questions, and both samples are those of all of them."""
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


def _results(**changes: Any) -> Results:
    tasks = {"maze": task_results({"base": model_result(0.5, 100), "new": model_result(0.9, 100)})}
    rows = {"maze": {"accuracy": {"base": 0.48, "new": 0.5}}}
    return all_results([*tasks.values()], published=compare(table(rows, source="arXiv [1]"), tasks), **changes)


def test_the_tables_have_it() -> None:
    """On the console and in summary.md; without published figures there is no such part."""
    results = _results()
    console = Console(file=io.StringIO(), width=80)
    print_results(results, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (printed, markdown(results)):
        lines = [" ".join(line.replace("|", " ").split()) for line in text.splitlines()]
        first, second = (line for line in lines if line.startswith("paper: maze"))
        assert first.startswith("paper: maze base 100 0.500 [0.402, 0.598] 0.480 +0.020 [")
        assert first.endswith("] 0.050 within tolerance")
        assert second.endswith("] 0.050 beyond")
        assert "paper: arXiv [1]" in lines
    assert "## Published figures" in markdown(results)
    assert "ublished" not in markdown(all_results([*results.tasks.values()]))


def test_the_papers_figures_are_within_their_sources_resolution() -> None:
    """Each is a mean of 3 answers to each question, rounded to a tenth of a percent."""
    for file, models in ((PAPER, 1), (PAPER.with_name("paper_tables_trained.yaml"), 10)):
        config = load_eval_config(file)
        found = {name for each in config.published.values() for row in each.rows.values() for name in row.accuracy}
        assert found == {*config.models}
        assert len(found) == models
        for each in config.published.values():
            for name, row in each.rows.items():
                answers = 3 * (each.num_examples or 0) * len(row.names(name))
                for share in row.accuracy.values():
                    assert abs(round(share * answers) / answers - share) < 0.0005 + 1e-9, (name, share)


@pytest.mark.slow
def test_the_tiny_policy_beside_figures_of_ours(tmp_path: Path, rg_env: Callable[..., tuple[int, str, str]]) -> None:
    """A whole evaluation with each task's own settings, and exit code 0 for any verdict; another config for comparison
    reuses the same rollouts."""
    rows = {"leg_counting": {"accuracy": {"policy": 1.0}}, "short": {"accuracy": {"policy": 0.0}},
            "all": {"tasks": ["leg_counting", "short"], "accuracy": {"policy": 1.0}}}  # fmt: skip
    short = "{task: chain_sum, config: {max_terms: 2, max_digits: 1, min_digits: 1}, sampling: {max_tokens: 1}}"
    given = ["eval", "models={policy: tiny}", f"tasks={{leg_counting: {{}}, short: {short}}}", "num_examples=12",
             "sampling.max_tokens=90", f"published.card={{source: x, tolerance: 0.02, rows: {json.dumps(rows)}}}",
             f"output.dir={tmp_path / 'e'}"]  # fmt: skip
    code, printed, errors = rg_env(*given)
    assert code == 0, errors
    (file,) = (tmp_path / "e").glob("results_all_tasks_*.json")
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
