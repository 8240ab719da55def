"""Where the time of a training step goes: seconds by phase, logged as `time/<phase>`."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Sums of seconds since they were last taken. What runs on a GPU counts where the CPU waits for it."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Within: the time counts as that of phase `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] += seconds

    def take(self) -> dict[str, float]:
        """The sums by metric name; they begin anew."""
        found = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return found
