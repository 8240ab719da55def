"""Monitors in real runs of the tiny policy: they see what it does, and end the run where asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from process_scripts import run_script, told, torchrun
from run_metrics import logged, results_of
from transformers import AutoModelForCausalLM

from rg_env.cli.main import run as rg_env
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, MonitorCallback, MonitorsConfig, train

NONE = EvaluationPlan(before=False, after=False, every=0)
CONFIG = Path(__file__).parents[2] / "configs" / "train" / "tiny.yaml"


@pytest.fixture
def hacked(make_trainer: Any, make_env: Any, tmp_path: Path) -> Callable[..., Any]:
    """A trainer as in a new process that is paid for short answers above all; `folder` is under `tmp_path`."""

    short = {"name": "length", "weight": 1.0, "options": {"max_tokens": 40}}

    def make(folder: str, **fields: Any) -> Any:
        return make_trainer(
            model=AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32),
            env=make_env(rewards=[("correctness", 0.1), short], num_train_examples=64),
            output_dir=str(tmp_path / folder),
            **{
                "max_steps": 20,
                "learning_rate": 5e-5,
                "rollouts_per_step": 32,
                "per_device_train_batch_size": 16,
                "num_generations": 8,
                "max_tokens": 60,
                **fields,
            },
        )

    return make


@pytest.mark.slow
def test_a_reward_that_is_hacked_is_found_out_and_ends_the_run(
    hacked: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the rule and what is paid in one line, the last evaluation, a checkpoint and the results."""
    config = MonitorsConfig(window=5, stop_on=["reward_hacking"])
    results = train(hacked("run"), evaluation=EvaluationPlan(every=0), monitors=config)
    step = results["steps"]
    assert 5 <= step < 20
    assert (results["stopped_by"], results["interrupted"], results["error"]) == ("reward_hacking", False, None)
    (line,) = [line for line in results["monitors"] if "reward_hacking" in line]
    printed = capsys.readouterr().out
    assert f"\n{line} (the run ends here: monitors.stop_on)\n" in printed
    assert f"Stopped by monitor reward_hacking after {step} steps" in printed
    assert line.startswith(f"step {step}: monitor reward_hacking: reward rose from 0.")
    assert "and accuracy did not (0." in line
    assert ": it is length that rose (0." in line
    assert line.endswith("lower rewards.length.weight, or set rewards.length.when=correct")
    assert results_of(tmp_path / "run") == results
    assert (results["eval_before"]["step"], results["eval_after"]["step"]) == (0, step)
    assert (tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json").exists()

    # In two parts the same is found at the same step; and a run that was ended so goes on when told to.
    train(hacked("broken", max_steps=3), evaluation=NONE, monitors=config)
    broken = train(hacked("broken"), evaluation=NONE, monitors=config, resume="auto")
    assert (broken["steps"], broken["stopped_by"], broken["monitors"]) == (step, "reward_hacking", results["monitors"])
    capsys.readouterr()
    more = train(hacked("broken", max_steps=step + 1), evaluation=NONE, monitors=config, resume="auto")
    assert (more["steps"], more["stopped_by"]) == (step + 1, None)
    assert line in more["monitors"]
    assert line not in capsys.readouterr().out


def test_what_rules_look_at_is_logged(make_trainer: Any, make_env: Any, tmp_path: Path) -> None:
    """Shares of answers and forms, whatever they are paid; of each status; the largest ratio after several updates."""
    paid = [("correctness", 1.0), "length", {"name": "think_format", "weight": 0.1, "when": "correct"}]
    train(make_trainer(env=make_env(rewards=paid), num_iterations=2, beta=0.1), evaluation=NONE)
    first, second = [line for line in logged(tmp_path / "run") if "loss" in line]
    assert {"reward", "accuracy", "frac_reward_zero_std", "completions/clipped_ratio", "kl"} <= set(first)
    statuses = {name: share for name, share in first.items() if name.startswith("status/")}
    assert sum(statuses.values()) + first["accuracy"] == pytest.approx(1)
    assert 0 < first["completions/answered_ratio"] == pytest.approx(1 - statuses["status/no_answer"])
    assert first["completions/format_ratio"] == 0, "the tiny policy knows no <think>"
    assert first["policy_ratio/max"] == pytest.approx(1, abs=1e-4), "nothing was updated yet"
    assert second["policy_ratio/max"] > 1.001
    assert first["skipped_steps"] == second["skipped_steps"] == 0


def test_a_stop_is_a_failed_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; the run's config records the monitors."""
    folder = tmp_path / "run"
    small = ["training.per_device_train_batch_size=8", "training.max_steps=9", "splits.num_eval_examples=0"]
    watched = ["window=2", "length_drift=1e9", "zero_variance=0", "stop_on=[zero_variance]"]
    overrides = [*small, *(f"monitors.{each}" for each in watched), f"output.dir={folder}"]
    assert rg_env(["train", str(CONFIG), *overrides]) == 1
    assert results_of(folder)["steps"] == 2
    assert "step 2: monitor zero_variance: " in capsys.readouterr().out
    assert [line.get("monitor/zero_variance") for line in logged(folder) if "loss" in line] == [None, 1.0]
    assert "length_drift: 1000000000.0" in (folder / "config.yaml").read_text()


def test_monitors_alone(make_trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """As a trainer callback, without `train()`; each call of the trainer's `train` starts over."""
    watch = MonitorCallback(MonitorsConfig(window=2, zero_variance=0.0, stop_on=["zero_variance"]))
    trainer = make_trainer(max_steps=5, max_tokens=8, callbacks=[watch])
    for _ in range(2):
        trainer.train()
        assert trainer.state.global_step == 2
        assert watch.stopped_by == "zero_variance"
        assert [alarm.step for alarm in watch.alarms if alarm.rule == "zero_variance"] == [2]
    assert capsys.readouterr().out.count("monitor zero_variance: ") == 2
    looked_at = {"kl", "sampling/mismatch_kl", "policy_ratio/max", "completions/format_ratio"}
    assert not looked_at & set(trainer.state.log_history[0]), "what `without_effect` says of the options here"


def test_monitors_of_the_trainer_are_those_of_the_run(make_trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was given to the trainer is not doubled by `train`."""
    watch = MonitorCallback(MonitorsConfig(window=2, zero_variance=0.0, stop_on=["zero_variance"]))
    results = train(make_trainer(max_steps=5, max_tokens=8, callbacks=[watch]), evaluation=NONE)
    assert (results["steps"], results["stopped_by"]) == (2, "zero_variance")
    assert capsys.readouterr().out.count("monitor zero_variance: ") == 1


SCRIPT = """
from rg_env.training import MonitorCallback, MonitorsConfig


class Watch(TrainerCallback):
    kept = {}

    def on_step_end(self, args, state, control, model, **kwargs):
        self.kept[state.global_step] = [weight.detach().clone() for weight in model.parameters()]


class Poison:
    passes = -1

    def __call__(self, module, args, output):
        if torch.is_grad_enabled():
            self.passes += 1
            if RANK == "1" and self.passes == 3:
                output.last_hidden_state = output.last_hidden_state * math.nan
        return output


def main():
    policy = load_policy("tiny")
    env = ReasoningGym(policy.mixture("leg_counting"), num_train_examples=64, num_eval_examples=0)
    args = arguments(policy, "run", max_steps=500, max_tokens=8)
    config = MonitorsConfig(window=4, zero_variance=0.0, stop_on=["zero_variance"])
    watch = MonitorCallback(config)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="embedded", callbacks=[Watch(), watch])
    policy.model.model.register_forward_hook(Poison())
    train(trainer, evaluation=NONE)
    kept = Watch.kept
    assert all(map(torch.equal, kept[1], kept[2])), "a pass of one process was not finite"
    assert not all(map(torch.equal, kept[2], kept[3]))
    assert (watch.stopped_by, trainer.state.global_step) == ("zero_variance", 4)
    tell("ended")

run_command(main)
"""


@pytest.mark.slow
def test_two_processes_skip_and_stop_together(tmp_path: Path) -> None:
    """A pass that is not finite on the second process is skipped by both; what the first one's monitors find ends
    both after the same step, with one checkpoint and one line."""
    done = run_script(tmp_path, torchrun(2), SCRIPT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert told(tmp_path) == [["ended"], ["ended"]]
    assert done.stdout.count("step 2: skipped, non-finite loss") == 1
    assert done.stdout.count("monitor zero_variance: ") == 1
    assert results_of(tmp_path / "run")["stopped_by"] == "zero_variance"
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-4"]
    assert [line["skipped_steps"] for line in logged(tmp_path / "run") if "reward" in line] == [0, 1, 1, 1]
