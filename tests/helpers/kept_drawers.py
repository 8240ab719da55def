"""Processes that draw items and stay for the next rows that this test process builds. Starting one takes half a CPU
second, and the tests build rows hundreds of times. Programs that tests start use processes of their own."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from rg_env.core.data import dataset, generation
from rg_env.core.data.generation import Drawer, Generation, RowRequest

USES = 50
"""Number of times that a process is used, because it keeps the library's data sets in memory."""
_idle: list[tuple[Drawer, int]] = []


class _Kept:
    """A `Drawer` whose process is kept, unless it was killed or failed at its last job."""

    def __init__(self, imports: Any, limits: Any) -> None:
        self._own = bool(imports)  # user code stays imported
        self._drawer, self._uses = _idle.pop() if _idle and not self._own else (Drawer(imports, limits), 0)
        self._ready = True
        self.process = self

    def draw(self, request: RowRequest, draws: range) -> Any:
        self._ready = False
        found = self._drawer.draw(request, draws)
        self._ready = True
        return found

    def signal_kill(self) -> None:
        if self._own or not self._ready:
            self._own = True
            self._drawer.process.signal_kill()

    def kill(self) -> None:
        if self._own or not self._ready or self._uses == USES:
            self._drawer.process.kill()
        else:
            _idle.append((self._drawer, self._uses + 1))


class _Generation(Generation):
    def start(self) -> Any:
        return _Kept(self._imports, self._limits)


@contextlib.contextmanager
def drawers_are_kept() -> Iterator[None]:
    """Let `build_rows` and `build_splits` keep their processes until the end of the block. They do not print their
    progress, which only slow machines would see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "Generation", _Generation)
        patch.setattr(generation, "_FIRST_PROGRESS_S", 3600.0)
        try:
            yield
        finally:
            while _idle:
                _idle.pop()[0].process.kill()
