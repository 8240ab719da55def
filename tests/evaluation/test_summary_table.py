"""What the tables of an evaluation say, on the console and in `summary.md`."""

import io

import pytest
from result_files import all_results, model_result, task_results
from rich.console import Console

from rg_env.evaluation.report.content import Page
from rg_env.evaluation.results import Results
from rg_env.evaluation.tables import markdown, print_results


def _texts(results: Results) -> list[list[str]]:
    """Lines of both, cells with one space between."""
    console = Console(file=io.StringIO(), width=80)
    print_results(results, console)
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [
        [" ".join(line.replace("|", " ").split()) for line in text.splitlines()]
        for text in (printed, markdown(results))
    ]


def test_reward_and_pass_at_k_are_means_over_tasks_and_left_out_questions_are_summed() -> None:
    """They are of each task in the files alone."""
    first = {"a": model_result(0.5, reward=0.6, pass_at_k={"pass@1": 0.5, "pass@2": 0.7, "pass@4": 0.9}, left_out=3),
             "b": model_result(0.1, reward=-0.2, pass_at_k={"pass@1": 0.5, "pass@2": 0.1, "pass@4": 0.1})}  # fmt: skip
    second = {"a": model_result(0.5, reward=0.8, pass_at_k={"pass@1": 0.5, "pass@2": 0.5, "pass@4": 0.6}, left_out=1),
              "b": model_result(0.1, reward=0.1, pass_at_k={"pass@1": 0.5, "pass@2": 0.3, "pass@4": 0.2})}  # fmt: skip
    results = all_results([task_results(first), task_results(second, "gcd")])
    for lines in _texts(results):
        assert {"reward 0.700 -0.050", "pass@2 0.600 0.200", "pass@4 0.750 0.150", "left out 4 0"} <= {*lines}


def test_rows_without_figures_are_not_there() -> None:
    """One answer a question has no pass@k."""
    for lines in _texts(all_results([task_results({"a": 0.5})])):
        assert not [line for line in lines if line.startswith(("pass@", "left out", "failed calls", "cost "))]


@pytest.mark.parametrize("words", ["clustered by question", "best constant answer", "(1 - constant)", "was trained on"])
def test_the_words_of_the_table_are_explained(words: str) -> None:
    """The table explains itself, without the manual."""
    for lines in _texts(all_results([task_results({"a": 0.5})])):
        assert words in " ".join(lines)


def test_no_questions_are_said_to_be_left_out_if_the_overlap_is_unknown() -> None:
    """Neither in the tables nor in a report; a note names the model instead."""
    note = "a: its training questions are not recorded, so its overlap with the questions is unknown"
    results = all_results([task_results({"a": 0.5})]).model_copy(update={"notes": [note]})
    page = Page("", "")
    page.add_results(results)
    reported = [" ".join(table.notes) for table in page.tables]
    for text in [*map(" ".join, _texts(results)), *reported]:
        assert "was trained on" not in text
    assert note in markdown(results)
