"""An event loop in a thread of its own, for scoring that is asynchronous: rubrics and tasks of Verifiers."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ScoringLoop:
    """Runs coroutines to their end. Works in a notebook too, whose thread has a loop already, and clients of judges
    keep their connections from one batch to the next."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, or raises."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rg-env-scoring", daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
