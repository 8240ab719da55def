"""An event loop on a background thread, for the user's async rewards.

The background loop also works while the caller's own loop runs, as in a notebook, and keeps connections to judge models
open.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

_A = TypeVar("_A")
_T = TypeVar("_T")

AT_ONCE = 64
"""Maximum number of concurrent calls in `run_each`. Each call may query a judge model."""
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""Event loops, keyed by process id because a forked child does not inherit its parent's threads."""


def run_each(call: Callable[[_A], Awaitable[_T]], items: Sequence[_A]) -> list[_T]:
    """Return the result of `call` for each item, in order. If calls raise exceptions, the exception for the first such
    item is raised after all calls have ended."""

    async def main() -> list[Any]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(item: _A) -> _T:
            async with gate:
                return await call(item)

        return await asyncio.gather(*map(one, items), return_exceptions=True)

    results = run_async(main())
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def run_async(work: Awaitable[_T]) -> _T:
    """Wait for the result of `work`, which runs in the loop on the background thread."""

    async def main() -> _T:
        return await work

    with _lock:
        if (loop := _loops.get(os.getpid())) is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=_run_forever, args=(loop,), name="rg-env-scoring", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(main(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop, and keep running it after a KeyboardInterrupt or SystemExit in a coroutine. asyncio passes such an
    exception to the caller of the coroutine but also ends the loop."""
    while True:
        with suppress(BaseException):
            loop.run_forever()


def is_canceled() -> bool:
    """Whether the task that runs this code has been canceled from outside. False if no event loop is running."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0
