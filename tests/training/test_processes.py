"""Training in several processes on one machine, with DDP over gloo and with ZeRO-3."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from process_scripts import CONFIGS, HEAD, WITHIN_S, accelerate, run, run_script, start, told, torchrun
from run_metrics import logged, results_of
from safetensors.torch import load_file

from rg_env.tiny import POLICY_DIR

pytestmark = [pytest.mark.slow, pytest.mark.timeout(WITHIN_S + 60), pytest.mark.usefixtures("forks")]

CURRICULUM = """
def main():
    policy = load_policy("tiny")
    env = ReasoningGym(policy.mixture("chain_sum"), num_train_examples=64, num_eval_examples=8)
    config = CurriculumConfig(tasks={"chain_sum": {}}, window=4, success_threshold=0.1, failure_threshold=0.0)
    args = arguments(policy, choose_folder("run", "two"), max_steps=500, rollouts_per_step=32, max_tokens=32)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer,
                          curriculum=Curriculum(config, env, 0, gym="chain_sum"))
    return 130 if train(trainer).get("interrupted") else 0

run_command(main)
"""


def test_two_processes_train_and_end_together(tmp_path: Path) -> None:
    """The main process keeps the levels of the curriculum and reports changes once. An interrupt of both processes
    saves one checkpoint and the results, and neither process waits for the other."""
    (tmp_path / "script.py").write_text(HEAD + CURRICULUM)
    process = start(tmp_path, torchrun(2), ["script.py"])
    output = ""
    assert process.stdout
    try:
        for line in process.stdout:
            output += line
            if line.startswith("step   4/"):
                break
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    results = results_of(tmp_path / "run")
    assert results["interrupted"], errors
    assert results["steps"] >= 4
    assert (tmp_path / "run" / f"checkpoint-{results['steps']}" / "trainer_state.json").exists()
    assert (output + rest).count("chain_sum rises to level 1") == 1
    levels = [line["curriculum/chain_sum/level"] for line in logged(tmp_path / "run") if "reward" in line]
    assert levels[0] == 0
    assert levels[-1] >= 1


ENDS = """
def fail(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def make(folder, fault=None, **fields):
    torch.manual_seed(0)
    policy = load_policy("tiny")

    def moody(completion):
        if fault == "reward" and trainer.state.global_step == 1:
            raise KeyError("out of mood")
        return float(len(completion) % 3)

    env = ReasoningGym(policy.mixture("chain_sum"), num_train_examples=64, num_eval_examples=8, rewards=[moody],
                       seed=int(RANK) if fault == "rows" else 0)
    args = arguments(policy, folder, **{"max_steps": 3, "save_steps": 1, **fields})
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer)
    generate, save = trainer.engine.generate, trainer.checkpoints._write_state
    if fault == "engine":
        trainer.engine.generate = lambda *args: fail() if trainer.state.global_step == 1 else generate(*args)
    if fault == "disk" and RANK == "1":
        trainer.checkpoints._write_state = lambda folder: fail() if trainer.state.global_step == 2 else save(folder)
    if fault == "loss":
        loss_of, passes = trainer._loss, iter(range(99))  # two a step
        trainer._loss = lambda part: loss_of(part) * (math.nan if next(passes) == 3 and RANK == "1" else 1)
    return trainer


def main():
    try:
        make("rows", "rows")
    except StoppedTogether as error:
        tell(f"{error.exit_code}: {error}")
    for fault in ("engine", "disk"):
        trainer = make(fault, fault)
        try:
            train(trainer, evaluation=NONE)
        except StoppedTogether as error:
            tell(f"{fault} after step {trainer.state.global_step}: {error}")
    fields = {"beta": 0.05, "kl_reference": "previous", "num_iterations": 2, "max_steps": 4}
    unbroken, resumed = make("unbroken", **fields), make("resumed", **fields)
    train(unbroken, evaluation=NONE)
    train(resumed, evaluation=NONE, resume="unbroken/checkpoint-1")
    assert all(map(torch.equal, unbroken.model.parameters(), resumed.model.parameters()))
    tell("resumed to the bit")
    trainer = make("loss", "loss", max_steps=500)
    watch = MonitorCallback(MonitorsConfig(window=4, zero_variance=0.0, stop_on=["zero_variance"]))
    trainer.add_callback(watch)
    train(trainer, evaluation=NONE)
    tell(f"{watch.stopped_by} after step {trainer.state.global_step}, {trainer.guard.skipped} skipped")
    train(make("reward", "reward"), evaluation=NONE)


run_command(main)
"""


def test_a_failure_in_one_process_ends_all(tmp_path: Path) -> None:
    """Different rows are rejected before anything is written. A failure in a reward, in the engine or on one process's
    disk is reported on one line and leaves the checkpoint of the last complete step. Both processes skip a step that is
    not finite on one of them, and a monitor ends both after the same step. Two processes resume bit-identically."""
    done = run_script(tmp_path, torchrun(2), ENDS)
    first, second = told(tmp_path)
    assert first == second
    rows, engine, disk, resumed, stopped = first
    assert rows.startswith("2: the processes do not train on the same rows")
    assert not (tmp_path / "rows").exists()
    assert engine == "engine after step 1: [Errno 28] No space left on device", done.stderr[-3000:]
    assert disk.startswith("disk after step 2: cannot save checkpoint-2 in disk: No space left on device; earlier")
    assert resumed == "resumed to the bit"
    assert stopped == "zero_variance after step 4, 1 skipped"
    assert done.stdout.count("step 2: skipped, non-finite loss") == done.stdout.count("monitor zero_variance: ") == 1
    assert results_of(tmp_path / "loss")["stopped_by"] == "zero_variance"
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "moody" in error
    for fault in ("engine", "disk", "reward"):
        assert [path.name for path in (tmp_path / fault).glob("checkpoint*")] == ["checkpoint-1"]
    assert "moody" in results_of(tmp_path / "reward")["error"]


SHARDED = """
import deepspeed
from peft import LoraConfig
from safetensors.torch import load_file
from rg_env.training.algorithms.policy import ReferencePolicy

policy = load_policy("tiny")
parameters = dict(policy.model.named_parameters())
assert all(parameter.numel() == 0 for parameter in parameters.values())
stored = load_file(POLICY_DIR / "model.safetensors")
with deepspeed.zero.GatheredParameters(list(parameters.values())):
    assert all(torch.equal(parameters[name].float(), stored[name].float()) for name in parameters)
tell("each has a shard")

zero = {"stage": 3, "stage3_param_persistence_threshold": 1000}
optimizer = {"type": "SGD", "params": {"lr": 1.0}}
config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero, "zero_allow_untested_optimizer": True}
other = load_policy("tiny").model
engine, *_ = deepspeed.initialize(model=other, config={**config, "optimizer": optimizer})
assert {parameter.ds_persist for parameter in other.parameters()} == {True, False}  # small ones stay gathered
ids = torch.arange(10).view(1, 10)


def logits():
    with torch.no_grad():
        return engine(input_ids=ids).logits.clone()


def update():
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()


previous, before = ReferencePolicy(other, previous=True), logits()
previous.keep()
update()
previous.advance()
after = logits()
assert not torch.allclose(after, before)
with previous.in_place():
    assert torch.equal(logits(), before)
assert torch.equal(logits(), after)
update()
assert not torch.allclose(logits(), after)
tell("looked back")


class Watch(TrainerCallback):  # the shards of weights and moments of this process, and the learning rate
    def __init__(self):
        self.kept = {}

    def on_step_end(self, args, state, control, **kwargs):
        shards = [parameter.ds_tensor.clone() for parameter in trainer.model.parameters()]
        moments = trainer.model.optimizer.optimizer.state.values()
        shards += [value.clone() for moment in moments for value in moment.values() if torch.is_tensor(value)]
        self.kept[state.global_step] = shards, trainer._learning_rates()


def same(one, other):
    (a, rate), (b, other_rate) = one, other
    return rate == other_rate and len(a) == len(b) and all(map(torch.equal, a, b))


GRPOTrainer._make_engine = lambda self, *_: Sampled(self.processing_class.eos_token_id)
env = ReasoningGym(policy.mixture("leg_counting"), num_train_examples=64, rewards=[length])
args = arguments(policy, "guarded", max_steps=9, learning_rate=1e-3, warmup_steps=4, save_steps=1, beta=0.05,
                 kl_reference="previous")
trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="vllm")
loss_of, passes = trainer._loss, []


def spoilt(part):
    passes.append(part)
    bad = len(passes) - 1 in (3, *range(6, 99)) and trainer.accelerator.process_index == 1
    return loss_of(part) * (math.nan if bad else 1)


trainer._loss = spoilt
watch = Watch()
trainer.add_callback(watch)
try:
    train(trainer, evaluation=NONE)
except StoppedTogether as error:
    tell(f"ended: {error}")
kept = watch.kept
assert sorted(kept) == [1, 2, 3, 4, 5, 6], kept.keys()
assert same(kept[1], kept[2]) and not same(kept[2], kept[3]), "one bad pass of one process"
assert same(kept[3], kept[4]) and same(kept[4], kept[5]) and same(kept[5], kept[6]), "three bad steps"
assert all(parameter.ds_tensor.isfinite().all() for parameter in trainer.model.parameters())
assert trainer.guard.skipped == 4

trainer._loss = loss_of
runs = []
for folder, first in (("one", "guarded/checkpoint-3"), ("two", "one/checkpoint-6")):
    trainer.output_dir = trainer.checkpoints.folder = Path(folder)
    watch.kept = {}
    train(trainer, evaluation=NONE, resume=first)
    runs.append(watch.kept)
assert sorted(runs[0]) == [4, 5, 6, 7, 8, 9] and sorted(runs[1]) == [7, 8, 9]
assert all(same(runs[0][step], runs[1][step]) for step in (7, 8, 9)) and not same(runs[0][6], runs[0][9])
tell("resumed to the bit")


def adapted(folder):
    args = arguments(policy, folder, max_steps=2, save_steps=1, learning_rate=1e-2, warmup_steps=0)
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    return GRPOTrainer(load_policy("tiny").model, env, args, policy.tokenizer, engine="vllm", peft_config=lora)


first, second = adapted("adapted"), adapted("again")
train(first, evaluation=NONE)
train(second, evaluation=NONE, resume="adapted/checkpoint-1")
pairs = list(zip(first.model.parameters(), second.model.parameters(), strict=True))
assert all(torch.equal(one.ds_tensor, other.ds_tensor) for one, other in pairs)
frozen = sum(parameter.ds_tensor.nbytes for parameter, _ in pairs if not parameter.requires_grad)
(states,) = Path("adapted/checkpoint-1").rglob(f"zero_pp_rank_{RANK}_*model_states.pt")
assert states.stat().st_size < frozen, (states.stat().st_size, frozen)
tell("saved adapters alone")
torch.distributed.destroy_process_group()
"""


def test_two_processes_under_zero3(tmp_path: Path) -> None:
    """No process ever holds the whole model, and the shards match the stored weights. The previous policy's shards can
    be swapped in and out. A loss that is not finite on one process changes no shard, and three such steps end both
    processes. Weights, moments and the previous policy resume bit-identically, and checkpoints of LoRA leave out the
    frozen base model."""
    done = run_script(tmp_path, accelerate("zero3_cpu.yaml"), SHARDED)
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = told(tmp_path)
    assert first == second
    assert first[2].startswith("ended: 3 consecutive steps were skipped, up to step 6")
    assert [*first[:2], *first[3:]] == [
        "each has a shard", "looked back", "resumed to the bit", "saved adapters alone"
    ]  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if "skipped, non-finite" in line]
    assert [line.partition(":")[0] for line in lines] == ["step 2", "step 4", "step 5", "step 6"]


ROLLOUTS, STEPS = 48, 4
OVERRIDES = (
    "tasks=leg_counting",
    f"training.rollouts_per_step={ROLLOUTS}",
    "training.per_device_train_batch_size=8",
    "training.num_generations=8",
    f"training.max_steps={STEPS}",
    "splits.num_train_examples=64",
    "evaluation={every: 0, before: false, after: false}",
    "output.save_every=1",
)


@pytest.mark.timeout(900)
def test_one_two_and_three_processes_train_the_same(tmp_path: Path) -> None:
    """With the default loss, a config describes the same experiment on any number of processes: the numbers of rollouts
    and steps and the first update are equal, and the curves agree within their confidence intervals."""
    start = load_file(POLICY_DIR / "model.safetensors")

    def curve(processes: int) -> list[dict[str, Any]]:
        folder = tmp_path / str(processes)
        command = ["-m", "rg_env.cli.main", "train", str(CONFIGS / "train" / "tiny.yaml"), *OVERRIDES]
        done = run(tmp_path, torchrun(processes), [*command, f"output.dir={folder}"])
        assert done.returncode == 0, done.stderr[-3000:]
        return [line for line in logged(folder) if "loss" in line]

    def first_update(processes: int) -> torch.Tensor:
        after = load_file(tmp_path / str(processes) / "checkpoint-1" / "model.safetensors")
        return torch.cat([(after[name] - start[name].float()).flatten() for name in start])

    one, two, three = map(curve, (1, 2, 3))
    moved = first_update(1)
    assert moved.norm() > 0
    for processes in (2, 3):
        assert (first_update(processes) - moved).norm() < 0.02 * moved.norm()
    for other in (two, three):
        assert [line["rollouts"] for line in other] == [line["rollouts"] for line in one]
        assert [line["rollouts"] for line in other] == [ROLLOUTS * step for step in range(1, STEPS + 1)]
        assert other[0]["reward"] == one[0]["reward"]  # the same rollouts
        assert other[0]["loss"] == pytest.approx(one[0]["loss"], abs=1e-5)
        assert other[0]["grad_norm"] == pytest.approx(one[0]["grad_norm"], rel=1e-3)
        for mine, theirs in zip(one, other, strict=True):
            share = (mine["accuracy"] + theirs["accuracy"]) / 2
            interval = 3 * (2 * max(share * (1 - share), 0.05) / ROLLOUTS) ** 0.5
            assert abs(mine["accuracy"] - theirs["accuracy"]) < interval
