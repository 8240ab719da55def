"""Prompts, and the metrics of a mixture."""

from typing import Any

import pytest

from rg_env.core.data.dataset import build_rows
from rg_env.core.environment import PromptOptions
from rg_env.core.grading.scoring import Rollout
from rg_env.core.prompts import SYSTEM_PROMPT, fold_system
from rg_env.core.rewards import Rubric, resolve_rewards
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import InputError, UnknownNameError


def test_the_shipped_prompt_is_exact() -> None:
    """The tiny policy was built with exactly this text."""
    assert SYSTEM_PROMPT == "Think step by step, then give the final answer as <answer>your answer here</answer>."


def test_folding_leaves_the_rest_alone() -> None:
    """Only the first user turn changes, and the messages passed in are not modified."""
    messages = [
        {"role": r, "content": c} for r, c in [("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    ]
    before = [dict(message) for message in messages]
    assert [m["content"] for m in fold_system(messages)] == ["S\n\na", "b", "c"]
    assert messages == before
    assert fold_system(messages[:1]) == [{"role": "user", "content": "S"}]
    assert fold_system(messages[1:]) == messages[1:]


SHOTS = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "<answer>1</answer>"}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [("system", SYSTEM_PROMPT), ("user", "2?")]),
        *(({"system_prompt": none}, [("user", "2?")]) for none in (None, "")),
        ({"preamble": "P"}, [("system", f"P\n\n{SYSTEM_PROMPT}"), ("user", "2?")]),
        ({"prompt_placement": "user", "preamble": "P"}, [("system", "P"), ("user", f"{SYSTEM_PROMPT}\n\n2?")]),
        ({"prompt_placement": "user_after", "preamble": "P"}, [("system", "P"), ("user", f"2?\n\n{SYSTEM_PROMPT}")]),
        ({"prompt_placement": "user"}, [("user", f"{SYSTEM_PROMPT}\n\n2?")]),
        (
            {"prompt_placement": "user", "few_shot": SHOTS},
            [("user", f"{SYSTEM_PROMPT}\n\n1?"), ("assistant", "<answer>1</answer>"), ("user", "2?")],
        ),
    ],
)
def test_messages(arguments: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """The system prompt is in the system message or the user turn, together with a preamble and examples."""
    options = PromptOptions(**arguments)
    for _ in range(2):  # modifying returned messages does not affect later ones
        messages = options.messages("2?")
        assert [(message["role"], message["content"]) for message in messages] == expected
        messages[0]["content"] = "changed"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt_placement": "sytem"}, UnknownNameError, "did you mean 'system'"),
        ({"grading": "upsteam"}, UnknownNameError, "did you mean 'upstream'"),
        ({"opens_thinking": "no"}, InputError, "opens_thinking must be True or False, not 'no'"),
        ({"system_prompt": 5}, InputError, "system_prompt must be text, not 5"),
        ({"preamble": "\ud800"}, InputError, "preamble contains an unpaired surrogate"),
        ({"few_shot": [{"role": "user"}]}, InputError, "few_shot must be a number of examples up to 100, or a list of"),
        *(
            ({"few_shot": number}, InputError, "few_shot must be a number of examples")
            for number in (-1, True, 2.0, 10**6)
        ),
    ],
)
def test_invalid_prompt_options_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PromptOptions(**arguments)


def test_metrics_of_a_mixture() -> None:
    """Each task's accuracy is scaled by the inverse of its share of rows; `timed_out` exists only if it can occur."""
    mixture = Mixture.parse(["leg_counting", {"name": "chain_sum", "weight": 3}])
    assert not Rubric.of_tasks([], mixture, "hardened").in_workers
    metrics = {metric.name: metric for metric in Rubric.of_tasks(resolve_rewards(), mixture, "hardened").metrics}
    statuses = ["status/wrong", "status/no_answer", "status/too_long", "status/ungradable"]
    assert list(metrics) == ["accuracy", "accuracy/leg_counting", "accuracy/chain_sum", *statuses]
    assert "status/timed_out" in {metric.name for metric in Rubric.of_tasks([], mixture, "upstream").metrics}
    (row,) = [row for row in build_rows(mixture, "eval", 4, 0) if row["info"]["rg_task"] == "leg_counting"]
    rollout = Rollout("?", f"<answer>{row['answer']}</answer>", row["answer"], row["info"])
    values = {name: metric.value(rollout) for name, metric in metrics.items()}
    assert values == {**dict.fromkeys(metrics, 0.0), "accuracy": 1.0, "accuracy/leg_counting": 4.0}
