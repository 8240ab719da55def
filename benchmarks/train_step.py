"""Measure the seconds per GRPO step on the CPU in rg_env and in TRL 1.16, with the same policy, prompts and rewards.

    .venv/bin/python benchmarks/train_step.py
    .venv/bin/python benchmarks/train_step.py --only ours
    .venv/bin/python benchmarks/train_step.py --only ours --before CHECKOUT    # compared with an earlier commit

    .venv/bin/python benchmarks/train_step.py --engine vllm      # vLLM server compared with the embedded engine

Each side trains the tiny policy on `leg_counting` with the same settings: 16 prompts x 8 rollouts per step, with at
most 90 new tokens per rollout. The sides take turns, each in its own process, for `--rounds` rounds, because a
machine's speed varies over minutes. Absolute times depend on the machine; only the ratio is meaningful.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPTS, ROLLOUTS, MICRO_BATCHES, MAX_NEW_TOKENS = 16, 8, 2, 90


def step_clock() -> tuple[Any, list[float]]:
    """Return a trainer callback, and the list to which it appends the times at which training begins and each step
    ends."""
    from transformers import TrainerCallback

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            ends.append(time.perf_counter())

        on_step_end = on_train_begin

    return Clock(), ends


def train(steps: int, seed: int, engine: Any = "embedded", **changes: Any) -> dict[str, Any]:
    """Run our trainer without evaluations, timed as in `trl_step.py`; `changes` override the config."""
    from rg_env.commands import prepare_process

    prepare_process()  # must run before the libraries are imported, as in all rg_env programs

    import torch

    from rg_env import ReasoningGym
    from rg_env.training import GRPOTrainer, default_config, load_policy

    clock, ends = step_clock()
    policy = load_policy("tiny")
    rows = {"num_train_examples": PROMPTS * steps, "num_eval_examples": 1}
    env = ReasoningGym(policy.mixture("leg_counting"), **rows, rewards={"correctness": 1.0})
    with tempfile.TemporaryDirectory() as scratch:
        args = default_config(
            policy, scratch, max_steps=steps, seed=seed, use_cpu=True, shuffle_dataset=False, num_generations=ROLLOUTS,
            rollouts_per_step=PROMPTS * ROLLOUTS, per_device_train_batch_size=PROMPTS * ROLLOUTS // MICRO_BATCHES,
            max_tokens=MAX_NEW_TOKENS, **changes,
        )  # fmt: skip
        trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, callbacks=[clock], engine=engine)
        trainer.train()
    seconds = [end - start for start, end in itertools.pairwise(ends)]
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "system": "rg_env",
        "threads": torch.get_num_threads(),
        "seconds_per_step_median": statistics.median(seconds[1:]),
        "seconds_per_step_mean": statistics.fmean(seconds[1:]),
        "step_seconds": seconds,
        "rewards": [entry["reward"] for entry in log],
        "completion_tokens": [entry["completions/mean_length"] for entry in log],
        "peak_rss_mb": peak / 2**20 if sys.platform == "darwin" else peak / 2**10,
    }


def write_rows(path: Path, steps: int) -> None:
    """Write the prompts that both sides train on, in order."""
    from rg_env import ReasoningGym
    from rg_env.tiny import TASKS

    gym = {"name": "leg_counting", "config": TASKS["leg_counting"]}
    env = ReasoningGym(gym, num_train_examples=PROMPTS * steps, num_eval_examples=1)
    rows = ({"prompt": row["prompt"], "answer": row["answer"]} for row in env.train_rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(command: list[str], out: Path, **environment: str) -> dict[str, Any]:
    """Run one side in its own process, and return the JSON that it writes to `out`."""
    subprocess.run(
        [*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment}
    )
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def report(result: dict[str, Any]) -> str:
    first, last = (statistics.fmean(part) for part in (result["rewards"][:3], result["rewards"][-3:]))
    return (
        f"{result['seconds_per_step_median']:.2f} s/step (mean {result['seconds_per_step_mean']:.2f}), "
        f"{result['system']}, {result['threads']} threads, peak {result['peak_rss_mb']:.0f} MB, "
        f"reward {first:.2f} -> {last:.2f} (first and last three steps)"
    )


STILL = {"learning_rate": 1e-9}
"""Setting that keeps the lengths of answers constant, so that both engines have the same workload."""


def with_a_server(options: argparse.Namespace) -> None:
    """Compare step times between a vLLM server on the same cores and the embedded engine. The policy hardly changes in
    these runs, so the work is the same."""
    from vllm_servers import server

    from rg_env.tiny import POLICY_DIR

    seconds: dict[str, list[float]] = {"embedded": [], "vllm": []}
    with tempfile.TemporaryDirectory() as folder, server(POLICY_DIR, Path(folder) / "vllm.log") as port:
        shared = [sys.executable, __file__, "--still", "--steps", str(options.steps), "--seed", str(options.seed)]
        for _ in range(options.rounds):
            for engine, more in (("embedded", []), ("vllm", ["--port", str(port)])):
                result = run([*shared, *more], Path(folder) / "result.json")
                seconds[engine].append(result["seconds_per_step_median"])
                print(f"{engine:<9} {report(result)}", flush=True)
    medians = {engine: statistics.median(values) for engine, values in seconds.items()}
    ratio = medians["vllm"] / medians["embedded"]
    print(f"vllm: {medians['vllm']:.2f} s/step (median of {options.rounds}), {ratio:.2f} times the embedded engine's")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["ours", "trl"])
    parser.add_argument("--engine", choices=["embedded", "vllm"], default="embedded")
    parser.add_argument("--before", type=Path, help="another checkout of rg_env to compare with")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)  # if given, this process runs our side
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--still", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 2 or options.rounds < 1:
        parser.error("--steps must be at least 2, because the first step is warm-up, and --rounds at least 1")
    if options.before and not (options.before / "rg_env" / "__init__.py").is_file():
        parser.error(
            f"--before {options.before}: not a checkout of rg_env; create one with git worktree add PATH COMMIT"
        )
    if options.engine == "vllm" and not options.out:
        with_a_server(options)
        return 0
    if options.out:
        from rg_env.training import EngineConfig

        engine = EngineConfig(kind="vllm", port=options.port) if options.port else "embedded"
        options.out.write_text(json.dumps(train(options.steps, options.seed, engine, **STILL if options.still else {})))
        return 0
    shared = ["--steps", str(options.steps), "--seed", str(options.seed)]
    sides: dict[str, tuple[list[str], dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "trl":
            sides["rg_env"] = ([sys.executable, __file__, *shared], {})
            if options.before:
                sides["rg_env before"] = (sides["rg_env"][0], {"PYTHONPATH": str(options.before.resolve())})
        if options.only != "ours":
            from rg_env.tiny import POLICY_DIR

            rows = Path(folder) / "rows.jsonl"
            write_rows(rows, options.steps)
            script = Path(__file__).with_name("trl_step.py")
            sizes = ["--prompts", str(PROMPTS), "--rollouts", str(ROLLOUTS), "--micro-batches", str(MICRO_BATCHES),
                     "--max-new-tokens", str(MAX_NEW_TOKENS)]  # fmt: skip
            command = [sys.executable, str(script), "--model", str(POLICY_DIR), "--rows", str(rows), *sizes]
            # rg_env's commands shorten the time that threads spin. TRL runs once with its defaults and once with this
            # setting.
            sides["TRL, defaults"] = ([*command, *shared], {})
            sides["TRL, short spin"] = ([*command, *shared], {"GOMP_SPINCOUNT": "10000"})
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, (arguments, environment) in sides.items():
                result = run(arguments, Path(folder) / "result.json", **environment)
                seconds[side].append(result["seconds_per_step_median"])
                print(f"{side:<16} {report(result)}", flush=True)
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    for side, median in medians.items():
        ratio = f", {median / medians['rg_env']:.2f} times rg_env's" if "rg_env" in medians and side != "rg_env" else ""
        print(f"{side}: {median:.2f} s/step (median of {options.rounds}){ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
