"""Items of a task as its rows are made of, before any are selected: `Draws`, for the audit and for benchmarks.

They come from a generation process (`core.row_process`), so with the mends, the hash seed and the item seeds that rows
have. Questions may repeat, and come from both splits: rows for users are `core.dataset`'s business.
"""

import atexit
import select
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rg_env.core.data.generation import DRAW_LIMIT_S, RowProcess
from rg_env.core.data.items import Item
from rg_env.errors import GenerationError, InputError


class Draws:
    """One generation process, kept until the program ends: a second to start, and tenths more for a task's imports."""

    def __init__(self) -> None:
        self._process = RowProcess()
        self._replies: list[Any] = []
        self.passed_over: Counter[str] = Counter()
        """By task, how many draws gave no question; why is in `core.mends.LEFT_OUT`."""
        atexit.register(self._process.end)
        self._reply("the start of a process")

    def items(self, task: str, n: int, seed: int = 0, config: Mapping[str, Any] | None = None) -> list[Item]:
        """The first `n` items of `task` under a user's `seed`; draws that give no question are passed over.

        Raises `InputError` for options that the library refuses, and `GenerationError` for a draw that takes too long.
        """
        found: list[Item] = []
        first = 0
        while len(found) < n:
            count = n - len(found)
            job = {"task": task, "config": dict(config or {}), "seed": seed, "first": first, "count": count}
            self._process.send({**job, "splits": ["train", "eval"], "by": "problem"})
            replies = [self._reply(f"a draw of {task!r}") for _ in range(count)]
            questions = [Item(*reply) for reply in replies if isinstance(reply, list)]
            self.passed_over[task] += count - len(questions)
            found += questions
            first += count
            if not found and first > 1000:
                raise InputError(f"task {task!r} gives no question in {first} draws")
        return found

    def _reply(self, what: str) -> Any:
        deadline = time.monotonic() + DRAW_LIMIT_S
        while not self._replies:
            if not select.select([self._process.replies], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise GenerationError(f"{what} takes more than {DRAW_LIMIT_S:g} s")
            self._replies += self._process.read()
        reply = self._replies.pop(0)
        if isinstance(reply, dict) and "error" in reply:
            raise InputError(reply["error"])
        return reply
