"""Monitor rules on scripted metrics: for each rule, runs that make it fire and runs that do not."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_metrics import logged, results_of
from transformers import AutoModelForCausalLM

from rg_env.cli.main import run as rg_env
from rg_env.core.rewards import get_reward
from rg_env.errors import InputError
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, MonitorCallback, train
from rg_env.training.config.schema import MonitorsConfig, TrainConfig
from rg_env.training.monitors import RULES

Course = float | Callable[[int], float]
"""A metric's value, or a function of the step (from 1)."""


def records(steps: int, **courses: Course) -> list[dict[str, Any]]:
    """Return lines of metrics.jsonl; `__` in a metric's name means `/`."""
    named = {name.replace("__", "/"): course for name, course in courses.items()}
    return [
        {"step": step, "loss": 0.1}
        | {name: course(step) if callable(course) else course for name, course in named.items()}
        for step in range(1, steps + 1)
    ]


def lines(run: Iterable[dict[str, Any]], **config: Any) -> list[str]:
    """Return the lines that the monitors print about a run."""
    monitors = MonitorCallback(MonitorsConfig(**config))
    return [alarm.line for record in run for alarm in monitors.see(record)]


def uneven(value: float, by: float = 0.02) -> Callable[[int], float]:
    """Noisy values around a mean, like measured figures."""
    return lambda step: value + (by if step % 2 else -by)


def then(before: float, after: float, at: int = 10, by: float = 0.02) -> Callable[[int], float]:
    """Noisy values around one mean up to a step and around another after it."""
    return lambda step: uneven(before if step <= at else after, by)(step)


def slope(start: float, by: float, noise: float = 0.0) -> Callable[[int], float]:
    """A straight line over the steps, with noise as in measured figures."""
    return lambda step: uneven(start + by * step, noise)(step)


def spike(usual: float, value: float, at: int = 15) -> Callable[[int], float]:
    return lambda step: value if step == at else usual


FIRES: list[tuple[str, int, list[dict[str, Any]], list[str]]] = [
    # rule, step, run, parts of the message
    ("zero_variance", 10, records(10, frac_reward_zero_std=1.0, accuracy=0.97),
     ["100% of groups had equal rewards: the tasks are too easy", "(accuracy 0.97); raise tasks.NAME.level"]),
    ("zero_variance", 10, records(10, frac_reward_zero_std=1.0, accuracy=0.01), ["too hard", "lower tasks.NAME.level"]),
    ("zero_variance", 10, records(10, frac_reward_zero_std=1.0, accuracy=1.0, curriculum__chain_sum__level=3),
     ["lower curriculum.success_threshold"]),
    ("zero_variance", 10, records(10, frac_reward_zero_std=1.0, accuracy=0.0, curriculum__chain_sum__level=3),
     ["raise curriculum.failure_threshold"]),
    ("zero_variance", 10, records(10, frac_reward_zero_std=1.0, accuracy=0.5),
     ["all right or all wrong", "raise training.temperature, or set training.filter_groups=true"]),
    ("zero_variance", 10, records(10, frac_reward_zero_std=1.0), ["answers receive the same reward; change rewards"]),
    ("answer_rate", 10, records(10, completions__answered_ratio=0.2, completions__clipped_ratio=0.1),
     ["only 20% of completions had a well-formed answer", "prompt.system_prompt, or raise rewards.format.weight"]),
    ("answer_rate", 10, records(10, completions__answered_ratio=0.2, completions__clipped_ratio=0.7),
     ["70% were cut off by the token limit; raise training.max_tokens"]),
    ("truncation", 10, records(10, completions__clipped_ratio=0.25, completions__mean_length=uneven(400, 5)),
     ["25% of completions were cut off: the token limit is too low for this task; raise training.max_tokens"]),
    ("truncation", 10, records(10, completions__clipped_ratio=0.25, completions__mean_length=slope(400, 10)),
     ["completions are getting longer; raise training.max_tokens, or add rewards.overlong_penalty"]),
    ("entropy_collapse", 20, records(20, entropy=then(0.3, 0.002, by=0.001), accuracy=uneven(0.41)),
     ["fell from 0.3 to 0.002 nats per token, and accuracy (0.41) does not rise",
      "lower training.learning_rate, or raise training.temperature"]),
    ("reward_hacking", 20,
     records(20, reward=then(0.5, 0.9), accuracy=uneven(0.31), rewards__correctness__mean=uneven(0.31),
             rewards__talk__mean=then(0.2, 0.6), rewards__format__mean=1.0),
     ["from 0.50 to 0.90 since the previous window, and accuracy did not (0.31 to 0.31): talk rose (0.20 to 0.60); ",
      "lower rewards.talk.weight, or set rewards.talk.when=correct"]),
    ("reward_hacking", 20, records(20, reward=then(0.5, 0.57), accuracy=then(0.5, 0.2)),
     ["from 0.50 to 0.57", "rewarded for something other than correct answers; check rewards"]),
    ("reward_hacking", 35, records(60, reward=slope(0.5, 0.002, noise=0.02), accuracy=slope(0.5, -0.002, noise=0.02)),
     ["from 0.51 to 0.56 since the start"]),
    ("kl_spike", 15, records(20, kl=spike(0.0, float("inf"))),
     ["kl is 1e+30", "lower training.learning_rate or training.max_grad_norm"]),
    ("kl_spike", 15, records(20, sampling__mismatch_kl=spike(0.001, 0.4)),
     ["sampling/mismatch_kl is 0.4, and its median over the last window is 0.001", "lower engine.num_batches_ahead"]),
    ("grader_timeouts", 10, records(10, status__timed_out=0.05), ["5% of answers took too long to grade"]),
    ("ungradable", 10, records(10, status__ungradable=0.05),
     ["5% of answers could not be graded", "rollouts.jsonl contains the reasons", "without splits.manifest"]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "step", "run", "parts"), FIRES, ids=[f"{each[0]}-{each[1]}" for each in FIRES])
def test_a_rule_fires_with_cause_and_key(rule: str, step: int, run: list[dict[str, Any]], parts: list[str]) -> None:
    (line,) = lines(run, off=[name for name in RULES if name != rule])
    assert line.startswith(f"step {step}: monitor {rule}: ")
    assert all(part in line for part in parts)


SILENT: list[tuple[str, list[dict[str, Any]]]] = [
    ("zero_variance: below the threshold", records(30, frac_reward_zero_std=0.89, accuracy=0.97)),
    ("answer_rate: rising", records(30, completions__answered_ratio=slope(0.0, 0.03))),
    ("truncation: below the threshold", records(30, completions__clipped_ratio=0.19)),
    ("entropy_collapse: solved", records(30, entropy=then(0.3, 0.002, by=0.001), accuracy=uneven(0.9))),
    ("entropy_collapse: accuracy rises", records(20, entropy=then(0.3, 0.002, by=0.001), accuracy=slope(0, 0.02))),
    ("reward_hacking: accuracy rises as well", records(30, reward=then(0.5, 9.0), accuracy=then(0.4, 0.5))),
    ("reward_hacking: small gain", records(30, reward=then(0.5, 0.58, by=0.03), accuracy=uneven(0.4))),
    ("reward_hacking: reward falls with accuracy", records(30, reward=then(0.9, 0.5), accuracy=then(0.8, 0.4))),
    ("reward_hacking: no accuracy", records(30, reward=then(0.5, 0.9))),
    ("kl_spike: small in absolute terms", records(30, kl=spike(0.0001, 0.09))),
    ("kl_spike: usually large", records(30, kl=spike(0.5, 2.0))),
    ("grader_timeouts: below the threshold", records(30, status__timed_out=0.01)),
    ("ungradable: below the threshold", records(30, status__ungradable=0.01)),
]  # fmt: skip


@pytest.mark.parametrize("run", [run for _, run in SILENT], ids=[name for name, _ in SILENT])
def test_a_rule_does_not_fire_in_a_healthy_run(run: list[dict[str, Any]]) -> None:
    assert lines(run) == []


def test_every_rule_has_a_threshold_and_runs_and_suggests_existing_keys() -> None:
    """Messages name keys of a config, in which NAME is the name of a task."""
    assert MonitorsConfig.rule_names() == list(RULES)
    assert {rule for rule, *_ in FIRES} == {name.split(":")[0] for name, _ in SILENT} == set(RULES)
    sections = {name: field.annotation for name, field in TrainConfig.model_fields.items()}
    messages = " ".join(line for _, _, run, _ in FIRES for line in lines(run))
    named = set(re.findall(r"\b([a-z]+)\.([a-z_]+)", messages))
    assert all(get_reward(name) for section, name in named if section == "rewards" and name != "talk")
    keys = {(section, name) for section, name in named if section in sections and section != "rewards"}
    assert len(keys) >= 10
    for section, name in keys:
        assert name in (get_args(sections[section])[0] if section == "curriculum" else sections[section]).model_fields


def test_a_rule_fires_again_only_after_its_condition_was_false() -> None:
    """An alarm is reported once, even if its condition wavers."""
    wavers = records(60, frac_reward_zero_std=lambda step: 1.0 if step % 20 < 16 else 0.6, accuracy=1.0)
    assert len(lines(wavers)) == 1
    again = records(60, frac_reward_zero_std=lambda step: float(step <= 10 or step > 40), accuracy=1.0)
    assert [line.split(":")[0] for line in lines(again)] == ["step 10", "step 49"]


def test_thresholds_and_windows_are_those_of_the_config() -> None:
    run = records(30, frac_reward_zero_std=0.6, accuracy=0.9)
    assert [line.split(":")[0] for line in lines(run, zero_variance=0.6, window=4)] == ["step 4"]
    assert lines(run, zero_variance=0.61, window=4) == []
    worst = records(10, frac_reward_zero_std=1.0, accuracy=1.0, status__ungradable=1.0)
    assert [len(lines(worst, off=off)) for off in ([], ["zero_variance"], ["all"])] == [2, 1, 0]


def test_windows_count_logged_steps() -> None:
    """Metrics of a batch used for two steps are logged only once, and evaluations between steps are ignored."""
    run = records(40, kl=0.01)
    for record in run[::2]:
        record["frac_reward_zero_std"] = 1.0
    assert [line.split(":")[0] for line in lines(run)] == ["step 19"]
    evaluations = [{"step": 0, "eval/accuracy": 0.5, "frac_reward_zero_std": 1.0}] * 30
    assert lines(evaluations) == []


anything = st.one_of(
    st.floats(), st.integers(), st.none(), st.text(max_size=3), st.booleans(), st.just(10**400), st.just(-1e308)
)
metrics = st.sampled_from(sorted({name for _, _, run, _ in FIRES for name in run[0]} | {"rewards//mean", "epoch"}))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.dictionaries(metrics, anything), max_size=15))
def test_no_metrics_make_a_rule_fail(run: list[dict[str, Any]]) -> None:
    """No combination of logged and missing metrics makes a monitor raise an error."""
    for line in lines([{"loss": 0.0, **record} for record in run], window=3):
        assert "\n" not in line


def test_unknown_monitors_are_reported() -> None:
    """The error suggests the nearest name. A monitor cannot both be off and end the run."""
    for field in ("off", "stop_on"):
        with pytest.raises(InputError, match="unknown monitor 'reward_hack': did you mean 'reward_hacking'"):
            MonitorsConfig(**{field: ["reward_hack"]})
    with pytest.raises(InputError, match=r"kl_spike is off: remove it from monitors\.off"):
        MonitorsConfig(off=["kl_spike"], stop_on=["kl_spike"])


# --- monitors in real runs of the tiny policy


NONE = EvaluationPlan(before=False, after=False, every=0)
CONFIG = Path(__file__).parents[2] / "configs" / "train" / "tiny.yaml"


@pytest.fixture
def hacked(make_trainer: Any, make_env: Any, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that makes a trainer, as in a new process, that rewards mainly short answers. `folder` is under
    `tmp_path`."""

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
def test_reward_hacking_is_detected_and_ends_the_run(
    hacked: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The alarm names the rule and the reward, and the run still makes its last evaluation, a checkpoint and its
    results."""
    config = MonitorsConfig(window=5, stop_on=["reward_hacking"])
    results = train(hacked("run"), evaluation=EvaluationPlan(every=0), monitors=config)
    step = results["steps"]
    assert 5 <= step < 20
    assert (results["stopped_by"], results["interrupted"], results["error"]) == ("reward_hacking", False, None)
    (line,) = [line for line in results["monitors"] if "reward_hacking" in line]
    printed = capsys.readouterr().out
    assert f"\n{line} (ends the run: see monitors.stop_on)\n" in printed
    assert f"Stopped by monitor reward_hacking after {step} steps" in printed
    assert line.startswith(f"step {step}: monitor reward_hacking: reward rose from 0.")
    assert "and accuracy did not (0." in line
    assert ": length rose (0." in line
    assert line.endswith("lower rewards.length.weight, or set rewards.length.when=correct")
    assert results_of(tmp_path / "run") == results
    assert (results["eval_before"]["step"], results["eval_after"]["step"]) == (0, step)
    assert (tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json").exists()

    # A run in two parts ends at the same step, and a run that a monitor ended can be resumed with more steps.
    train(hacked("broken", max_steps=3), evaluation=NONE, monitors=config)
    broken = train(hacked("broken"), evaluation=NONE, monitors=config, resume="auto")
    assert (broken["steps"], broken["stopped_by"], broken["monitors"]) == (step, "reward_hacking", results["monitors"])
    capsys.readouterr()
    more = train(hacked("broken", max_steps=step + 1), evaluation=NONE, monitors=config, resume="auto")
    assert (more["steps"], more["stopped_by"]) == (step + 1, None)
    assert line in more["monitors"]
    assert line not in capsys.readouterr().out


def test_the_metrics_of_the_rules_are_logged(make_trainer: Any, make_env: Any, tmp_path: Path) -> None:
    """The shares of answers, formats and statuses are logged regardless of the rewards, as is the largest ratio after
    several updates."""
    rewards = [("correctness", 1.0), "length", {"name": "think_format", "weight": 0.1, "when": "correct"}]
    train(make_trainer(env=make_env(rewards=rewards), num_iterations=2, beta=0.1), evaluation=NONE)
    first, second = [line for line in logged(tmp_path / "run") if "loss" in line]
    assert {"reward", "accuracy", "frac_reward_zero_std", "completions/clipped_ratio", "kl"} <= set(first)
    statuses = {name: share for name, share in first.items() if name.startswith("status/")}
    assert sum(statuses.values()) + first["accuracy"] == pytest.approx(1)
    assert 0 < first["completions/answered_ratio"] == pytest.approx(1 - statuses["status/no_answer"])
    assert first["completions/format_ratio"] == 0, "the tiny policy never writes <think>"
    assert first["policy_ratio/max"] == pytest.approx(1, abs=1e-4), "nothing was updated yet"
    assert second["policy_ratio/max"] > 1.001
    assert first["skipped_steps"] == second["skipped_steps"] == 0


@pytest.mark.slow
def test_a_stop_by_a_monitor_exits_with_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run's config records the settings of the monitors."""
    folder = tmp_path / "run"
    small = ["training.per_device_train_batch_size=8", "training.max_steps=9", "splits.num_eval_examples=0"]
    watched = ["window=2", "kl_spike=1e9", "zero_variance=0", "stop_on=[zero_variance]"]
    overrides = [*small, *(f"monitors.{each}" for each in watched), f"output.dir={folder}"]
    assert rg_env(["train", str(CONFIG), *overrides]) == 1
    assert results_of(folder)["steps"] == 2
    assert "step 2: monitor zero_variance: " in capsys.readouterr().out
    assert [line.get("monitor/zero_variance") for line in logged(folder) if "loss" in line] == [None, 1.0]
    assert "kl_spike: 1000000000.0" in (folder / "config.yaml").read_text()


def test_a_monitor_works_as_a_callback_alone(make_trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A monitor does not need `rg_env.training.train`, and each call of the trainer's `train` starts over."""
    watch = MonitorCallback(MonitorsConfig(window=2, zero_variance=0.0, stop_on=["zero_variance"]))
    trainer = make_trainer(max_steps=5, max_tokens=8, callbacks=[watch])
    for _ in range(2):
        trainer.train()
        assert trainer.state.global_step == 2
        assert watch.stopped_by == "zero_variance"
        assert [alarm.step for alarm in watch.alarms if alarm.rule == "zero_variance"] == [2]
    assert capsys.readouterr().out.count("monitor zero_variance: ") == 2
    assert not {"kl", "sampling/mismatch_kl"} & set(trainer.state.log_history[0])


def test_a_monitor_of_the_trainer_is_not_added_again(make_trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    watch = MonitorCallback(MonitorsConfig(window=2, zero_variance=0.0, stop_on=["zero_variance"]))
    results = train(make_trainer(max_steps=5, max_tokens=8, callbacks=[watch]), evaluation=NONE)
    assert (results["steps"], results["stopped_by"]) == (2, "zero_variance")
    assert capsys.readouterr().out.count("monitor zero_variance: ") == 1
