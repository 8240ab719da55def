"""Items of tasks, generated as for rows, but before selection; for the graders' audit, tests and benchmarks."""

import atexit
import select
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rg_env.core.data.generation import Drawer, Limits
from rg_env.core.data.items import Item
from rg_env.errors import GenerationError, InputError


class Draws:
    """Draws items from both splits; questions may repeat.

    Keeps one process until the program ends, because starting it takes a second and importing a task tenths of a
    second.
    """

    def __init__(self) -> None:
        self._drawer = Drawer({})
        self._replies: list[Any] = []
        self.passed_over: Counter[str] = Counter()
        """Number of draws without a question, by task; see `core.tasks.library_fixes.LEFT_OUT` for the reasons."""
        atexit.register(self._drawer.process.kill)
        self._reply("the start of a process")

    def items(self, task: str, n: int, seed: int = 0, config: Mapping[str, Any] | None = None) -> list[Item]:
        """The first `n` items of `task` for a user's `seed`; draws without a question are skipped.

        Raises:
            InputError: the library refuses the options.
            GenerationError: a draw takes too long.
        """
        found: list[Item] = []
        first = 0
        while len(found) < n:
            count = n - len(found)
            job = {"task": task, "config": dict(config or {}), "seed": seed, "first": first, "count": count}
            self._drawer.send({**job, "splits": ["train", "eval"], "by": "problem"})
            replies = [self._reply(f"a draw of {task!r}") for _ in range(count)]
            questions = [Item(*reply) for reply in replies if isinstance(reply, list)]
            self.passed_over[task] += count - len(questions)
            found += questions
            first += count
            if not found and first > 1000:
                raise InputError(f"task {task!r} gives no question in {first} draws")
        return found

    def _reply(self, what: str) -> Any:
        deadline = time.monotonic() + Limits.silence_s
        while not self._replies:
            if not select.select([self._drawer.process], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise GenerationError(f"{what} takes more than {Limits.silence_s:g} s")
            self._replies += self._drawer.replies()
        reply = self._replies.pop(0)
        if isinstance(reply, dict) and "error" in reply:
            raise InputError(reply["error"])
        return reply
