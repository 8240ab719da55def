"""Calls of a worker pool: arguments, values, errors, many at once."""

import asyncio
import os
import statistics
import time
from typing import Any

import pytest
from worker_pools import value_of

from rg_env.core.grading.workers import MAX_REQUEST_BYTES, Outcome, WorkerPool
from rg_env.errors import InputError


@pytest.mark.parametrize(
    "value", [1, 0.1, None, True, "é\0\ud800\U0001f600", [1, [2]], {"a": {"b": []}}, "", 10**300, "x" * 60_000]
)
def test_values_come_back(pool: WorkerPool, value: Any) -> None:
    """Arguments and values pass as they are, also null bytes and lone surrogates."""
    outcome = pool.call("echo", value, 2)
    assert outcome == Outcome("ok", [value, 2], "", outcome.seconds)
    assert 0 < outcome.seconds < 0.5


@pytest.mark.parametrize(
    ("action", "detail"),
    [
        (("fail", "no\nsuch \ud800 thing"), "ValueError: no such \ud800 thing"),
        (("fail", "x" * 1000), "ValueError: " + "x" * 288),
        (("fail", "\U0001f600" * 1000), "ValueError: " + "\U0001f600" * 288),
        (("leave",), "SystemExit: 0"),
        (("unprintable",), "an error that cannot be printed"),
        (("no_json",), "TypeError: Object of type set is not JSON serializable"),
        (("huge", 65_536), "ValueError: the value has 65546 bytes as JSON, more than 65536"),
        (("huge", 20_000_000), "ValueError: the value has 20000010 bytes as JSON, more than 65536"),
    ],
)
def test_targets_that_raise(pool: WorkerPool, action: tuple[Any, ...], detail: str) -> None:
    """What a target raises, and a value that cannot be sent, is told in one short line; the worker lives on."""
    pid = value_of(pool.call("pid"))
    outcome = pool.call(*action)
    assert (outcome.status, outcome.value, outcome.detail) == ("raised", None, detail)
    assert value_of(pool.call("pid")) == pid


def test_output_does_not_disturb(pool: WorkerPool, capfd: pytest.CaptureFixture[str]) -> None:
    """Prints go nowhere, stdin is empty."""
    assert value_of(pool.call("talk")) == ""
    assert value_of(pool.call("echo", 1)) == [1]
    assert capfd.readouterr() == ("", "")


def test_warm_up_runs_once_in_each_worker(pool: WorkerPool) -> None:
    """What a warm-up did is there for all calls."""
    assert value_of(pool.call("counts"))[1] == 1


def test_a_thousand_calls_at_once() -> None:
    """From one event loop, with no more files open than the workers have."""
    fd_folder = "/dev/fd"

    async def main(pool: WorkerPool) -> list[Outcome]:
        tasks = [asyncio.create_task(pool.acall("echo", i)) for i in range(1000)]
        await asyncio.sleep(0)
        assert len(os.listdir(fd_folder)) <= before + 10  # those of the event loop, too
        return await asyncio.gather(*tasks)

    before = len(os.listdir(fd_folder))
    with WorkerPool("worker_targets:do", workers=2, wall_s=5) as pool:
        before += 3 * 3  # a log and two pipes for each process
        assert [value_of(outcome) for outcome in asyncio.run(main(pool))] == [[i] for i in range(1000)]
    assert len(os.listdir(fd_folder)) <= before - 9


def test_the_event_loop_runs_on(pool: WorkerPool) -> None:
    """While a call hangs, is killed and its worker replaced."""

    async def main() -> list[float]:
        gaps = []
        call = asyncio.create_task(pool.acall("sleep", 60))
        while not call.done():
            begin = time.monotonic()
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - begin)
        assert (await call).status == "timed_out"
        return gaps

    gaps = asyncio.run(main())
    assert statistics.median(gaps) < 0.005
    assert max(gaps) < 0.2  # a machine under load has pauses of its own


def test_cancelled_calls(pool: WorkerPool) -> None:
    """One that waits is never made; one that runs ends unseen; the others come to their end."""

    async def main() -> None:
        count = value_of(await pool.acall("counts"))[0]
        running = asyncio.create_task(pool.acall("sleep", 0.2))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(pool.acall("echo", i)) for i in range(10)]
        await asyncio.sleep(0.05)
        running.cancel()
        for task in waiting[1:]:
            task.cancel()
        assert value_of(await waiting[0]) == [0]
        assert value_of(await pool.acall("counts"))[0] == count + 1
        results = await asyncio.gather(running, *waiting, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, Outcome] + [asyncio.CancelledError] * 9

    asyncio.run(main())


def test_large_arguments() -> None:
    """10 MB pass; more than `MAX_REQUEST_BYTES` is refused before anything is sent."""
    with WorkerPool("worker_targets:do", workers=1, wall_s=10) as pool:
        assert value_of(pool.call("length", "x" * 10_000_000)) == 10_000_000
        with pytest.raises(InputError, match=r"arguments for worker_targets:do are too large: 16777\d\d\d bytes"):
            pool.call("length", "x" * MAX_REQUEST_BYTES)


@pytest.mark.parametrize("argument", [{1, 2}, object(), b"bytes", [10**5000]])
def test_arguments_that_are_no_json(pool: WorkerPool, argument: Any) -> None:
    """An error of the caller, so no outcome."""
    with pytest.raises(InputError, match="arguments for worker_targets:do are not JSON"):
        pool.call("echo", argument)
