"""What training costs: seconds a step, tokens a second, memory, how busy the GPU is. The trainer logs it each step.

`step_time`              seconds of an optimizer step, waiting for rollouts included, evaluations left out
`tokens_per_second`      tokens of the step's rollouts, prompts included, by that time
`memory/peak_rss_gb`     most memory (10^9 bytes) that this process has had so far, without its children
`memory/peak_gpu_gb`     most memory that its tensors have had on its GPU so far
`gpu/utilization`        percent of the last second at most in which the GPU computed, where NVML tells

Where the time of a training step goes: seconds by phase, logged as `time/<phase>`.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Phases:
    """Seconds by phase, each without those of the phases within it, since they were last taken.

    What runs on a GPU counts where the CPU waits for it.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Within: the time counts as that of phase `name`."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """The sums by metric name; they begin anew."""
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
    """What this machine trains on, with so many processes: names of the GPUs in sight, and CPU cores."""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {"gpus": names, "cpu_count": os.cpu_count(), "processes": processes}


class StepMeter:
    """Measures steps between `begin_step` and `end_step`; `take` returns what to log of them."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._steps: list[tuple[float, int | None]] = []
        self._tokens: int | None = None
        self._asks_nvml = torch.cuda.is_available()

    def begin_step(self) -> None:
        """A step begins now."""
        self._start = time.perf_counter()

    def batch(self, tokens: int) -> None:
        """The next step, and those after it until another call, train on a batch of so many tokens."""
        self._tokens = tokens

    def end_step(self) -> None:
        """The step under way ends now."""
        if self._start is not None:
            self._steps.append((time.perf_counter() - self._start, self._tokens))
            self._start = None

    def take(self) -> tuple[int, dict[str, float]]:
        """How many steps there were since the last call, and their metrics: none if there were no steps."""
        steps, self._steps = self._steps, []
        if not steps:
            return 0, {}
        found = {"step_time": round(sum(seconds for seconds, _ in steps) / len(steps), 3)}
        counted = [(seconds, tokens) for seconds, tokens in steps if tokens is not None]
        if seconds := sum(seconds for seconds, _ in counted):
            found["tokens_per_second"] = round(sum(tokens for _, tokens in counted) / seconds, 1)
        return len(steps), found | self._memory() | self._utilization()

    def _memory(self) -> dict[str, float]:
        import resource  # not on Windows

        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        found = {"memory/peak_rss_gb": round(peak / 1e9, 3)}
        if torch.cuda.is_available():
            found["memory/peak_gpu_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
        return found

    def _utilization(self) -> dict[str, float]:
        if not self._asks_nvml:
            return {}
        try:
            return {"gpu/utilization": float(torch.cuda.utilization())}
        except Exception:  # no pynvml, no driver library, a GPU that does not tell (MIG): whatever it is, it stays
            self._asks_nvml = False
            return {}
