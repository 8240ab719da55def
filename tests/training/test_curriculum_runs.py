"""Training and resuming with a curriculum on the tiny policy."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from interrupts import At, ctrl_c, ctrl_c_in_a_backward_pass
from run_metrics import logged
from transformers import AutoModelForCausalLM

from rg_env.errors import InputError
from rg_env.tiny import POLICY_DIR, TASKS
from rg_env.training import Curriculum, CurriculumConfig, EvaluationPlan, train

GYM = ["chain_sum", "leg_counting"]
pytestmark = pytest.mark.slow


@pytest.fixture
def fresh(make_trainer: Any, make_env: Any, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that makes a trainer, as in a new process, for sums that get harder and for leg counting.
    `folder` is under `tmp_path`."""

    def make(folder: str, curriculum: dict[str, Any] | None, **fields: Any) -> Any:
        torch.manual_seed(0)
        env = make_env(gym=[{"name": name, "config": TASKS[name]} for name in GYM])
        made = None
        if curriculum is not None:
            made = Curriculum(CurriculumConfig.model_validate(curriculum), env, 0, gym=GYM)
        return make_trainer(
            env=env,
            model=AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32),
            curriculum=made,
            output_dir=str(tmp_path / folder),
            **{"max_steps": 8, "learning_rate": 1e-3, **fields},
        )

    return make


# Low thresholds: levels rise after a few prompts, and fall when none is answered correctly.
QUICK = {"tasks": {"chain_sum": {"highest": 3}}, "window": 3, "success_threshold": 0.2, "failure_threshold": 0.1}


def test_questions_follow_the_level(fresh: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The level is logged, printed and stored with each rollout, questions have the size of their level, and other
    tasks do not change."""
    trainer = fresh("run", QUICK)
    train(trainer, evaluation=EvaluationPlan(every=100))
    metrics = [line for line in logged(tmp_path / "run") if "reward" in line]
    levels = [line["curriculum/chain_sum/level"] for line in metrics]
    assert len(levels) == 8
    assert levels[0] == 0
    assert max(levels) >= 2
    printed = re.findall(r"^step (\d+): chain_sum (?:rises|falls) to level (\d) \(acc", capsys.readouterr().out, re.M)
    moves = [(step, level) for step, level in enumerate(levels) if step and level != levels[step - 1]]
    # The printed step is the first one at the new level.
    assert [(int(step), float(level)) for step, level in printed] == moves

    rollouts = logged(tmp_path / "run", "rollouts.jsonl")
    assert {rollout.get("level") for rollout in rollouts if rollout["task"] == "leg_counting"} == {None}
    sums = [rollout for rollout in rollouts if rollout["task"] == "chain_sum"]
    for rollout in sums:
        assert rollout["level"] == levels[rollout["step"] - 1]
        numbers = re.findall(r"\d+", rollout["question"])
        assert 2 <= len(numbers) <= rollout["level"] + 2
        assert max(map(len, numbers)) <= rollout["level"] + 1
    assert any(len(re.findall(r"\d+", rollout["question"])) > 2 for rollout in sums)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["curriculum"]["window"] == 3
    evaluations = [line for line in logged(tmp_path / "run") if "eval/accuracy" in line]
    assert [line["step"] for line in evaluations] == [0, 8]


@pytest.mark.parametrize(
    ("event", "fields", "curriculum"),
    [
        pytest.param("on_step_begin", {}, {}, marks=pytest.mark.full_matrix),
        ("backward pass", {}, {}),
        pytest.param("on_step_begin", {"num_iterations": 2}, {"check_every": 2}, marks=pytest.mark.full_matrix),
        pytest.param("on_step_begin", {}, {"schedule": {"2": 2, "5": 1}}, marks=pytest.mark.full_matrix),
    ],
    ids=["between steps", "mid-step", "two updates per batch", "scheduled"],
)
def test_a_resumed_run_matches_an_uninterrupted_one(
    fresh: Any, tmp_path: Path, event: str, fields: dict[str, Any], curriculum: dict[str, Any]
) -> None:
    """Metrics, rollouts, levels, windows and questions are identical to those of an uninterrupted run."""
    config = {**QUICK, **curriculum}
    unbroken = fresh("unbroken", config, **fields)
    train(unbroken, evaluation=EvaluationPlan(every=100))
    first = fresh("broken", config, **fields)
    if event == "backward pass":
        ctrl_c_in_a_backward_pass(first, 5)
    else:
        first.add_callback(At(5, ctrl_c, event))
    assert train(first, evaluation=EvaluationPlan(every=100))["interrupted"]
    assert json.loads((tmp_path / "broken" / "checkpoint-5" / "curriculum.json").read_text())["tasks"]["chain_sum"]
    second = fresh("broken", config, **fields)
    train(second, evaluation=EvaluationPlan(every=100), resume="auto")
    assert len({line.get("curriculum/chain_sum/level") for line in logged(tmp_path / "broken")} - {None}) > 1
    assert logged(tmp_path / "broken") == logged(tmp_path / "unbroken")
    assert logged(tmp_path / "broken", "rollouts.jsonl") == logged(tmp_path / "unbroken", "rollouts.jsonl")
    assert second.curriculum.state == unbroken.curriculum.state


def test_checkpoints_of_another_curriculum_are_refused(fresh: Any, tmp_path: Path) -> None:
    """A checkpoint is rejected if the curriculum differs, if only one of the runs has one, or if the checkpoint's file
    is damaged."""
    train(fresh("with", QUICK, max_steps=1), evaluation=EvaluationPlan(every=100))
    train(fresh("without", None, max_steps=1), evaluation=EvaluationPlan(every=100))
    for curriculum, folder, message in (
        ({**QUICK, "window": 4}, "with", "its curriculum is different"),
        (None, "with", "its curriculum is different, or only one of the two runs has a curriculum"),
        (QUICK, "without", "its curriculum is different, or only one of the two runs has a curriculum"),
    ):
        with pytest.raises(InputError, match=message):
            train(fresh(folder, curriculum), resume=tmp_path / folder / "checkpoint-1")
    levels = tmp_path / "with" / "checkpoint-1" / "curriculum.json"
    for text in ('{"tasks": ', "x" * levels.stat().st_size):  # first truncated, then damaged but of the same size
        levels.write_text(text)
        with pytest.raises(InputError, match=r"curriculum.* damaged") as caught:
            train(fresh("with", QUICK), resume=tmp_path / "with" / "checkpoint-1")
        assert "\n" not in str(caught.value)
