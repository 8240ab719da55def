"""Metrics of a training step: rewards, lengths, losses, time and memory.

`step_time`              seconds per optimizer step, including the wait for rollouts but not evaluations
`tokens_per_second`      tokens in the step's rollouts, including prompts, per second of `step_time`
`memory/peak_rss_gb`     peak memory (10^9 bytes) of this process, without its children
`memory/peak_gpu_gb`     peak memory of this process's tensors on its GPU
`gpu/utilization`        percentage of time the GPU was busy in the last second, if NVML reports it
`time/<phase>`           seconds spent in each phase
"""

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from accelerate import Accelerator

from rg_env.core.rewards import think_format
from rg_env.training.algorithms.loss import equal_rewards
from rg_env.training.rollouts import Rollouts


class StepMetrics:
    """Collects metrics and the time spent in each phase since the last call to `take`."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[float]] = defaultdict(list)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._phases: list[str] = []
        """Nested phases, outermost first. The last one is the current phase."""
        self._since = 0.0

    def update(self, found: Mapping[str, float]) -> None:
        """Add a value for each name. The mean of a name's values is logged, or their maximum if the name ends in
        `/max`."""
        for name, value in found.items():
            self._values[name].append(value)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the time spent in this context as `time/<name>`, excluding nested phases. GPU work counts toward the
        phase in which the CPU waits for the GPU."""
        self._turn()
        self._phases.append(name)
        try:
            yield
        finally:
            self._turn()
            self._phases.pop()

    def take(self) -> dict[str, float]:
        """Return one value per name and start over."""
        self._turn()
        found = {
            name: max(values) if name.endswith("/max") else statistics.fmean(values)
            for name, values in self._values.items()
        }
        found |= {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        self._values.clear()
        self._seconds.clear()
        return found

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._phases:
            self._seconds[self._phases[-1]] += now - self._since
        self._since = now


def hardware(processes: int) -> dict[str, Any]:
    """Return the names of the visible GPUs, the number of CPU cores, and the number of processes."""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {"gpus": names, "cpu_count": os.cpu_count(), "processes": processes}


def step_costs(seconds: float, tokens: int) -> dict[str, float]:
    """Return the time, speed and memory use of a step that took `seconds`, with a batch of `tokens` tokens (0 if
    unknown)."""
    import resource  # the module is not available on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    costs = {"step_time": round(seconds, 3), "memory/peak_rss_gb": round(peak / 1e9, 3)}
    if tokens:
        costs["tokens_per_second"] = round(tokens / seconds, 1)
    if torch.cuda.is_available():
        costs["memory/peak_gpu_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
        # Pynvml or the driver library may be missing, or the GPU may not report utilization (MIG).
        with suppress(Exception):
            costs["gpu/utilization"] = float(torch.cuda.utilization())
    return costs


def batch_metrics(found: Rollouts, num_generations: int) -> dict[str, float]:
    """Return the rewards, accuracies, statuses and lengths for a batch of rollouts."""
    groups = torch.tensor(found.rewards, dtype=torch.float32).view(-1, num_generations)
    result = {
        "reward": groups.mean().item(),
        "reward_std": groups.std(dim=1).mean().item(),
        "frac_reward_zero_std": equal_rewards(groups).float().mean().item(),
        "entropy": found.entropy(),
        # This time includes scoring, and is spent before the step if batches are generated in advance.
        "time/generation": found.seconds,
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
    """Return the fraction of completions with a well-formed answer and, if `think_format` is a reward, the fraction of
    completions in the format that it rewards. The result also contains the mean number of distinct answers per group
    and the fraction of groups with more than one distinct answer."""
    if "status/wrong" not in found.scored[0].metrics:  # the rollouts were graded by another library's rubric
        return {}
    answers = [rollout.extraction.answer for rollout in found.rollouts]
    groups = [answers[first : first + num_generations] for first in range(0, len(answers), num_generations)]
    distinct = [len({answer for answer in group if answer is not None}) for group in groups]
    result = {
        "completions/answered_ratio": statistics.fmean(answer is not None for answer in answers),
        "answers/distinct_mean": statistics.fmean(distinct),
        "answers/diverse_ratio": statistics.fmean(count > 1 for count in distinct),
    }
    if "think_format" in found.scored[0].rewards:  # computed without the reward's `when` condition
        result["completions/format_ratio"] = statistics.fmean(map(think_format, found.rollouts))
    return result


def over_processes(accelerator: Accelerator, values: Mapping[str, torch.Tensor], counts: bool) -> dict[str, float]:
    """Return the mean of each value (a tensor of shape `()`) over all processes, or the maximum or minimum if the
    value's name ends in "max" or "min". This is a collective operation.

    Args:
        counts: whether to include this process's values. If no process includes its values, the result is empty.
    """
    mine = torch.stack([value.float() for value in values.values()])
    rows = torch.cat([mine, mine.new_tensor([counts])])
    everywhere = accelerator.gather(rows).view(-1, len(rows)).cpu()
    everywhere = everywhere[everywhere[:, -1] > 0]
    reduce = {"max": torch.max, "min": torch.min}
    columns = zip(values, everywhere.T[:-1], strict=True)
    return {name: reduce.get(name[-3:], torch.mean)(column).item() for name, column in columns if len(column)}
