"""Task items for the grader audit, tests and benchmarks, generated in the same way as rows, but without selection."""

import atexit
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rg_env.core.data.generation import Drawer, Request
from rg_env.core.data.items import Item
from rg_env.core.tasks.mixture import TaskSpec
from rg_env.errors import InputError


class Draws:
    """Source of items from both splits; questions may repeat.

    One process is kept until the program ends, because starting it takes a second, and importing a task takes a few
    tenths of a second.
    """

    def __init__(self) -> None:
        self._drawer = Drawer({})
        self.passed_over: Counter[str] = Counter()
        """Number of draws that yielded no question, by task; see `core.tasks.library_fixes.LEFT_OUT` for the
        reasons."""
        atexit.register(self._drawer.process.kill)
        self._drawer.wait_ready()

    def items(self, task: str, n: int, seed: int = 0, config: Mapping[str, Any] | None = None) -> list[Item]:
        """Return the first `n` items of `task` for a user's `seed`; draws that yield no question are skipped.

        Raises:
            InputError: the library refuses the options, or the task yields no question.
            GenerationError: a draw takes too long, or the process dies.
        """
        request = Request(TaskSpec(name=task, config=dict(config or {})), seed, {"train": 1, "eval": 1})
        found: list[Item] = []
        first = 0
        while len(found) < n:
            draws = range(first, first + n - len(found))
            questions = [item for item, _ in self._drawer.draw(request, draws) if item]
            self.passed_over[task] += len(draws) - len(questions)
            found += questions
            first = draws.stop
            if not found and first > 1000:
                raise InputError(f"task {task!r} yields no question in {first} draws")
        return found
