"""Several results files as one, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_files import all_results, model_result, of_task, task_results

from rg_env.errors import InputError
from rg_env.evaluation.plots.merging import checked, merged, renamed
from rg_env.evaluation.results import Paired, Results, TaskResults

NAMES = st.sampled_from("abcdef")


def by_file(results: dict[str, Any]) -> dict[str, Results]:
    """By name; those of one task as its file has them."""
    return {name: of_task(each) if isinstance(each, TaskResults) else each for name, each in results.items()}


PAIR = Paired(a="a", b="b", n=20, difference=0.1, interval=(0.0, 0.2), p_value=0.3)


@given(st.lists(st.dictionaries(NAMES, st.none(), min_size=1), min_size=1, max_size=4))
def test_models_of_all_files_are_there_once(files: list[dict[str, None]]) -> None:
    """In the order of the files, whichever files share a model, with its own figures; of all tasks, too."""
    accuracy = {name: 0.1 * number for number, name in enumerate("abcdef")}
    order = list(dict.fromkeys(name for file in files for name in file))
    tasks = [task_results({name: accuracy[name] for name in file}) for file in files]
    result = merged(by_file({str(number): each for number, each in enumerate(tasks)}))
    assert list(result.models) == order
    assert {name: each.scores.accuracy for name, each in result.tasks["maze"].models.items()} == {
        name: accuracy[name] for name in order
    }
    every = [all_results([each, each.model_copy(update={"task": "gcd"})]) for each in tasks]
    all_tasks = merged({str(number): each for number, each in enumerate(every)})
    assert list(all_tasks.models) == order
    assert {name: list(task.models) for name, task in all_tasks.tasks.items()} == {"maze": order, "gcd": order}


def test_comparisons_are_kept_once() -> None:
    first = task_results({"a": 0.5, "b": 0.4}, comparisons=[PAIR])
    assert merged(by_file({"1": first, "2": first})) == of_task(first)
    assert merged(by_file({"1": task_results({"c": 0.1}), "2": first})).comparisons == [PAIR]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"manifest_sha256": "other"}, "other questions: manifest_sha256 is other, not m-maze"),
        ({"prompts_sha256": "x" * 64}, "other questions: prompts_sha256 is xxxxxxxxxxxxxxxxxxxxx..., not p-maze"),
        ({"seed": 1}, "other questions: seed is 1, not 0"),
        ({"n": 30}, "other questions: n is 30, not 20"),
        ({"temperature": 0.5}, "other sampling: temperature is 0.5, not 1.0"),
        ({"max_tokens": 65}, "other sampling: max_tokens is 65, not 64"),
        ({"rollouts_per_example": 2}, "other sampling: rollouts_per_example is 2, not 1"),
        ({"grading": "upstream"}, "other grading: upstream, not hardened"),
        ({"system_prompt": "Guess."}, "other system_prompt: Guess., not Think."),
        ({"spec": {"name": "maze", "level": 2}}, "other spec: {'name': 'maze', 'lev..., not {'name': 'maze'}"),
        ({"floor": 0.5}, "other floor: 0.5, not 0.25"),
    ],
    ids=str,
)
def test_what_was_not_asked_the_same_is_refused(change: dict[str, Any], reason: str) -> None:
    """With the reason; also in one of all tasks."""
    base, other = task_results({"a": 0.5}), task_results({"b": 0.5}, **change)
    with pytest.raises(InputError) as raised:
        merged(by_file({"x.json": base, "y.json": other}))
    assert str(raised.value) == f"y.json cannot be compared with x.json on 'maze': {reason}"
    gcd = [task_results({name: 0.5}, "gcd") for name in "ab"]
    with pytest.raises(InputError) as raised:
        merged({"x.json": all_results([gcd[0], base]), "y.json": all_results([gcd[1], other])})
    assert str(raised.value) == f"y.json cannot be compared with x.json on 'maze': {reason}"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (task_results({"a": 0.5}), task_results({"b": 0.5}, "gcd"), "only y.json has the task 'gcd'"),
        (
            all_results([task_results({"a": 0.5}), task_results({"a": 0.5}, "gcd")]),
            all_results([task_results({"b": 0.5})]),
            "only x.json has the task 'gcd', so the macro averages are of different tasks",
        ),
        (
            all_results([task_results({"a": 0.5})]),
            all_results([task_results({"b": 0.5}), task_results({"b": 0.5}, "gcd")]),
            "only y.json has the task 'gcd'",
        ),
        (
            task_results({"a": 0.5, "b": 0.5}),
            task_results({"b": model_result(0.5, seed=1)}),
            "x.json both have a model 'b', with different results",
        ),
        (
            all_results([task_results({"a": 0.5})]),
            all_results([task_results({"a": 0.6})]),
            "x.json both have a model 'a', with different results",
        ),
    ],
)
def test_files_of_something_else_are_refused(first: Any, second: Any, words: str) -> None:
    with pytest.raises(InputError) as raised:
        merged(by_file({"x.json": first, "y.json": second}))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def _broken(**scores: Any) -> Callable[[], TaskResults | Results]:
    return lambda: task_results({"a": model_result(0.5, **scores)})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_broken(accuracy_interval=(0.6, 0.7)), "f.json: the macro average of 'a', 0.5, is not in its interval"),
        (_broken(accuracy_interval=(0.1, 0.4)), "0.5, is not in its interval, 0.1 to 0.4: the file is damaged"),
        (_broken(n=0), "f.json has no answers: there is nothing to draw"),
        (_broken(answers=0), "f.json has no answers: there is nothing to draw"),
        (lambda: all_results([task_results({"a": 0.5})], models={}), "f.json has no models: there is nothing to draw"),
        (
            lambda: all_results([task_results({"a": 0.5})], models=all_results([task_results({"b": 0.5})]).models),
            "f.json is damaged: 'a', of the task 'maze', has no macro average",
        ),
    ],
)
def test_what_does_not_hold_together_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError) as raised:
        checked(by_file({"f": make()})["f"], "f.json")
    assert words in str(raised.value)


def test_an_interval_may_stop_short_by_rounding() -> None:
    results = of_task(
        task_results({"a": model_result(0.1, accuracy_interval=(0.1 + 1e-12, 0.3)), "b": model_result(0, 0)})
    )
    assert checked(results, "f.json") is results


def test_renames_reach_all_parts() -> None:
    """Tasks, comparisons, macro averages; two models may swap names."""
    task = task_results({"a": 0.5, "b": 0.25}, comparisons=[PAIR])
    results = renamed(all_results([task], comparisons=[PAIR]), {"a": "b", "b": "a"})
    assert {name: each.accuracy for name, each in results.models.items()} == {"b": 0.5, "a": 0.25}
    assert {name: each.scores.accuracy for name, each in results.tasks["maze"].models.items()} == {"b": 0.5, "a": 0.25}
    assert [(each.a, each.b) for each in (*results.comparisons, *results.tasks["maze"].comparisons)] == [("b", "a")] * 2
    assert list(renamed(of_task(task), {"a": "ours"}).models) == ["ours", "b"]
