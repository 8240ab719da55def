"""An event loop in a background thread, so that synchronous code can run async rewards and Verifiers rubrics.

It also works in a notebook, whose main thread already runs a loop. Clients of judge models keep their connections
between batches.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")

AT_ONCE = 64
"""Maximum number of concurrent calls in `run_each`; each call may query a judge model."""
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""Event loops by process id, because a forked child does not inherit its parent's threads."""


def run_each(call: Callable[[A], Awaitable[T]], items: Sequence[A]) -> list[T]:
    """The results of `call` for each item, in order. Raises the first exception after all calls have ended."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: A) -> T:
        async with gate:
            return await call(item)

    async def main() -> list[T | BaseException]:
        return await asyncio.gather(*map(one, items), return_exceptions=True)

    results = run_async(main())
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def run_async(work: Awaitable[T]) -> T:
    """Run `work` and return its result, or raise its exception."""

    async def main() -> T:
        return await work

    with _lock:
        if (loop := _loops.get(os.getpid())) is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="rg-env-scoring", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(main(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
