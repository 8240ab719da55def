"""Two training processes on one machine (DDP over gloo), with rows without advantage on either."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from run_metrics import logged

WITHIN_S = 500
"""Importing takes most of it, and DeepSpeed's compiling where it was never used; a busy machine three times as long."""

SCRIPT = """
from rg_env.commands import prepare_process, run_command

prepare_process()
import torch
from rg_env import ReasoningGym
from rg_env.training import (
    Curriculum, CurriculumConfig, GRPOTrainer, default_config, load_policy, run_folder, train
)

def main():
    torch.set_num_threads(1)
    policy = load_policy("tiny")
    env = ReasoningGym(policy.mixture("chain_sum"), num_train_examples=64, num_eval_examples=8)
    curriculum = Curriculum(CurriculumConfig(tasks={"chain_sum": {}}, window=4, success_threshold=0.1,
                            failure_threshold=0.0), env, 0, gym="chain_sum")
    folder = run_folder("run", "two")
    args = default_config(policy, folder, max_steps=500, rollouts_per_step=32, per_device_train_batch_size=8,
                          num_generations=4, max_tokens=32)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="embedded", curriculum=curriculum)
    return 130 if train(trainer).get("interrupted") else 0

run_command(main)
"""


@pytest.mark.slow
def test_two_processes_train_and_end_together(tmp_path: Path) -> None:
    """Steps go by, at the same levels of a curriculum, which the main process keeps and tells once; an interrupt of
    both saves one checkpoint and the results; nobody waits for the other."""
    (tmp_path / "two.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "two.py"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    )
    told = ""
    try:
        assert process.stdout
        for line in process.stdout:
            told += line
            if line.startswith("step   4/"):
                break
        os.killpg(process.pid, signal.SIGINT)
        told += process.communicate(timeout=40)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()
    results = json.loads((tmp_path / "run" / "train_results.json").read_text())
    assert results["interrupted"], (tmp_path / "log").read_text()
    assert results["steps"] >= 4
    assert (tmp_path / "run" / f"checkpoint-{results['steps']}" / "trainer_state.json").exists()
    assert told.count("chain_sum rises to level 1") == 1
    levels = [line["curriculum/chain_sum/level"] for line in logged(tmp_path / "run") if "reward" in line]
    assert levels[0] == 0
    assert levels[-1] >= 1


OTHER_ROWS = SCRIPT.replace('"chain_sum"), num', '"chain_sum"), seed=int(os.environ["RANK"]), num').replace(
    "import torch\n", "import os\nimport torch\n"
)


@pytest.mark.slow
def test_processes_with_other_rows_do_not_start(tmp_path: Path) -> None:
    """All end, by one line, before anything is written."""
    (tmp_path / "two.py").write_text(OTHER_ROWS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "two.py"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1, done.stderr
    assert "do not train on the same rows" in told[0]
    assert "exitcode  : 2" in done.stderr
    assert not (tmp_path / "run").exists()


FOLDERS = ("engine", "disk", "reward")
"""Of runs that fail."""

ENDS = """
from rg_env.commands import prepare_process, run_command

prepare_process()
import errno
import os
import torch
from rg_env import ReasoningGym
from rg_env.errors import StoppedTogether
from rg_env.training import EvaluationPlan, GRPOTrainer, default_config, load_policy, train

RANK = os.environ["RANK"]
PLAN = EvaluationPlan(every=0, before=False, after=False)


def tell(text):  # each process into a file of its own: lines of two processes get mixed on one standard output
    with open(f"told-{RANK}", "a") as told:
        print(text, file=told)


def fail(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def make(folder, spoil=None, **fields):
    torch.manual_seed(0)
    policy, state = load_policy("tiny"), {"step": 0}

    def moody(completion):
        if spoil == "reward" and trainer.state.global_step == 1:
            raise KeyError("out of mood")
        return float(len(completion) % 3)

    env = ReasoningGym(policy.mixture("chain_sum"), num_train_examples=64, num_eval_examples=8, rewards=[moody])
    fields = {"max_steps": 3, "max_tokens": 12, "save_steps": 1, **fields}
    args = default_config(policy, folder, rollouts_per_step=16, per_device_train_batch_size=4, num_generations=4,
                          **fields)
    trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, engine="embedded")
    generate, save = trainer.engine.generate, trainer.checkpoints._write_state
    if spoil == "engine":
        trainer.engine.generate = lambda *args: fail() if trainer.state.global_step == 1 else generate(*args)
    if spoil == "disk" and RANK == "1":
        trainer.checkpoints._write_state = lambda folder: fail() if trainer.state.global_step == 2 else save(folder)
    return trainer


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def main():
    torch.set_num_threads(1)
    for fault in ("engine", "disk"):
        trainer = make(fault, fault)
        try:
            train(trainer, evaluation=PLAN)
        except StoppedTogether as error:
            tell(f"{fault} after step {trainer.state.global_step}: {error}")
    fields = {"beta": 0.05, "kl_reference": "previous", "num_iterations": 2, "max_steps": 4}
    unbroken = make("unbroken", **fields)
    train(unbroken, evaluation=PLAN)
    resumed = make("resumed", **fields)
    train(resumed, evaluation=PLAN, resume="unbroken/checkpoint-1")
    assert all(map(torch.equal, weights(unbroken), weights(resumed)))
    tell("resumed to the bit")
    train(make("reward", "reward"), evaluation=PLAN)


run_command(main)
"""


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 60)
def test_what_fails_on_one_process_ends_all(tmp_path: Path) -> None:
    """In a reward, in the engine, on the disk of one: one line, and checkpoints of the last whole step. And two
    processes resume to the bit."""
    (tmp_path / "two.py").write_text(ENDS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "two.py"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    told = [(tmp_path / f"told-{rank}").read_text().splitlines() for rank in (0, 1)]
    assert told[0] == told[1]
    engine, disk, resumed = told[0]
    assert engine == "engine after step 1: [Errno 28] No space left on device", done.stderr[-3000:]
    assert disk.startswith("disk after step 2: cannot save checkpoint-2 in disk: No space left on device; earlier")
    assert resumed == "resumed to the bit"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "moody" in errors[0]
    saved = {name: sorted(path.name for path in (tmp_path / name).glob("checkpoint*")) for name in FOLDERS}
    assert saved == {"engine": ["checkpoint-1"], "disk": ["checkpoint-1"], "reward": ["checkpoint-1"]}
    assert "moody" in json.loads((tmp_path / "reward" / "train_results.json").read_text())["error"]


SHARDED = """
from rg_env.commands import prepare_process, run_command

prepare_process()
import math
import os
from pathlib import Path
import deepspeed
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import TrainerCallback
from rg_env import ReasoningGym
from sampled_engine import Sampled
from rg_env.errors import StoppedTogether
from rg_env.training import EvaluationPlan, GRPOTrainer, default_config, load_policy, train
from rg_env.training.algorithms.policy import PreviousPolicy
from rg_env.training.checkpointing.save import finite_weights
from rg_env.tiny import POLICY_DIR


def tell(text):  # each process into a file of its own: lines of two processes get mixed on one standard output
    with open(f"told-{os.environ['RANK']}", "a") as told:
        print(text, file=told)


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


previous, before = PreviousPolicy(other), logits()
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


def length(rollout):
    return float(len(rollout.token_ids))


GRPOTrainer._make_engine = lambda self, encoder: Sampled(self.processing_class.eos_token_id)
env = ReasoningGym(policy.mixture("leg_counting"), num_train_examples=64, rewards=[length])
arguments = default_config(
    policy, "guarded", max_steps=9, rollouts_per_step=16, per_device_train_batch_size=4, num_generations=4,
    max_tokens=12, learning_rate=1e-3, warmup_steps=4, save_steps=1, beta=0.05, kl_reference="previous",
)
trainer = GRPOTrainer(policy.model, env, arguments, policy.tokenizer, engine="vllm")
plan = EvaluationPlan(every=0, before=False, after=False)
loss_of, passes = trainer._loss, []


def spoilt(part):
    passes.append(part)
    bad = len(passes) - 1 in (3, *range(6, 99)) and trainer.accelerator.process_index == 1
    return loss_of(part) * (math.nan if bad else 1)


trainer._loss = spoilt
watch = Watch()
trainer.add_callback(watch)
try:
    train(trainer, evaluation=plan)
except StoppedTogether as error:
    tell(f"ended: {error}")
kept = watch.kept
assert sorted(kept) == [1, 2, 3, 4, 5, 6], kept.keys()
assert same(kept[1], kept[2]) and not same(kept[2], kept[3]), "one bad pass of one process"
assert same(kept[3], kept[4]) and same(kept[4], kept[5]) and same(kept[5], kept[6]), "three bad steps"
assert finite_weights(trainer.model)
assert trainer.guard.skipped == 4

trainer._loss = loss_of
runs = []
for folder, first in (("one", "guarded/checkpoint-3"), ("two", "one/checkpoint-6")):
    trainer.output_dir = trainer.checkpoints.folder = Path(folder)
    watch.kept = {}
    train(trainer, evaluation=plan, resume=first)
    runs.append(watch.kept)
assert sorted(runs[0]) == [4, 5, 6, 7, 8, 9] and sorted(runs[1]) == [7, 8, 9]
assert all(same(runs[0][step], runs[1][step]) for step in (7, 8, 9)) and not same(runs[0][6], runs[0][9])
tell("resumed to the bit")


def adapted(folder):
    fields = {"max_steps": 2, "rollouts_per_step": 16, "per_device_train_batch_size": 4, "num_generations": 4}
    args = default_config(policy, folder, save_steps=1, learning_rate=1e-2, warmup_steps=0, max_tokens=12, **fields)
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    return GRPOTrainer(load_policy("tiny").model, env, args, policy.tokenizer, engine="vllm", peft_config=lora)


first, second = adapted("adapted"), adapted("again")
train(first, evaluation=plan)
train(second, evaluation=plan, resume="adapted/checkpoint-1")
pairs = list(zip(first.model.parameters(), second.model.parameters(), strict=True))
assert all(torch.equal(one.ds_tensor, other.ds_tensor) for one, other in pairs)
frozen = sum(parameter.ds_tensor.nbytes for parameter, _ in pairs if not parameter.requires_grad)
(states,) = Path("adapted/checkpoint-1").rglob(f"zero_pp_rank_{os.environ['RANK']}_*model_states.pt")
assert states.stat().st_size < frozen, (states.stat().st_size, frozen)
tell("saved adapters alone")
torch.distributed.destroy_process_group()
"""


@dataclass(frozen=True)
class Sharded:
    """What came of two processes that have a model under ZeRO-3."""

    done: "subprocess.CompletedProcess[str]"
    told: list[list[str]]
    """By process."""

    def both_told(self, start: str) -> None:
        assert len(self.told) == 2, self.done.stderr[-3000:]
        for lines in self.told:
            assert any(line.startswith(start) for line in lines), (lines, self.done.stderr[-3000:])


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Sharded:
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "sharded.py").write_text(SHARDED)
    config = Path(__file__).parents[2] / "configs" / "zero3_cpu.yaml"
    command = [str(Path(sys.executable).with_name("accelerate")), "launch", "--config-file", str(config)]
    command += ["--main-process-port", "0", "sharded.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    return Sharded(done, [file.read_text().splitlines() for file in sorted(folder.glob("told-*"))])


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 60)
def test_a_model_is_sharded_while_it_is_loaded(sharded: Sharded) -> None:
    """Under ZeRO-3 no process ever holds all of it; and the shards are the stored weights."""
    sharded.both_told("each has a shard")


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 60)
def test_shards_of_the_previous_policy_can_be_looked_at(sharded: Sharded) -> None:
    """They are put in place and taken out again, and training goes on."""
    sharded.both_told("looked back")


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 60)
def test_what_is_not_finite_on_one_process_changes_no_shard(sharded: Sharded) -> None:
    """Under ZeRO-3 both skip the step; after three such steps both end, and have the shards from before."""
    assert sharded.done.returncode == 0, sharded.done.stderr[-3000:]
    sharded.both_told("ended: 3 consecutive steps were skipped, up to step 6")
    lines = [line for line in sharded.done.stdout.splitlines() if "skipped, non-finite" in line]
    assert [line.partition(":")[0] for line in lines] == ["step 2", "step 4", "step 5", "step 6"]


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S + 60)
def test_shards_resume_to_the_bit(sharded: Sharded) -> None:
    """Those of weights, moments and the previous policy; of LoRA without a copy of the frozen base."""
    sharded.both_told("resumed to the bit")
    sharded.both_told("saved adapters alone")
