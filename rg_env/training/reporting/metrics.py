"""Metrics of a training step: rewards, lengths, losses, time and memory.

`step_time`              seconds per optimizer step, including the wait for rollouts, excluding evaluations
`tokens_per_second`      tokens of the step's rollouts, including prompts, per second of that time
`memory/peak_rss_gb`     peak memory (10^9 bytes) of this process, without its children
`memory/peak_gpu_gb`     peak memory of its tensors on its GPU
`gpu/utilization`        percentage of the last second in which the GPU was busy, if NVML reports it
`time/<phase>`           seconds by phase
"""

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator

from rg_env.core.rewards import think_format
from rg_env.training.algorithms.loss import equal_rewards
from rg_env.training.rollouts import Rollouts


class Phases:
    """Accumulates seconds by phase since the last `take`, each without the time of nested phases.

    GPU work counts toward the phase where the CPU waits for it.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Context manager that times phase `name`."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """Return the sums by metric name and reset them."""
        self._turn()
        found = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return found

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now


def hardware(processes: int) -> dict[str, Any]:
    """Names of the visible GPUs, number of CPU cores, and number of processes."""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {"gpus": names, "cpu_count": os.cpu_count(), "processes": processes}


class StepMeter:
    """Measures a step from `begin_step` to `end_step`, which returns its metrics."""

    def __init__(self) -> None:
        self._start = 0.0
        self._tokens: int | None = None
        self._has_nvml = torch.cuda.is_available()

    def begin_step(self) -> None:
        """Start measuring a step."""
        self._start = time.perf_counter()

    def batch(self, tokens: int) -> None:
        """Set the number of tokens in the next steps' batch."""
        self._tokens = tokens

    def end_step(self) -> dict[str, float]:
        """End the measurement and return the step's metrics."""
        import resource  # not on Windows

        seconds = time.perf_counter() - self._start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        costs = {"step_time": round(seconds, 3), "memory/peak_rss_gb": round(peak / 1e9, 3)}
        if self._tokens is not None:
            costs["tokens_per_second"] = round(self._tokens / seconds, 1)
        if torch.cuda.is_available():
            costs["memory/peak_gpu_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
        if self._has_nvml:
            try:
                costs["gpu/utilization"] = float(torch.cuda.utilization())
            except Exception:  # no pynvml or driver library, or a GPU that does not report it (MIG)
                self._has_nvml = False
        return costs


class StepMetrics:
    """Collects values by name since the last `take`. The mean of each is logged, or the maximum if its name ends in
    `/max`."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[float]] = defaultdict(list)

    def update(self, found: Mapping[str, float]) -> None:
        """Add a value to each of these names."""
        for name, value in found.items():
            self._values[name].append(value)

    def take(self) -> dict[str, float]:
        """Return one value per name and start over."""
        found = {
            name: max(values) if name.endswith("/max") else statistics.fmean(values)
            for name, values in self._values.items()
        }
        self._values.clear()
        return found


def batch_metrics(found: Rollouts, num_generations: int) -> dict[str, float]:
    """Rewards, accuracies, statuses and lengths for a batch of rollouts."""
    groups = torch.tensor(found.rewards, dtype=torch.float32).view(-1, num_generations)
    result = {
        "reward": groups.mean().item(),
        "reward_std": groups.std(dim=1).mean().item(),
        "frac_reward_zero_std": equal_rewards(groups).float().mean().item(),
        "entropy": found.tokens().entropy(),
        "time/generation": found.seconds,  # rewards included; before the step, if batches are made ahead
    }
    for name in found.scored[0].rewards:
        column = torch.tensor([scored.rewards[name] for scored in found.scored], dtype=torch.float32)
        result |= {f"rewards/{name}/mean": column.mean().item(), f"rewards/{name}/std": column.std().item()}
    names = dict.fromkeys(name for scored in found.scored for name in scored.metrics)
    for name in names:
        result[name] = statistics.fmean(s.metrics[name] for s in found.scored if name in s.metrics)
    return result | _lengths(found) | _forms(found, num_generations)


def _lengths(found: Rollouts) -> dict[str, float]:
    lengths = [len(rollout.token_ids) for rollout in found.rollouts]
    ended = [length for length, rollout in zip(lengths, found.rollouts, strict=True) if not rollout.truncated]
    result = {"completions/clipped_ratio": 1 - len(ended) / len(lengths)}
    for name, some in (("", lengths), ("_terminated", ended or [0])):
        result[f"completions/mean{name}_length"] = statistics.fmean(some)
        result[f"completions/min{name}_length"] = float(min(some))
        result[f"completions/max{name}_length"] = float(max(some))
    return result


def _forms(found: Rollouts, num_generations: int) -> dict[str, float]:
    """Fraction of completions with a well-formed answer and, if `think_format` is a reward, with its format; mean
    number of distinct answers per group, and fraction of groups with more than one."""
    if "status/wrong" not in found.scored[0].metrics:  # graded by another library's rubric
        return {}
    answers = [rollout.extraction.answer for rollout in found.rollouts]
    groups = [answers[first : first + num_generations] for first in range(0, len(answers), num_generations)]
    distinct = [len({answer for answer in group if answer is not None}) for group in groups]
    result = {
        "completions/answered_ratio": statistics.fmean(answer is not None for answer in answers),
        "answers/distinct_mean": statistics.fmean(distinct),
        "answers/diverse_ratio": statistics.fmean(count > 1 for count in distinct),
    }
    if "think_format" in found.scored[0].rewards:  # before its gate: whatever the answer is worth
        result["completions/format_ratio"] = statistics.fmean(map(think_format, found.rollouts))
    return result


def loss_metrics(
    accelerator: Accelerator,
    keep: torch.Tensor,
    clipped: torch.Tensor,
    kl: torch.Tensor | None,
    difference: torch.Tensor,
    log_ratio: torch.Tensor | None,
    lost: torch.Tensor | None,
    policy_ratio: torch.Tensor | None,
    *,
    useful: bool = True,
) -> dict[str, float]:
    """Clipping, KL, the sampler's mismatch and the largest ratio over the tokens `keep (B, T)`, and the share of rows
    `lost (B,)` that are off-policy, over all processes. A collective operation.

    Args:
        difference: `(B, T)`, log-probabilities before the update minus the sampler's.
        log_ratio: the same, if the loss corrects for the sampler.
        useful: whether this process's tokens count; False for a placeholder row. If no process has any, the result is
            empty.
    """
    tokens = keep.sum().clamp(min=1)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return (values * keep).sum() / tokens

    low, high = mean(clipped < 0), mean(clipped > 0)
    found = {"useful": tokens.new_tensor(useful), "clip_ratio/region_mean": mean(clipped != 0)}
    found |= {"clip_ratio/low_mean": low, "clip_ratio/low_min": low}
    found |= {"clip_ratio/high_mean": high, "clip_ratio/high_max": high}
    found["sampling/logp_difference"] = mean(difference.abs())
    if kl is not None:
        found["kl"] = mean(kl.detach())
    if lost is not None:
        found["off_policy_masked"] = lost.float().mean()
    if log_ratio is not None:
        ratio = torch.exp(log_ratio)
        found |= {
            "sampling/importance_sampling_ratio/mean": mean(ratio),
            "sampling/importance_sampling_ratio/max": (ratio * keep).max(),
            "sampling/mismatch_kl": mean(ratio - log_ratio - 1),
        }
    if policy_ratio is not None:
        found["policy_ratio/max"] = (policy_ratio * keep).max()
    everywhere = accelerator.gather(torch.stack([value.float() for value in found.values()])).view(-1, len(found)).cpu()
    everywhere = everywhere[everywhere[:, 0] > 0]
    reduce = {"max": torch.max, "min": torch.min}
    return {
        name: reduce.get(name[-3:], torch.mean)(column).item()
        for name, column in zip([*found][1:], everywhere.T[1:], strict=True)
        if len(column)
    }


def learning_rate(args: Any, update: int) -> float:
    """The learning rate of update `update` (from 0): warmup, then the schedule of `args.lr_scheduler_type`.

    "linear" and "cosine" decay to 0 at `max_steps`.
    """
    import math

    kind, peak = args.lr_scheduler_type, args.learning_rate
    warmup = 0 if kind == "constant" else args.warmup_steps
    if update < warmup:
        return float(peak * update / warmup)
    done = (update - warmup) / max(1, args.max_steps - warmup)
    if kind == "linear":
        return float(peak * max(0.0, 1 - done))
    if kind == "cosine":
        return float(peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
    return float(peak)
