"""Recording errors of reward functions in any rubric."""

import asyncio
import inspect
from typing import Any

import pytest
from v0_api import functions, vf

from rg_env.adapters.scoring import record_reward_errors
from rg_env.errors import RewardError


def fine(completion: Any) -> float:
    """A reward that works."""
    return 0.5


def raises(completion: Any, **kwargs: Any) -> float:
    """A reward that raises."""
    raise ZeroDivisionError("no")


async def raises_async(completion: Any) -> float:
    """An async reward that raises."""
    raise ZeroDivisionError("no")


def gives_nan(prompt: Any, completion: Any, answer: Any) -> float:
    """A reward that returns NaN."""
    return float("nan")


def gives_none(state: Any) -> Any:
    """A reward that returns nothing."""


def _score(rubric: vf.Rubric) -> float:
    """The reward of a rollout, as Verifiers computes it."""
    state: Any = {"prompt": "?", "completion": "<answer>7</answer>", "answer": "7", "info": {"rg_task": "maze"}}
    state |= {"task": "maze", "timing": {"total_ms": 0.0, "scoring_ms": 0.0}, "trajectory": []}
    if hasattr(rubric, "score_rollouts"):  # 0.1.6
        scored = rubric.score_rollout("?", state["completion"], "7", state, info=state["info"], example_id=0)
        return float(asyncio.run(scored).reward)
    state = vf.State(state)
    asyncio.run(rubric.score_rollout(state))
    return float(state["reward"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "reward 'raises' raised ZeroDivisionError: no; task maze, answer '7'"),
        (raises_async, "reward 'raises_async' raised ZeroDivisionError: no; .*answer '7'"),
        (gives_nan, "reward 'gives_nan' returned nan, not a finite number; .*answer '7'"),
        (gives_none, "reward 'gives_none' returned None, not a finite number; task maze, answer '7'"),
    ],
)
def test_what_verifiers_swallows_is_recorded(function: Any, message: str) -> None:
    """Errors and values that are not numbers are recorded with the rollout, while Verifiers continues with 0.0."""
    rubric = vf.Rubric(funcs=[fine, function], weights=[1.0, 1.0])
    record = record_reward_errors(rubric)
    assert _score(rubric) == 0.5
    with pytest.raises(RewardError, match=message) as caught:
        record.raise_first()
    if "raises" in function.__name__:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    record.raise_first()  # raised once, then forgotten


def test_signatures_and_names_stay() -> None:
    """Verifiers passes by signature and names metrics by name: both are the original's."""
    originals = [fine, raises, raises_async, gives_nan]
    rubric = vf.Rubric(funcs=list(originals))
    record_reward_errors(rubric)
    for before, after in zip(originals, functions(rubric), strict=True):
        assert inspect.signature(after) == inspect.signature(before)
        assert after.__name__ == before.__name__
        assert inspect.iscoroutinefunction(after) == inspect.iscoroutinefunction(before)


def test_recording_twice_wraps_once() -> None:
    """It may be called again, and then wraps only what was added since."""
    rubric = vf.Rubric(funcs=[fine])
    record = record_reward_errors(rubric)
    wrapped = functions(rubric)[0]
    rubric.add_reward_func(raises)
    assert record_reward_errors(rubric) is record
    assert functions(rubric)[0] is wrapped
    _score(rubric)
    with pytest.raises(RewardError, match="'raises'"):
        record.raise_first()


def test_groups_are_recorded_through_and_through() -> None:
    """A group's record sees the errors of the rubrics in it, and a rubric's own record keeps seeing them too."""
    inner = vf.Rubric(funcs=[raises])
    own = record_reward_errors(inner)
    group = vf.RubricGroup(rubrics=[vf.Rubric(funcs=[fine]), vf.RubricGroup(rubrics=[inner])])
    record = record_reward_errors(group)
    _score(group)
    for each in (own, record):
        with pytest.raises(RewardError, match="'raises'"):
            each.raise_first()
    assert own is not record


def test_newer_attribute_names_and_group_rewards() -> None:
    """`funcs` (verifiers 0.1.9 and later) is wrapped as well, and a group reward may return a list of numbers."""

    class NewRubric:
        def __init__(self, *funcs: Any) -> None:
            self.funcs = list(funcs)

    rubric = NewRubric(lambda completions: [1, 2.0], lambda completions: [1.0, float("nan")])
    record = record_reward_errors(rubric)
    assert rubric.funcs[0](completions=["a", "b"]) == [1.0, 2.0]
    record.raise_first()
    with pytest.raises(RewardError, match="nan"):
        rubric.funcs[1](completions=["a", "b"])
    with pytest.raises(RewardError, match="nan"):
        record.raise_first()
