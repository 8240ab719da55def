"""One event loop, in a thread of its own, for code that is not async: async rewards, and rubrics of Verifiers.

It works in a notebook too, whose own thread has a running loop already, and clients of judges keep their connections
from one batch to the next.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")

AT_ONCE = 64
"""Calls that `run_each` has under way at the same time: each may ask a judge."""
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process id: a fork has no thread of its parent's."""


def run_each(call: Callable[[A], Awaitable[T]], items: Sequence[A]) -> list[T]:
    """The results of `call` for each item, in order; the first exception, once all calls have ended."""
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
    """The result of `work`, or its exception."""

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
