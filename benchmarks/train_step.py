"""Measure the seconds per GRPO step on the CPU in rg_env and in TRL 1.16, with the same policy, prompts and rewards.

    .venv/bin/python benchmarks/train_step.py
    .venv/bin/python benchmarks/train_step.py --only ours
    .venv/bin/python benchmarks/train_step.py --only ours --before CHECKOUT    # compared with an earlier commit

    .venv/bin/python benchmarks/train_step.py --engine vllm      # vLLM server compared with the embedded engine
    .venv/bin/python benchmarks/train_step.py --model SmolLM2-135M-Instruct --steps 4      # a folder with a small model

Each side trains the tiny policy on `leg_counting` with the same settings: 16 prompts x 8 rollouts per step, with at
most 90 new tokens per rollout. With `--model`, it trains this model on sums of two digits, with two examples in the
prompt and at most 24 new tokens. The sides take turns, each in its own process, for `--rounds` rounds, because a
machine's speed varies over minutes. Absolute times depend on the machine; only the ratio is meaningful. While other
jobs run, the ratio of the CPU times is more reliable than that of the times.

With `--model`, the report also compares rg_env's time with a lower bound: the time that matrix products of the measured
speed need for each distinct token, once to generate it and three times to learn from it. Groups with equal rewards have
no gradient, so rg_env does not compute one, and the bound does not count them.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROLLOUTS = 8
SHOTS = [("4 + 5 =", "9"), ("8 - 2 =", "6")]
TEXT = "State the final answer to the following arithmetic problem: "


@dataclass(frozen=True)
class Work:
    """What is trained in each step."""

    gym: dict[str, Any]
    prompt: dict[str, Any]
    micro_batches: int
    max_new_tokens: int
    learning_rate: float
    prompts: int

    @classmethod
    def of(cls, model: Path | None, prompts: int = 16) -> "Work":
        """Return the work for the tiny policy, or for another model."""
        if model is None:
            from rg_env.tiny import TASKS

            return cls({"name": "leg_counting", "config": TASKS["leg_counting"]}, {}, 2, 90, 1e-4, prompts)
        few_shot = [
            message
            for sum_, answer in SHOTS
            for message in (
                {"role": "user", "content": TEXT + sum_},
                {"role": "assistant", "content": f"<answer>{answer}</answer>"},
            )
        ]
        instructions = "Give the final answer inside <answer></answer> tags."
        sums = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
        prompt = {"few_shot": few_shot, "system_prompt": instructions}
        return cls({"name": "chain_sum", "config": sums}, prompt, max(1, prompts // 4), 24, 1e-5, prompts)

    def environment(self, steps: int) -> Any:
        from rg_env import ReasoningGym

        rows = {"num_train_examples": self.prompts * steps, "num_eval_examples": 1}
        return ReasoningGym(self.gym, **rows, rewards={"correctness": 1.0}, **self.prompt)


def step_clock() -> tuple[Any, list[tuple[float, float]]]:
    """Return a trainer callback, and the list to which it appends the time and the process's CPU time when training
    begins and when each step ends."""
    from transformers import TrainerCallback

    ends: list[tuple[float, float]] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            ends.append((time.perf_counter(), time.process_time()))

        on_step_end = on_train_begin

    return Clock(), ends


def train(
    steps: int, seed: int, model: Path | None = None, prompts: int = 16, engine: Any = "embedded", **changes: Any
) -> dict[str, Any]:
    """Run our trainer without evaluations, timed as in `trl_step.py`; `changes` override the config."""
    from rg_env.commands import prepare_process

    prepare_process()  # must run before the libraries are imported, as in all rg_env programs

    import torch

    from rg_env.inference.protocol import PromptEncoder, prompt_lengths
    from rg_env.training import GRPOTrainer, default_config, load_policy

    clock, ends = step_clock()
    policy = load_policy("tiny" if model is None else str(model))
    work = Work.of(model, prompts)
    env = work.environment(steps)
    with tempfile.TemporaryDirectory() as scratch:
        settings = {} if model is None else {"learning_rate": work.learning_rate, "lr_scheduler_type": "constant"}
        args = default_config(
            policy, scratch, max_steps=steps, seed=seed, use_cpu=True, shuffle_dataset=False, num_generations=ROLLOUTS,
            rollouts_per_step=prompts * ROLLOUTS, per_device_train_batch_size=prompts * ROLLOUTS // work.micro_batches,
            max_tokens=work.max_new_tokens, gradient_checkpointing=False, **{**settings, **changes},
        )  # fmt: skip
        trainer = GRPOTrainer(policy.model, env, args, policy.tokenizer, callbacks=[clock], engine=engine)
        trainer.train()
    seconds = [end[0] - start[0] for start, end in itertools.pairwise(ends)]
    cpu_seconds = [end[1] - start[1] for start, end in itertools.pairwise(ends)]
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tokens = [entry["completions/mean_length"] for entry in log]
    equal = [entry["frac_reward_zero_std"] for entry in log]
    lengths = prompt_lengths(env, PromptEncoder(policy.tokenizer))["training"]
    distinct = prompts * (statistics.fmean(lengths) + ROLLOUTS * statistics.fmean(tokens))
    weights = sum(parameter.numel() for parameter in policy.model.parameters())
    flops = 2 * weights * distinct * (1 + 3 * (1 - statistics.fmean(equal)))
    return {
        "system": "rg_env",
        "threads": torch.get_num_threads(),
        "seconds_per_step_median": statistics.median(seconds[1:]),
        "seconds_per_step_mean": statistics.fmean(seconds[1:]),
        "cpu_seconds_per_step_median": statistics.median(cpu_seconds[1:]),
        "rollouts": prompts * ROLLOUTS,
        "step_seconds": seconds,
        "rewards": [entry["reward"] for entry in log],
        "completion_tokens": tokens,
        "equal_groups": equal,
        "least_seconds_per_step": flops / matmul_speed(),
        "peak_rss_mb": peak / 2**20 if sys.platform == "darwin" else peak / 2**10,
    }


def matmul_speed() -> float:
    """Return the speed of float32 matrix products in FLOP/s (the best of several)."""
    import torch

    one, other = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        one @ other
        seconds.append(time.perf_counter() - start)
    return float(2 * 1024**3 / min(seconds))


def write_rows(path: Path, steps: int, work: Work) -> None:
    """Write the prompts that both sides train on, in order."""
    env = work.environment(steps)
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
    tokens = result["rollouts"] * statistics.fmean(result["completion_tokens"])
    return (
        f"{result['seconds_per_step_median']:.2f} s/step (mean {result['seconds_per_step_mean']:.2f}, "
        f"CPU {result['cpu_seconds_per_step_median']:.2f}), "
        f"{result['system']}, {result['threads']} threads, peak {result['peak_rss_mb']:.0f} MB, "
        f"reward {first:.2f} -> {last:.2f} (first and last three steps), "
        f"{tokens / result['seconds_per_step_median']:.0f} new tokens/s, "
        f"{statistics.fmean(result['equal_groups']):.0%} of the groups with equal rewards"
        + (f", lower bound {result['least_seconds_per_step']:.2f} s/step" if "least_seconds_per_step" in result else "")
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
    parser.add_argument("--model", type=Path, help="folder of a small model to train instead of the tiny policy")
    parser.add_argument("--prompts", type=int, default=16, help="prompts per step, with 8 rollouts each (default 16)")
    parser.add_argument("--only", choices=["ours", "trl"])
    parser.add_argument("--engine", choices=["embedded", "vllm"], default="embedded")
    parser.add_argument("--before", type=Path, help="another checkout of rg_env to compare with")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)  # if given, this process runs our side
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--still", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 2 or options.rounds < 1:
        parser.error("--steps must be at least 2, because the first step is warm-up, and --rounds at least 1")
    if options.model and not (options.model / "config.json").is_file():
        parser.error(f"--model {options.model}: not a model folder")
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
        options.out.write_text(
            json.dumps(
                train(
                    options.steps,
                    options.seed,
                    options.model,
                    options.prompts,
                    engine,
                    **STILL if options.still else {},
                )
            )
        )
        return 0
    shared, work = ["--steps", str(options.steps), "--seed", str(options.seed)], Work.of(options.model, options.prompts)
    ours = [*shared, *(["--model", str(options.model)] if options.model else []), "--prompts", str(options.prompts)]
    sides: dict[str, tuple[list[str], dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "trl":
            sides["rg_env"] = ([sys.executable, __file__, *ours], {})
            if options.before:
                sides["rg_env before"] = (sides["rg_env"][0], {"PYTHONPATH": str(options.before.resolve())})
        if options.only != "ours":
            from rg_env.tiny import POLICY_DIR

            rows = Path(folder) / "rows.jsonl"
            write_rows(rows, options.steps, work)
            script = Path(__file__).with_name("trl_step.py")
            sizes = {"prompts": work.prompts, "rollouts": ROLLOUTS, "micro-batches": work.micro_batches,
                     "max-new-tokens": work.max_new_tokens, "learning-rate": work.learning_rate}  # fmt: skip
            settings = [f"--{name}={value}" for name, value in sizes.items()]
            command = [
                sys.executable,
                str(script),
                "--model",
                str(options.model or POLICY_DIR),
                "--rows",
                str(rows),
                *settings,
            ]
            # rg_env's commands shorten the time that threads spin. TRL runs once with its defaults and once with this
            # setting.
            sides["TRL, defaults"] = ([*command, *shared], {})
            if not options.model:  # generation of a larger model keeps the threads busy
                sides["TRL, short spin"] = ([*command, *shared], {"GOMP_SPINCOUNT": "10000"})
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        cpu_seconds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, (arguments, environment) in sides.items():
                result = run(arguments, Path(folder) / "result.json", **environment)
                seconds[side].append(result["seconds_per_step_median"])
                cpu_seconds[side].append(result["cpu_seconds_per_step_median"])
                print(f"{side:<16} {report(result)}", flush=True)
    medians, cpu = (
        {side: statistics.median(of_side) for side, of_side in values.items()} for values in (seconds, cpu_seconds)
    )
    for side, median in medians.items():
        others = "rg_env" in medians and side != "rg_env"
        ratios = [f", {each[side] / each['rg_env']:.2f} times rg_env's" if others else "" for each in (medians, cpu)]
        print(f"{side}: {median:.2f} s/step{ratios[0]}; CPU {cpu[side]:.2f} s/step{ratios[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
