"""Calls of a worker pool: arguments, values, errors, many at once."""

import os
from concurrent.futures import ThreadPoolExecutor
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
    assert pool.call("echo", value, 2) == Outcome("ok", [value, 2])


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
    """What a target raises, and a value that cannot be sent, is one short line in the outcome; the worker lives on."""
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
    """From many threads, with no more files open than the workers have."""
    before = len(os.listdir("/dev/fd"))
    with WorkerPool("worker_targets:do", workers=2, wall_s=5) as pool, ThreadPoolExecutor(20) as threads:
        outcomes = threads.map(lambda i: pool.call("echo", i), range(1000))
        assert len(os.listdir("/dev/fd")) <= before + 3 * 3  # a log and two pipes for each process
        assert [value_of(outcome) for outcome in outcomes] == [[i] for i in range(1000)]
    assert len(os.listdir("/dev/fd")) <= before


def test_large_arguments() -> None:
    """10 MB pass; more than `MAX_REQUEST_BYTES` is refused before anything is sent."""
    with WorkerPool("worker_targets:do", workers=1, wall_s=10) as pool:
        assert value_of(pool.call("length", "x" * 10_000_000)) == 10_000_000
        with pytest.raises(InputError, match=r"arguments for worker_targets:do are too large: 16777\d\d\d bytes"):
            pool.call("length", "x" * MAX_REQUEST_BYTES)


@pytest.mark.parametrize("argument", [{1, 2}, object(), b"bytes", [10**5000]])
def test_arguments_must_be_json(pool: WorkerPool, argument: Any) -> None:
    """An error of the caller, so no outcome."""
    with pytest.raises(InputError, match="arguments for worker_targets:do are not JSON"):
        pool.call("echo", argument)
