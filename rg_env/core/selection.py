"""Which of the items drawn become rows: distinct questions, each in its split, balanced where it matters.

A `Selection` is offered the items of one task in the order of their index and decides by that order alone, so that the
rows do not depend on who drew the items, or on how many were asked for: more rows begin with the same ones.

In the tasks of `BALANCED` a constant answer would be right up to seven times in ten, as the library draws them. There
rows are taken so that the answers come equally often: those of a more frequent answer wait until the others have
caught up. Tasks whose answers are uneven but open (gcd, maze, shortest_path, letter_counting, ...) stay as they are:
evening them out would cost many draws for a rare answer and change what the task is.
"""

import time
from collections import deque
from typing import TypedDict

from rg_env.core.items import Item
from rg_env.core.splits import Split, question_hash, split_of

BALANCED = {
    "acre": ("on", "off", "undetermined"),
    "circuit_logic": ("0", "1"),
    "course_schedule": ("true", "false"),
    "game_of_life_halting": ("true", "false"),
    "isomorphic_strings": ("true", "false"),
    "mahjong_puzzle": ("peng", "chi", "pass"),
    "ransom_note": ("true", "false"),
    "syllogism": ("yes", "no"),
}
"""Tasks with a few possible answers (lower case) that rows hold equally often."""

BALANCE_PATIENCE = 300
"""After this many new questions in a row without one of an answer that lags behind, a split is no longer balanced: the
task's options make that answer rare or impossible."""
PATIENCE_DRAWS = 5000
"""A task counts as exhausted after this many draws in a row that gave no new question of a split ..."""
PATIENCE_S = 20.0
"""... or after this many seconds without a new one, for tasks that are slow to draw from ..."""
PATIENCE_MIN_DRAWS = 200
"""... but not before this many draws."""


class Row(TypedDict):
    """One question with what is needed to score an answer to it."""

    question: str
    answer: str
    """The gold answer in a form that scores 1.0; empty where the library stores none."""
    info: dict[str, str]


class Selection:
    """The rows of one task, from its items in order."""

    def __init__(self, task: str, config_json: str, splits: tuple[Split, ...]) -> None:
        self.draws = 0
        self._common = {"rg_task": task, "config": config_json}
        self._seen: set[str] = set()
        self._takers = {split: _Taker(BALANCED.get(task, ())) for split in splits}

    def offer(self, item: Item | None) -> None:
        """The next draw's item; None for a draw that gave none."""
        self.draws += 1
        key = question_hash(item.question) if item else ""
        split = split_of(item.question) if item else None
        for own, taker in self._takers.items():
            if item is not None and own == split and key not in self._seen:
                info = {**self._common, "entry": item.entry}
                taker.add({"question": item.question, "answer": item.gold or "", "info": info})
            else:
                taker.miss()
        self._seen.add(key)

    def rows(self, split: Split) -> list[Row]:
        """The rows of `split` so far."""
        return self._takers[split].rows

    def exhausted(self, split: Split) -> bool:
        """Whether there is no use in drawing on for `split`. Call it after `offer`."""
        return self._takers[split].exhausted()


class _Taker:
    """The rows of one split: in the order of the draws, or in turns of the gold answers."""

    def __init__(self, answers: tuple[str, ...]) -> None:
        self.rows: list[Row] = []
        self._waiting: dict[str, deque[tuple[int, Row]]] = {answer: deque() for answer in answers}
        self._counts = dict.fromkeys(answers, 0)
        self._number = 0
        self._lag = 0
        self._barren = 0
        self._last_new = time.monotonic()

    def add(self, row: Row) -> None:
        self._barren, self._last_new = 0, time.monotonic()
        answer = row["answer"].strip().lower()
        if answer not in self._waiting:
            self.rows.append(row)
            return
        self._number += 1
        self._waiting[answer].append((self._number, row))
        before = len(self.rows)
        while ready := [a for a, queue in self._waiting.items() if queue and self._counts[a] == self._lowest()]:
            self._counts[ready[0]] += 1
            self.rows.append(self._waiting[ready[0]].popleft()[1])
        self._lag = 0 if len(self.rows) > before else self._lag + 1
        if self._lag >= BALANCE_PATIENCE:
            self._stop_balancing()

    def miss(self) -> None:
        self._barren += 1
        if self._barren >= PATIENCE_DRAWS:
            self._stop_balancing()

    def exhausted(self) -> bool:
        if self._barren >= PATIENCE_DRAWS:
            return True
        if any(self._waiting.values()):  # rows that are released once nothing new comes: by draws, not by the clock
            return False
        return self._barren >= PATIENCE_MIN_DRAWS and time.monotonic() - self._last_new > PATIENCE_S

    def _lowest(self) -> int:
        return min(self._counts.values())

    def _stop_balancing(self) -> None:
        left = sorted(((number, row) for queue in self._waiting.values() for number, row in queue), key=lambda x: x[0])
        self.rows += [row for _, row in left]
        self._waiting = {}
