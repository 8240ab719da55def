"""Verdicts before training: what they say of a model, and the mixture that comes of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from result_files import all_results, model_result, task_results

from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table
from rg_env.errors import InputError, UnknownNameError
from rg_env.evaluation.probe import LEAST_INFORMATIVE, judge, labels, mixture, probed
from rg_env.evaluation.results import ModelResult, TaskResults
from rg_env.training.config.load import load_train_config

CONFIGS = Path(__file__).parents[2] / "configs"


def _model(groups: list[list[bool]], **scores: object) -> ModelResult:
    accuracy = sum(map(sum, groups)) / sum(map(len, groups))
    made = model_result(accuracy, len(groups), len(groups[0]), **scores)
    return made.model_copy(update={"correct": {f"q{number}": group for number, group in enumerate(groups)}})


def _task(groups: list[list[bool]], name: str = "maze", task: str = "maze", floor: float | None = 0.0) -> TaskResults:
    size = {"n": len(groups), "rollouts_per_example": len(groups[0])}
    return task_results({"m": _model(groups)}, name, spec={"name": task}, floor=floor, **size)


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=12))
def test_groups_teach_where_answers_differ(groups: list[list[bool]]) -> None:
    """So many rollouts for one of them; and a verdict that follows from what was seen."""
    found = probed(_task(groups), "m", None)
    mixed = sum(any(group) and not all(group) for group in groups)
    assert found.informative == pytest.approx(mixed / len(groups))
    assert found.rollouts == (pytest.approx(4 * len(groups) / mixed) if mixed else None)
    if found.informative >= LEAST_INFORMATIVE:
        assert found.verdict == "trainable"
    else:
        assert found.verdict == ("too easy" if found.solved > 0.5 else "too hard")


@pytest.mark.parametrize(
    ("groups", "floor", "verdict"),
    [
        ([[True] * 4] * 10, 0.0, "too easy"),
        ([[False] * 4] * 10, 0.0, "too hard"),
        ([[True, False, False, False]] * 10, 0.0, "trainable"),
        ([[True, False] * 2] * 10, 0.5, "guessable"),
        ([[True, False] * 2] * 10, 0.1, "trainable"),
        ([[True, False] * 2] * 10, None, "trainable"),
        ([[True, True, True, False]] * 10, 0.3, "trainable"),  # surely better than a constant answer
    ],
)
def test_verdicts(groups: list[list[bool]], floor: float | None, verdict: str) -> None:
    assert probed(_task(groups, floor=floor), "m", None).verdict == verdict


def test_training_starts_at_the_hardest_level_that_teaches() -> None:
    """A task that teaches at none is left out; one without levels stands as it is."""
    mixed, easy, hard = [[True, False] * 2] * 10, [[True] * 4] * 10, [[False] * 4] * 10
    parts = [("maze", easy, 0), ("maze", mixed, 1), ("maze", mixed, 2), ("maze", hard, 3), ("gcd", hard, 0)]
    tasks = [_task(groups, f"{task}-level{level}", task) for task, groups, level in parts]
    advice = judge(all_results([*tasks, _task(mixed, "arc_1d", "arc_1d")]), "m")
    assert [(each.level, each.verdict) for each in advice["maze"].levels] == [
        (0, "too easy"), (1, "trainable"), (2, "trainable"), (3, "too hard")]  # fmt: skip
    assert (advice["maze"].level, advice["gcd"].trainable) == (2, False)
    assert mixture(advice) == {"tasks": {"maze": {"level": 2}, "arc_1d": {}}}
    with pytest.raises(InputError, match="none of these tasks is trainable"):
        mixture({"gcd": advice["gcd"]})


def test_levels_are_those_that_a_task_has() -> None:
    """Broken ones are left out; every entry is one that an evaluation takes."""
    found = labels(["maze", "caesar_cipher"], [0, 2, 99])
    assert set(found) == {"maze-level0", "maze-level2", "caesar_cipher-level0"}
    for task in load_table():
        if task != "knight_swap":
            for entry in labels([task], [0, 1, 2]).values():
                Mixture.parse({"name": task, **{key: value for key, value in entry.items() if key != "task"}})
    with pytest.raises(InputError, match="knight_swap has levels 0 to 4, of which none of 0, 1 can be drawn"):
        labels(["knight_swap"], [0, 1])
    with pytest.raises(UnknownNameError, match="did you mean 'maze'"):
        labels(["mase"], [0])


@pytest.mark.slow
def test_a_probe_of_the_tiny_policy_gives_a_config_that_trains(tmp_path: Path) -> None:
    """As a user types it; what it writes is taken by a training config."""
    command = [sys.executable, "-m", "rg_env.cli.main", "probe", "--model", "tiny"]
    command += ["--tasks", "leg_counting", "spell_backward"]
    command += ["--levels", "0", "-n", "8", "--max-tokens", "60", "--output-dir", "probe"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode in (0, 1), result.stderr
    (file,) = (tmp_path / "probe").glob("results_all_tasks_*.json")
    found = json.loads(file.read_text())
    assert set(found["tasks"]) == {"leg_counting-level0", "spell_backward-level0"}
    assert "too hard" in result.stdout  # spelling, to a policy that has seen none
    if result.returncode == 0:
        (tmp_path / "train.yaml").write_text(
            yaml.safe_dump({"extends": [str(CONFIGS / "train" / "tiny.yaml"), "probe/mixture.yaml"]})
        )
        assert load_train_config(tmp_path / "train.yaml").tasks["leg_counting"].level == 0
