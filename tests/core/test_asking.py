"""How questions are put: for all adapters alike."""

from typing import Any

import pytest

from rg_env.core.data.dataset import build_rows
from rg_env.core.environment import PromptOptions
from rg_env.core.grading.rubric import metrics_of, needs_workers
from rg_env.core.grading.scoring import Rollout
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.core.rewards import resolve_rewards
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError, UnknownNameError

SHOTS = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "<answer>1</answer>"}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [("system", SYSTEM_PROMPT), ("user", "2?")]),
        ({"system_prompt": None}, [("user", "2?")]),
        ({"prompt_placement": "user_after", "preamble": "P"}, [("system", "P"), ("user", f"2?\n\n{SYSTEM_PROMPT}")]),
        (
            {"prompt_placement": "user", "few_shot": SHOTS},
            [("user", f"{SYSTEM_PROMPT}\n\n1?"), ("assistant", "<answer>1</answer>"), ("user", "2?")],
        ),
    ],
)
def test_messages(arguments: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """Where the system prompt, a preamble and examples stand."""
    asking = PromptOptions.of(**arguments)
    for _ in range(2):  # messages of one question are no part of another's
        messages = asking.messages("2?")
        assert [(message["role"], message["content"]) for message in messages] == expected
        messages[0]["content"] = "changed"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt_placement": "sytem"}, UnknownNameError, "did you mean 'system'"),
        ({"grading": "upsteam"}, UnknownNameError, "did you mean 'upstream'"),
        ({"system_prompt": 5}, InputError, "system_prompt must be text, not 5"),
        ({"preamble": "\ud800"}, InputError, "preamble holds half a character"),
        ({"few_shot": [{"role": "user"}]}, InputError, "few_shot must be a list of messages"),
    ],
)
def test_what_cannot_work_is_told(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """In one line."""
    with pytest.raises(error, match=message):
        PromptOptions.of(**arguments)


def test_metrics_of_a_mixture() -> None:
    """An accuracy for each task, in the inverse of its share of the rows; `timed_out` only where it can be."""
    mixture = Mixture.parse(["leg_counting", {"name": "chain_sum", "weight": 3}])
    assert not needs_workers(mixture, "hardened")
    metrics = {metric.name: metric for metric in metrics_of(resolve_rewards(), mixture, "hardened")}
    statuses = ["status/wrong", "status/no_answer", "status/too_long", "status/ungradable"]
    assert list(metrics) == ["accuracy", "accuracy/leg_counting", "accuracy/chain_sum", *statuses]
    assert "status/timed_out" in {metric.name for metric in metrics_of([], mixture, "upstream")}
    (row,) = [row for row in build_rows(mixture, "eval", 4, 0) if row["info"]["rg_task"] == "leg_counting"]
    rollout = Rollout.of(
        prompt="?", completion=f"<answer>{row['answer']}</answer>", answer=row["answer"], info=row["info"]
    )
    values = {name: metric.value(rollout) for name, metric in metrics.items()}
    assert values == {**dict.fromkeys(metrics, 0.0), "accuracy": 1.0, "accuracy/leg_counting": 4.0}
