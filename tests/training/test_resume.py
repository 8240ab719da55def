"""Runs that resume from a checkpoint continue as if they had never stopped."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from interrupts import At, ctrl_c, ctrl_c_in_a_backward_pass
from run_metrics import evaluations_of, logged, results_of
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rg_env.errors import InputError
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, train
from rg_env.training.checkpointing.checkpoints import random_numbers, set_random_numbers

pytestmark = pytest.mark.slow


@pytest.fixture
def fresh(make_trainer: Any, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that makes a trainer, as in a new process. `folder` is under `tmp_path`."""

    def make(folder: str, *, lora: bool = False, model: Any = None, **fields: Any) -> Any:
        from peft import LoraConfig

        torch.manual_seed(0)
        model = model or AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
        config = LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1, task_type="CAUSAL_LM")
        return make_trainer(
            model=model,
            peft_config=config if lora else None,
            output_dir=str(tmp_path / folder),
            **{"max_steps": 6, "learning_rate": 1e-3, "lr_scheduler_type": "linear", "max_tokens": 12, **fields},
        )

    return make


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of uninterrupted runs that the cases of a test share."""
    return tmp_path_factory.mktemp("kept")


def check_same_run(one: Path, other: Path, step: int) -> None:
    """Metrics, rollouts and the weights at `step` are bit-identical."""
    assert logged(one) == logged(other)
    assert logged(one, "rollouts.jsonl") == logged(other, "rollouts.jsonl")
    weights = [load_file(run / f"checkpoint-{step}" / "model.safetensors") for run in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


def same_weights(one: Any, other: Any) -> bool:
    pairs = zip(one.model.state_dict().items(), other.model.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lora": True},
        {"num_iterations": 2, "filter_groups": True, "beta": 0.05, "kl_reference": "previous"},
        {"max_steps": 12, "rollouts_per_step": 8, "num_generations": 2},
    ],
    ids=["full", "lora", "two updates per batch, filtered, KL to the previous policy", "several epochs"],
)
def test_a_resumed_run_matches_an_uninterrupted_one(fresh: Any, tmp_path: Path, fields: dict[str, Any]) -> None:
    """Metrics, rollouts, evaluations and weights are bit-identical to those of an uninterrupted run, also when resuming
    in the middle of a batch."""
    stops = 3 if fields.get("max_steps") is None else 10
    options = {"save_steps": stops, **fields}
    unbroken = fresh("unbroken", **options)
    assert not train(unbroken, evaluation=EvaluationPlan(every=2))["interrupted"], "a signal from outside"

    first = fresh("broken", **options)
    first.add_callback(At(stops + 1, lambda: 1 / 0, "on_step_end"))
    with pytest.raises(ZeroDivisionError):
        train(first, evaluation=EvaluationPlan(every=2))
    for extra in (tmp_path / "broken").glob(f"checkpoint-{stops + 1}"):
        extra.rename(tmp_path / "not saved: the process was killed")

    second = fresh("broken", **options)
    results = train(second, evaluation=EvaluationPlan(every=2), resume="auto")
    assert results["resumed_from"].endswith(f"checkpoint-{stops}")
    assert not results["interrupted"]
    assert logged(tmp_path / "broken") == logged(tmp_path / "unbroken")
    assert logged(tmp_path / "broken", "rollouts.jsonl") == logged(tmp_path / "unbroken", "rollouts.jsonl")
    assert evaluations_of(tmp_path / "broken") == evaluations_of(tmp_path / "unbroken")
    assert same_weights(unbroken, second)


@pytest.mark.parametrize(
    ("event", "at"),
    [
        pytest.param("on_step_begin", 3, marks=pytest.mark.full_matrix),
        ("backward pass", 3),
        pytest.param("on_optimizer_step", 2, marks=pytest.mark.full_matrix),
        ("on_log", 3),
    ],
)
def test_an_interrupted_run_also_resumes_exactly(fresh: Any, kept: Path, tmp_path: Path, event: str, at: int) -> None:
    """Ctrl-C may come between steps, in the middle of a step, during an update, or before the step's metrics are
    written."""
    unbroken = kept / "interrupted"
    if not unbroken.exists():
        train(fresh(str(unbroken)), evaluation=EvaluationPlan(every=3))
    first = fresh("broken")
    if event == "backward pass":
        ctrl_c_in_a_backward_pass(first, at)
    else:
        first.callbacks = [At(at, ctrl_c, event), *first.callbacks]
    assert train(first, evaluation=EvaluationPlan(every=3))["interrupted"]
    train(fresh("broken"), evaluation=EvaluationPlan(every=3), resume=tmp_path / "broken" / "checkpoint-3")
    check_same_run(tmp_path / "broken", unbroken, 6)


def test_a_run_killed_in_its_last_evaluation_can_be_resumed(fresh: Any, tmp_path: Path) -> None:
    """The evaluation is run again, and the run then ends."""
    train(fresh("unbroken", max_steps=2), evaluation=EvaluationPlan(every=0))
    first = fresh("broken", max_steps=2)
    generate = first.engine.generate
    first.engine.generate = lambda *args: 1 / 0 if first.state.global_step == 2 else generate(*args)
    with pytest.raises(ZeroDivisionError):
        train(first, evaluation=EvaluationPlan(every=0))
    (tmp_path / "broken" / "train_results.json").unlink()  # a killed run does not write its results
    results = train(fresh("broken", max_steps=2), evaluation=EvaluationPlan(every=0), resume="auto")
    assert (results["steps"], results["eval_after"]["step"], results["error"]) == (2, 2, None)
    assert logged(tmp_path / "broken") == logged(tmp_path / "unbroken")
    assert evaluations_of(tmp_path / "broken") == evaluations_of(tmp_path / "unbroken")


def test_a_complete_run_has_nothing_to_resume(fresh: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `auto`, the run's results are returned unchanged, so that a restarted job succeeds. Resuming from an
    explicit checkpoint is an error."""
    plan = EvaluationPlan(every=0, before=False)
    results = train(fresh("run", max_steps=2), evaluation=plan)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert train(fresh("run", max_steps=2), evaluation=plan, resume="auto") == results
    assert "run is complete, at step 2 of 2; increase max_steps to continue" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    with pytest.raises(InputError, match="already at step 2 of 2; increase max_steps to continue"):
        train(fresh("run", max_steps=2), evaluation=plan, resume=tmp_path / "run" / "checkpoint-2")


@pytest.mark.parametrize("event", ["on_optimizer_step", "on_step_begin"])
def test_two_signals_at_once_are_one_request(fresh: Any, tmp_path: Path, event: str) -> None:
    """A closed terminal or a scheduler may send two signals, during an update or between updates; the run is saved."""
    trainer = fresh("run")

    def two() -> None:
        ctrl_c()
        os.kill(os.getpid(), signal.SIGTERM)

    trainer.callbacks = [At(2, two, event), *trainer.callbacks]
    results = train(trainer, evaluation=EvaluationPlan(before=False, after=False, every=0))
    assert (results["interrupted"], results["steps"] >= 2) == (True, True)
    assert (tmp_path / "run" / f"checkpoint-{results['steps']}").is_dir()


@pytest.mark.parametrize("comes", ["when weights are in", "before they come back", "before the update"])
def test_ctrl_c_never_corrupts_the_previous_policy(fresh: Any, kept: Path, tmp_path: Path, comes: str) -> None:
    """The run does not end while the previous weights are in the model, or between copying the weights and updating
    them."""
    options = {"beta": 0.05, "kl_reference": "previous", "max_steps": 4}
    none = EvaluationPlan(before=False, after=False, every=0)
    unbroken = kept / "previous"
    if not unbroken.exists():
        train(fresh(str(unbroken), **options), evaluation=none)
    first = fresh("broken", **options)
    swap, loss_of, calls = first.reference._swap, first._loss, {"swap": 0, "loss": 0}

    def now(kind: str, number: int, moment: str) -> None:
        if (calls[kind], moment) == (number, comes):
            ctrl_c()

    def swapping() -> None:  # called twice per step, from the second step on
        calls["swap"] += 1
        now("swap", 4, "before they come back")
        swap()
        now("swap", 3, "when weights are in")

    def computing(part: Any) -> Any:  # called twice per step
        calls["loss"] += 1
        now("loss", 6, "before the update")
        return loss_of(part)

    first.reference._swap, first._loss = swapping, computing
    results = train(first, evaluation=none)
    assert (results["interrupted"], results["steps"] < 4) == (True, True)
    train(fresh("broken", **options), evaluation=none, resume="auto")
    check_same_run(tmp_path / "broken", unbroken, 4)


def test_resuming_keeps_the_files_of_the_first_part(fresh: Any, tmp_path: Path) -> None:
    """config.yaml has the settings of the last start. A line that was cut off when the run was killed is removed."""
    train(
        fresh("run", max_steps=2, lr_scheduler_type="constant"),
        evaluation=EvaluationPlan(every=10),
        settings={"note": "first"},
    )
    run = tmp_path / "run"
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    train(fresh("run", max_steps=3, lr_scheduler_type="constant"), settings={"note": "second"}, resume="auto")
    assert yaml.safe_load((run / "config.yaml").read_text())["note"] == "second"
    assert [line["step"] for line in logged(run) if "reward" in line] == [1, 2, 3]
    assert results_of(run)["eval_before"]["step"] == 0


def test_a_run_can_resume_in_another_folder(fresh: Any, tmp_path: Path) -> None:
    """The folder of the first run is not changed."""
    train(fresh("one", max_steps=1, lr_scheduler_type="constant"), evaluation=EvaluationPlan(every=10))
    before = sorted(path.name for path in (tmp_path / "one").rglob("*"))
    trainer = fresh("two", max_steps=2, lr_scheduler_type="constant")
    train(trainer, evaluation=EvaluationPlan(every=10), resume=tmp_path / "one" / "checkpoint-1")
    assert trainer.state.global_step == 2
    assert sorted(path.name for path in (tmp_path / "one").rglob("*")) == before
    assert (tmp_path / "two" / "config.yaml").exists()


def test_auto_starts_over_without_a_checkpoint(fresh: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message is printed, and records of an earlier run that saved no checkpoint are removed."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "reward": 7}\n')
    train(fresh("run", max_steps=1), evaluation=EvaluationPlan(every=10), resume="auto")
    assert "no checkpoint in" in capsys.readouterr().out
    assert [line["step"] for line in logged(tmp_path / "run") if "reward" in line] == [1]


def test_a_custom_scheduler_resumes(fresh: Any, tmp_path: Path) -> None:
    """The state of the user's scheduler and the learning rate of each parameter group are restored."""

    def trainer(folder: str) -> Any:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
        parameters = list(model.parameters())
        groups = [{"params": parameters[:3], "lr": 1e-3}, {"params": parameters[3:], "lr": 1e-4}]
        optimizer = torch.optim.AdamW(groups)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return fresh(folder, model=model, optimizers=(optimizer, scheduler), max_steps=4, save_steps=2)

    none = EvaluationPlan(before=False, after=False, every=0)
    unbroken, resumed = trainer("unbroken"), trainer("resumed")
    train(unbroken, evaluation=none)
    train(resumed, evaluation=none, resume=tmp_path / "unbroken" / "checkpoint-2")
    rates = [line["learning_rate"] for line in logged(tmp_path / "unbroken")]
    assert rates == pytest.approx([1e-3, 5e-4, 2.5e-4, 1.25e-4])
    assert [group["lr"] for group in resumed.optimizer.param_groups] == pytest.approx([6.25e-5, 6.25e-6])
    assert logged(tmp_path / "resumed") == logged(tmp_path / "unbroken")[2:]
    assert same_weights(unbroken, resumed)


def test_a_run_resumes_with_fewer_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process restores the random state of the GPU that it uses, which may have had another index before. A run that
    was saved on a GPU also resumes without one."""
    gpus = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cuda: Any = {"_lazy_init": lambda: None, "_lazy_call": lambda call, **_: call(), "device_count": lambda: len(gpus)}
    for name, value in (*cuda.items(), ("current_device", lambda: len(gpus) - 1)):
        monkeypatch.setattr(torch.cuda.random, name, value)
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    state = random_numbers()
    drawn = torch.rand(4, generator=gpus[1])
    del gpus[0]
    gpus[0].manual_seed(3)
    set_random_numbers(state)
    assert torch.equal(torch.rand(4, generator=gpus[0]), drawn)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    set_random_numbers(state)
