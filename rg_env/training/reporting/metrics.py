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
