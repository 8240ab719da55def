"""Options, commands and checks that the tests of all Verifiers releases share."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from release_environments import RELEASES

EXAMPLES, ROLLOUTS = 12, 2
GYM = [{"name": "leg_counting"}, {"name": "chain_sum", "weight": 2}]
OPTIONS: dict[str, Any] = {"gym": GYM, "num_train_examples": 4, "num_eval_examples": EXAMPLES, "eval_seed": 3}
REWARDS: dict[str, Any] = {
    "default": None,
    # The products of these weights are not round numbers, so sums in another order would differ in the last digit.
    "several": [["correctness", 0.7], ["format", 0.1], ["brevity", 0.33], {"name": "cosine", "weight": 0.017}],
}


def releases(api: str) -> list[Any]:
    return [
        pytest.param(each, id=each.version, marks=() if each.project else pytest.mark.full_matrix)
        for each in RELEASES
        if api in each.apis
    ]


def run(*command: object, cwd: Path, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    """Run a command in its own environment, with only the necessary variables of this process's environment."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "RG_ENV_CACHE") if key in os.environ}
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**kept, "NO_KEY": "none", "COLUMNS": "400"},
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def check(found: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """Check that every question occurs `ROLLOUTS` times, with exactly the expected reward and metrics.

    Since 0.1.12, Verifiers' v0 API treats an empty reply as an error, which is recorded and scored like a missing
    reply.
    """
    assert sorted(each["question"] for each in found) == sorted([*expected] * ROLLOUTS)
    for each in found:
        wanted = expected[each["question"]]
        if each["error"]:
            assert "EmptyModelResponse" in str(each["error"])
            wanted = wanted["failed"]
        assert each["reward"] == wanted["reward"], each
        assert wanted["metrics"].items() <= each["metrics"].items(), each
