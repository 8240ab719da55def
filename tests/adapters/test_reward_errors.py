"""Errors of reward functions are recorded for any rubric."""

import asyncio
import inspect
from typing import Any

import pytest
from v0_api import functions, vf

from rg_env.adapters.v0 import raising_reward_errors, watch
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
    """A reward that returns None."""


def _score(rubric: vf.Rubric) -> float:
    """Return the reward of a rollout, as Verifiers computes it."""
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
        (raises, r"reward 'raises' raised ZeroDivisionError: no \(.*, line \d+\); task maze, answer '7'"),
        (raises_async, "reward 'raises_async' raised ZeroDivisionError: no .*answer '7'"),
        (gives_nan, "reward 'gives_nan' returned nan, not a finite number .*answer '7'"),
        (
            gives_none,
            r"reward 'gives_none' returned None, not a finite number.* \(.*, line \d+\); task maze",
        ),
    ],
)
def test_errors_that_verifiers_swallows_are_recorded(function: Any, message: str) -> None:
    """Errors and values that are not numbers are recorded with the rollout, while Verifiers continues with 0.0."""
    rubric = vf.Rubric(funcs=[fine, function], weights=[1.0, 1.0])
    watch(rubric)
    assert _score(rubric) == 0.5
    with pytest.raises(RewardError, match=message) as caught, raising_reward_errors():
        _score(rubric)
    if "raises" in function.__name__:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with raising_reward_errors():  # the next batch does not raise the error again
        assert _score(vf.Rubric(funcs=[fine])) == 0.5


def test_wrapped_functions_keep_signatures_and_names() -> None:
    """The signature determines the arguments that Verifiers passes, and the name becomes the metric's name. A function
    is wrapped only once, even if its rubric is also watched as part of a group."""
    originals = [fine, raises, raises_async, gives_nan]
    rubric = vf.Rubric(funcs=list(originals))
    watch(rubric)
    wrapped = functions(rubric)
    for before, after in zip(originals, wrapped, strict=True):
        assert inspect.signature(after) == inspect.signature(before)
        assert after.__name__ == before.__name__
        assert inspect.iscoroutinefunction(after) == inspect.iscoroutinefunction(before)
    watch(vf.RubricGroup(rubrics=[vf.Rubric(funcs=[fine]), vf.RubricGroup(rubrics=[rubric])]))
    assert all(after is before for before, after in zip(wrapped, functions(rubric), strict=True))


def test_a_reward_error_takes_precedence_over_later_errors() -> None:
    rubric = vf.Rubric(funcs=[raises])
    watch(rubric)

    def fail() -> None:
        with raising_reward_errors():
            _score(rubric)
            raise ConnectionError("because of it")

    with pytest.raises(RewardError, match="'raises'"):
        fail()


def test_group_rewards_return_lists() -> None:
    """A group reward returns one value per rollout; rubrics keep functions in `funcs` from verifiers 0.1.9 on."""

    class NewRubric:
        def __init__(self, *funcs: Any) -> None:
            self.funcs = list(funcs)

    rubric = NewRubric(lambda completions: [1, 2.0], lambda completions: [1.0, float("nan")])
    watch(rubric)
    assert rubric.funcs[0](completions=["a", "b"]) == [1.0, 2.0]
    with pytest.raises(RewardError, match="nan"):
        rubric.funcs[1](completions=["a", "b"])
