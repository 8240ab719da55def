"""Measure the time to draw questions, with the library's own generators and with rg_env's faster versions of them.

    .venv/bin/python benchmarks/rows.py                          # the tasks with a faster version, about two minutes
    .venv/bin/python benchmarks/rows.py futoshiki --draws 20 --config '{"min_board_size": 9}'
    .venv/bin/python benchmarks/rows.py --all                    # where the time goes in each of the 105 tasks

Both versions draw the same items in turn, each in its own process, and the exit code is 1 if an item differs. The
times are CPU times of one process, per draw, after the first draw. A draw includes the problem key and, for training
rows, the gold answer. `--all` shows these parts separately.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__" and os.environ.get("PYTHONHASHSEED") != "0":  # as in generation processes
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})

from rg_env.core.data import items
from rg_env.core.tasks import library, library_fixes
from rg_env.core.tasks.faster import FASTER
from rg_env.core.tasks.task_table import load_table

DRAWS_S = 6.0
"""CPU seconds of the library's own generator for which it draws items, if --draws is not set."""
SEED = 7


def drawn(task: str, config: dict[str, Any], draws: int, fast: bool) -> tuple[float, list[str]]:
    """Draw items, at most `draws` or, if it is 0, for `DRAWS_S`. Return the CPU seconds and the items as text."""
    if not fast:
        library_fixes.speed_up = lambda *_: None  # type: ignore[assignment]
    stream = _opened(task, config)
    found: list[str] = []
    start = time.process_time()
    while len(found) < draws or (not draws and time.process_time() - start < DRAWS_S):
        try:
            found.append(repr(stream.draw(1 + len(found), ("train",))))
        except items.DrawFailed as error:
            found.append(str(error))
    return time.process_time() - start, found


def parts(task: str, draws: int) -> tuple[float, float, float]:
    """Return the milliseconds per draw: in the library, in the problem key, and in the checks and the gold answer."""
    stream = _opened(task, {})
    spent = [0.0, 0.0, 0.0]

    def timed(part: int, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args)
            finally:
                spent[part] += time.process_time() - start

        return call

    stream._entry = timed(0, stream._entry)  # type: ignore[method-assign]
    items.problem_key = timed(1, items.problem_key)
    items.left_out, items.gold_answer = timed(2, items.left_out), timed(2, items.gold_answer)
    end, count = time.process_time() + DRAWS_S, 0
    while count < draws and time.process_time() < end:
        count += 1
        with contextlib.suppress(items.DrawFailed):
            stream.draw(count, ("train",))
    in_library, in_key, in_checks = (1000 * seconds / count for seconds in spent)
    return in_library, in_key, in_checks


def _opened(task: str, config: dict[str, Any]) -> items.ItemStream:
    library.import_only(task, load_table()[task]["module"])
    library_fixes.fix_library(task)
    stream = items.ItemStream(task, config, SEED)
    with contextlib.suppress(items.DrawFailed):
        stream.draw(0)
    return stream


def in_process(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a process of its own, because changes to the library stay."""
    context = multiprocessing.get_context("fork")  # this process has not imported the library
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(function(*args)))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="default: the tasks with a faster version")
    parser.add_argument("--draws", type=int, default=0, help="number of draws (default: as many as fit in 6 s)")
    parser.add_argument("--config", type=json.loads, default={}, help="options of the tasks, as JSON")
    parser.add_argument("--all", action="store_true", help="show the parts of a draw, for each task")
    options = parser.parse_args()
    if options.all:
        print(f"{'task':26} {'library':>9} {'key':>7} {'checks and gold':>16}   ms per draw")
        found = {task: in_process(parts, task, options.draws or 200) for task in options.tasks or load_table()}
        for task, spent in sorted(found.items(), key=lambda each: -sum(each[1])):
            print(f"{task:26} {spent[0]:9.2f} {spent[1]:7.2f} {spent[2]:16.2f}")
        return 0
    differs = False
    print(f"{'task':26} {'draws':>5} {'library':>11} {'rg_env':>11} {'ratio':>6}")
    for task in options.tasks or FASTER:
        slow_s, slow = in_process(drawn, task, options.config, options.draws, False)
        fast_s, fast = in_process(drawn, task, options.config, len(slow), True)
        n = len(slow)
        differs |= slow != fast
        verdict = "" if slow == fast else f"  {sum(a != b for a, b in zip(slow, fast, strict=True))} items differ"
        times = f"{1000 * slow_s / n:8.2f} ms {1000 * fast_s / n:8.2f} ms {slow_s / fast_s:6.1f}"
        print(f"{task:26} {n:5} {times}{verdict}", flush=True)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
