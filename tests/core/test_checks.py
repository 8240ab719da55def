"""Odd values for arguments: one line that says what is wrong."""

from typing import Any

import pytest

from rg_env.core.data.dataset import build_rows
from rg_env.core.grading.scoring import score
from rg_env.core.rewards.builtin import checked_value, resolve_rewards
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.text import shortened
from rg_env.errors import InputError, RewardError

LOOP: dict[str, Any] = {}
LOOP["min_animals"] = LOOP


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: score("<answer>1</answer>", None), "must be a mapping or JSON text, not None"),
        (lambda: score("<answer>1</answer>", {"rg_task": ["x"], "config": "", "entry": ""}), r"unknown task \['x'\]"),
        (lambda: score("<answer>1</answer>", {1: 2, "a": 3}), "lacks 'rg_task'; it has"),
        (lambda: score("<answer>1</answer>", "[" * 200_000), "info of a row is not JSON"),
        (lambda: Mixture.parse([{"name": "gcd", "weight": 10**400}]), "weight must be above 0 and finite"),
        (lambda: Mixture.parse([{"name": "gcd", "weight": 1e308}, "lcm"]), "weight must be above 0 and finite"),
        (lambda: Mixture.parse({"name": "leg_counting", "config": LOOP}), "cannot be written as JSON"),
        (lambda: Mixture.parse({"name": "leg_counting", "config": {"min_animals": {(1, 2): 3}}}), "written as JSON"),
        (lambda: build_rows(["gcd", "lcm"], "train", 10**400, 0), "number of train examples must be .* not 1000"),
        (lambda: build_rows("gcd", "train", 1, 10**5000), "seed must be .* within 64 bits, not a int too long"),
        (lambda: resolve_rewards([{"name": "length", "when": ["correct"]}]), "gate of reward 'length'"),
        (lambda: resolve_rewards([{"name": "length", "weight": 10**400}]), "weight must be a finite number"),
        (lambda: resolve_rewards([{"name": "length", "options": {"max_tokens": 10**400}}]), "number from 0 up"),
        (lambda: resolve_rewards([{"name": "length", "options": {"max_tokens": -5}}]), "number from 0 up, not -5"),
        (lambda: resolve_rewards([{"name": "length", "options": []}]), r"options must be a mapping, not \[\]"),
    ],
)  # fmt: skip
def test_odd_values_are_told(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_reward_too_large_for_a_float_is_no_finite_number() -> None:
    with pytest.raises(RewardError, match=r"'big' returned 1000.*not a finite number"):
        checked_value("big", 10**400, "somewhere")


def test_long_values_are_shortened() -> None:
    assert shortened("x") == "'x'"
    assert len(shortened(list(range(1000)))) <= 80
    assert shortened(10**5000) == "a int too long to write"
