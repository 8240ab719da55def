"""Where the time of a training step goes: seconds by phase, logged as `time/<phase>`."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


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
