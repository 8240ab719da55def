"""Tests of an evaluation's tables on the console and in `summary.md`."""

import io

import pytest
from result_files import all_results, model_result, task_results
from rich.console import Console

from rg_env.evaluation.report.content import Page
from rg_env.evaluation.results import Results, TaskResults
from rg_env.evaluation.tables import markdown, print_results


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


@pytest.mark.parametrize(
    ("width", "names", "head"),
    [
        (200, ["outputs/run1/checkpoint-25", "outputs/run2/checkpoint-25"], "task"),
        (80, ["before", "after 25 steps"], "task"),  # the first column is wrapped
        (64, ["before", "after 25 steps"], "task"),  # so are values and their intervals
        (60, ["outputs/run1/checkpoint-25", "outputs/run2/checkpoint-25"], "task:"),
    ],
)
def test_a_terminal_shows_whole_words_and_intervals(width: int, names: list[str], head: str) -> None:
    """A table that is too wide is wrapped between words or, if even that is too wide, shown as lists."""
    models = {name: model_result(0.25 * (number + 1)) for number, name in enumerate(names)}
    long = "a task with a long name, adjusted for guessing"
    results = all_results([task_results(models), task_results(models, long)])
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_results(results, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    assert head in {line.split()[0] for line in lines if line.strip()}
    text = " ".join(word for line in lines for word in line.split())
    assert {"0.250", "0.500", "guessing", *" ".join(names).split()} <= {*text.replace(":", "").split()}
    assert not [line for line in lines if line.count("[") != line.count("]")]


def test_the_number_of_questions_is_a_range_if_models_answered_different_numbers() -> None:
    """Models skip questions that they were trained on, so their numbers can differ."""
    skips = {"a": model_result(0.5, n=20), "b": model_result(0.5, n=8), "c": model_result(0.5, n=20)}
    for models, n in ((skips, "8 to 20"), ({"a": model_result(0.5, n=20)}, "20")):
        for lines in _texts(all_results([task_results(models)])):
            assert [line for line in lines if line.startswith(f"maze {n} ")]


@pytest.mark.parametrize(
    ("task", "explained"),
    [
        (task_results({"a": model_result(0.5, left_out=3, guess_adjusted=0.3)}), True),
        (task_results({"a": 0.5}, floor=None), False),
    ],
)
def test_the_table_explains_its_terms_and_no_others(task: TaskResults, explained: bool) -> None:
    """Terms of rows and columns without values are not explained, and neither are rows that one task does not have."""
    for lines in _texts(all_results([task])):
        assert "clustered by question" in " ".join(lines)
        for words in ("best constant answer", "(1 - constant)", "was trained on"):
            assert (words in " ".join(lines)) == explained
        assert not [line for line in lines if line.startswith(("pass@", "failed calls", "cost "))]
        assert "means over the tasks" not in " ".join(lines)
    both = all_results([task, task_results({"a": 0.5}, "gcd", floor=None)])
    totals = "left out, answer tokens" if explained else "answer tokens"
    assert f"means over the tasks, or totals ({totals})." in " ".join(_texts(both)[1])


def test_a_low_accuracy_due_to_the_form_of_replies_is_explained() -> None:
    """A model that never writes the tags is named, with the remedy. Failed calls are not such replies."""
    models = {"a": model_result(0.0, status={"no_answer": 1.0}), "b": model_result(0.1, status={"no_answer": 0.5}),
              "c": model_result(0.0, status={"no_answer": 0.5, "failed": 0.5})}  # fmt: skip
    for lines in _texts(all_results([task_results(models)])):
        text = " ".join(lines)
        assert "a: no reply has a complete <answer>...</answer>: show the form in examples (prompt.few_shot" in text
        assert text.count("<answer>") == 1


def test_no_left_out_questions_are_reported_if_the_overlap_is_unknown() -> None:
    """A note names the model instead, and the statement is missing from the tables and the report."""
    note = "a: its training questions are not recorded, so its overlap with the questions is unknown"
    results = all_results([task_results({"a": model_result(0.5, left_out=1)})], notes=[note])
    page = Page("", "")
    page.add_results(results)
    for text in [*map(" ".join, _texts(results)), *(" ".join(table.notes) for table in page.tables)]:
        assert "was trained on" not in text
    assert note in markdown(results)


def test_names_from_files_do_not_control_the_terminal() -> None:
    """`rg-env score` shows the names of models in somebody else's file."""
    assert not [line for text in _texts(all_results([task_results({"\x1b]0;x\x07": 0.5})]))[:1] for line in text
                if "\x1b" in line or "\x07" in line]  # fmt: skip
