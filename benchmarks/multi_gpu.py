"""Check on a machine with several GPUs that every way to distribute training takes the same first step.

    python benchmarks/multi_gpu.py                  # Qwen2.5-0.5B's shape with random weights
    python benchmarks/multi_gpu.py --shape tiny --only zero3    # without GPUs: two CPU processes over gloo

The script needs deepspeed and the packages that `gpu.py` needs. If vLLM is installed, the last GPU serves the model,
and the other GPUs train. The script prints a table for `benchmarks/README.md` with one row per check. If a check
fails, its row contains the reason, and the exit code is 1.

| check | passes if |
|---|---|
| ddp, zero3, fsdp2 | the first update (float32, default loss, several micro-batches) equals that of one process |
| memory | (GPUs) bf16 steps with AdamW are finite, and sharding needs less memory on each GPU than DDP |
| route | (vLLM) the server has the weights of the first update, and that update equals that of one process |
| killed server | (vLLM) a server that is killed in the middle of a weight transfer ends the run within a minute |
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the script runs from a checkout without being installed

from rg_env.commands import prepare_process

prepare_process()

import torch  # noqa: E402
from accelerate.utils import gather_object  # noqa: E402
from gpu import CUDA, SHAPES, Failed, environment, has, policy_of  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from rg_env.errors import StoppedTogether, TrainingError  # noqa: E402
from rg_env.inference.models import load_policy  # noqa: E402
from rg_env.inference.protocol import Completion, Engine  # noqa: E402
from rg_env.training.config.grpo import GRPOConfig  # noqa: E402
from rg_env.training.config.schema import EngineConfig  # noqa: E402
from rg_env.training.trainer import GRPOTrainer  # noqa: E402
from rg_env.training.weight_sync import ModelWeights  # noqa: E402

CONFIGS = Path(__file__).parents[1] / "configs"
KINDS = ("ddp", "zero3", "fsdp2")
TOLERANCE = 1e-3
"""Maximum norm of the difference between two first updates, relative to the norm of the update."""
SYNC_S = 30.0
"""Timeout of each phase of a weight sync."""
WITHIN_S = 900.0


class Recorded(Engine):
    """Engine that returns the same random completions in every run."""

    name, max_context = "recorded", 512

    def __init__(self, end: int, tokens: int) -> None:
        self.end_ids, self._tokens = frozenset([end]), tokens
        self._random = torch.Generator().manual_seed(0)

    def generate(self, prompts: Any, sampling: Any) -> list[Completion]:
        lengths = [self._tokens // 4 + 5 * row % (self._tokens // 2) for row in range(len(prompts))]
        rows = [[*torch.randint(10, 300, (n,), generator=self._random).tolist(), *self.end_ids] for n in lengths]
        return [Completion(row, [-6.0] * len(row), "stop") for row in rows]


class Trainer(GRPOTrainer):
    """Trainer on recorded rollouts. With a server, weights are sent to it as usual."""

    has_server = False

    def _make_engine(self, *arguments: Any) -> Engine:
        recorded = Recorded(self.processing_class.eos_token_id, self.args.max_tokens)
        if not self.has_server:
            return recorded
        engine = super()._make_engine(*arguments)
        engine.generate = recorded.generate  # type: ignore[method-assign]
        return engine


def work(options: argparse.Namespace) -> int:
    """Train in one of several processes, and write the results to `options.work` on the main process."""
    policy = load_policy(options.model)
    Trainer.has_server = options.port is not None
    fp32: dict[str, Any] = {"optim": "sgd", "learning_rate": 1.0, "bf16": False}
    config = GRPOConfig(
        output_dir=str(options.work / "run"), max_steps=options.steps, rollouts_per_step=options.rollouts,
        num_generations=4, per_device_train_batch_size=2, max_tokens=options.max_tokens, save_steps=0, warmup_steps=0,
        lr_scheduler_type="constant", **({} if options.bf16 else fp32),
    )  # fmt: skip
    engine = EngineConfig(kind="vllm", port=options.port or 8000, weight_sync_timeout=SYNC_S)
    trainer = Trainer(policy.model, environment(8), config, policy.tokenizer, engine=engine)
    trainer.train()
    trainer.sync_weights()
    model = trainer.accelerator.unwrap_model(trainer.model)
    weights = {name: tensor.float().cpu().clone() for name, tensor in ModelWeights(model, trainer.strategy)}
    peak = torch.cuda.max_memory_allocated() if CUDA else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {"peaks": gather_object([peak]), "skipped": trainer.guard.skipped, **trainer.engine.metrics()}
    if options.kill is not None:
        result |= survive(trainer, options.kill)
    if trainer.accelerator.is_main_process:
        if not options.bf16:
            save_file(weights, options.work / "weights.safetensors")
        (options.work / "result.json").write_text(json.dumps(result))
    return 0


def survive(trainer: Trainer, server: int) -> dict[str, Any]:
    """Kill the server once the first tensors of a weight transfer are on their way, and return the trainer's error and
    the number of seconds until it was raised."""
    weights: Any = trainer.engine.weights  # type: ignore[attr-defined]
    weights.bucket_bytes, buckets = 2**16, weights._buckets

    def killing() -> Iterator[Any]:
        for number, bucket in enumerate(buckets()):
            if number == 2 and trainer.accelerator.is_main_process:
                os.killpg(server, signal.SIGKILL)
            yield bucket

    weights._buckets = killing
    start = time.monotonic()
    try:
        trainer.engine.sync()
    except (TrainingError, StoppedTogether) as error:
        return {"error": str(error), "seconds": time.monotonic() - start}
    return {"error": None, "seconds": time.monotonic() - start}


class Runs:
    """Starts training runs of one model, in one or several processes.

    Args:
        folder: folder for the model and the results.
        gpus: indices of the GPUs for training, or None to train on CPUs.
    """

    def __init__(self, folder: Path, shape: str, gpus: list[int] | None, processes: int, max_tokens: int) -> None:
        self.folder, self.model = folder, folder / "model"
        self._gpus, self.processes, self._max_tokens = gpus, processes, max_tokens
        model, tokenizer = policy_of(shape)
        model.cpu().save_pretrained(self.model)
        tokenizer.save_pretrained(self.model)
        self.before = load_file(self.model / "model.safetensors")
        self._single: dict[str, torch.Tensor] | None = None

    def run(self, kind: str, name: str, *options: str, processes: int | None = None, bf16: bool = False) -> Any:
        """Train, and return the results. `name` is the name of the results' folder."""
        processes = processes or self.processes
        work = self.folder / name
        work.mkdir()
        arguments = [__file__, "--work", str(work), "--model", str(self.model), "--max-tokens", str(self._max_tokens)]
        arguments += ["--rollouts", str(8 * self.processes), *(["--bf16"] if bf16 else []), *options]
        variables = dict(os.environ)
        if self._gpus is not None:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self._gpus[:processes]))
        else:
            variables |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *arguments]
        if processes > 1 and kind == "ddp" and self._gpus is None:
            variables["ACCELERATE_USE_CPU"] = "true"
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
            command = [sys.executable, *torchrun, *arguments]
        elif processes > 1 or kind != "ddp":
            config = CONFIGS / f"{kind}{'_cpu' if self._gpus is None else ''}.yaml"
            launch = [str(Path(sys.executable).with_name("accelerate")), "launch", "--config-file", str(config)]
            launch += ["--num_processes", str(processes), "--mixed_precision", "bf16" if bf16 else "no"]
            command = [*launch, "--main_process_port", "0", *arguments]
        with (work / "log.txt").open("wb") as log:
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
            try:
                code = process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                raise Failed(f"no result within {WITHIN_S:.0f} s") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if code != 0:
            raise Failed(f"exit code {code}: " + (work / "log.txt").read_text(errors="replace")[-1500:])
        return json.loads((work / "result.json").read_text())

    def difference(self, name: str) -> float:
        """Return the norm of the difference between a run's first update and that of one process, relative to the
        update's norm."""
        if self._single is None:
            self.run("ddp", "single", processes=1)
            self._single = load_file(self.folder / "single" / "weights.safetensors")
        other = load_file(self.folder / name / "weights.safetensors")
        update = _norm({key: self._single[key] - tensor for key, tensor in self.before.items()})
        if not update:
            raise Failed("the weights did not change")
        return _norm({key: tensor - other[key] for key, tensor in self._single.items()}) / update


def _norm(tensors: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([tensor.double().norm() for tensor in tensors.values()]).norm())


def checked_update(runs: Runs, name: str) -> str:
    if not (difference := runs.difference(name)) <= TOLERANCE:
        raise Failed(f"the first update differs from that of one process by {difference:.1e} (at most {TOLERANCE:g})")
    return f"first update differs by {difference:.1e}"


def check_update(runs: Runs, kind: str) -> str:
    found = runs.run(kind, kind)
    return f"{checked_update(runs, kind)}, peak {max(found['peaks']) / 1e9:.2f} GB"


def check_memory(runs: Runs, kind: str, peaks: dict[str, float]) -> str:
    found = runs.run(kind, f"{kind}-bf16", "--steps", "3", bf16=True)
    peaks[kind] = max(found["peaks"]) / 1e9
    if found["skipped"]:
        raise Failed(f"{found['skipped']} steps were skipped because they were not finite")
    text = f"peak {peaks[kind]:.2f} GB on each GPU"
    if kind != "ddp" and runs.processes > 1 and not peaks[kind] < peaks.get("ddp", float("inf")):
        raise Failed(f"{text}, but DDP needs {peaks['ddp']:.2f} GB")
    return text


@contextmanager
def serving(runs: Runs, gpu: int | None, backend: str, name: str) -> Iterator[tuple[int, int]]:
    """Run a vLLM server, and yield its port and its process group."""
    from vllm_servers import server

    log = runs.folder / f"{name}.log"
    variables = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
    with server(runs.model, log, backend, max_model_len=512, variables=variables) as port:
        yield port, int(log.with_suffix(".pid").read_text())


def check_route(runs: Runs, kind: str, gpu: int | None, backend: str) -> str:
    name = f"{kind}-{backend}"
    with serving(runs, gpu, backend, name) as (port, _):
        found = runs.run(kind, f"{name}-run", "--port", str(port))
    sync = f"{found['weight_sync/seconds']:.2f} s per sync"
    parity = f"log-probabilities differ by {found['weight_sync/logprob_difference']:.1e}"
    return f"{checked_update(runs, f'{name}-run')}, {sync}, {parity}"


def check_killed(runs: Runs, gpu: int | None, backend: str) -> str:
    with serving(runs, gpu, backend, "killed") as (port, group):
        found = runs.run("ddp", "killed-run", "--port", str(port), "--kill", str(group))
    if found["error"] is None:
        raise Failed("the trainer did not notice")
    if found["seconds"] > 2 * SYNC_S:
        raise Failed(f"the trainer waited for {found['seconds']:.0f} s")
    return f"{found['seconds']:.1f} s until the error: {found['error']}"


def checks(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    gpus = list(range(torch.cuda.device_count())) if CUDA else None
    with_server = has("vllm") and "vllm" not in options.without and (gpus is None or len(gpus) > 1)
    server_gpu = gpus.pop() if gpus and with_server else None
    processes = 2 if gpus is None else len(gpus)
    if processes < 2:
        print("One GPU is left for training, so nothing is distributed.")
    runs = Runs(folder, options.shape, gpus, processes, options.max_tokens)
    peaks: dict[str, float] = {}
    for kind in options.only:
        yield kind, lambda kind=kind: check_update(runs, kind)  # type: ignore[misc]
        if CUDA:
            yield f"memory, {kind}", lambda kind=kind: check_memory(runs, kind, peaks)  # type: ignore[misc]
    if not with_server:
        print("The routes to a server and a killed server are left out: they need vLLM and, with GPUs, two of them.")
        return
    backend = "nccl" if CUDA else "rg_env_shm"
    for kind in options.only:
        yield f"route {backend}, {kind}", lambda kind=kind: check_route(runs, kind, server_gpu, backend)  # type: ignore[misc]
    yield f"killed server, {backend}", lambda: check_killed(runs, server_gpu, backend)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["tiny", *SHAPES], default="0.5B" if CUDA else "tiny")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--without", nargs="+", choices=["vllm"], default=[])
    parser.add_argument("--max-tokens", type=int, default=256 if CUDA else 24)
    for name, kind in (("work", Path), ("model", str), ("port", int), ("kill", int), ("rollouts", int), ("steps", int)):
        parser.add_argument(f"--{name}", type=kind, default=1 if name == "steps" else None, help=argparse.SUPPRESS)
    parser.add_argument("--bf16", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        return work(options)
    name = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if CUDA else "two CPU processes"
    print(f"\n| check | {name}, torch {torch.__version__} |\n|---|---|")
    passed = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for title, check in checks(options, Path(folder)):
            count += 1
            try:
                text = check()
                passed += 1
            except Exception as error:  # libraries can raise any exception on unfamiliar machines
                if not isinstance(error, Failed):
                    traceback.print_exc()
                text = f"**FAILED**: {' '.join(str(error).split()) or type(error).__name__}"
            print(f"| {title} | {text} |", flush=True)
    print(f"{passed} of {count} checks passed")
    return 0 if passed == count else 1


if __name__ == "__main__":
    sys.exit(main())
