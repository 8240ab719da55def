"""Selection of drawn items as rows: distinct questions in the right split, with balanced answers for some tasks.

A `Selection` receives a task's items in index order, and its decisions depend only on that order. The rows therefore do
not depend on which process drew an item. A larger split starts with the same rows as a smaller split.

For the tasks in `BALANCED`, a constant answer would be right on up to 93% of the rows if the library's draws were used
unchanged. In these tasks, a row with a frequent answer waits until other answers have caught up. In tasks with two
possible answers, balancing makes both equally frequent. In tasks with open-ended answers, no answer is right on more
than one row in five. With these limits, a row takes between 1.0 (binary_alternation) and 1.5 (maze) draws. In
self_reference, where the answer is 1, 2, 3 or 4 in 95% of the draws, a limit of one row in five would take 4.8 draws
per row, so the limit is one row in four. Tasks are not balanced if the best constant answer is right on only about 20%
of the rows (aiw, knight_swap), or no more often than a random guess (zebra_puzzles, with four names).
"""

import heapq
import json
from collections import Counter, deque
from collections.abc import Sequence
from typing import TypedDict

from rg_env.core.data.items import Item
from rg_env.core.data.splits import Split, SplitBy, question_hash
from rg_env.core.grading.graders.algorithmic import fit_by_chance
from rg_env.core.grading.graders.logic import Premises

_ONE_IN = {
    2: "circuit_logic course_schedule game_of_life_halting isomorphic_strings modulo_grid ransom_note syllogism",
    3: "acre mahjong_puzzle",
    4: "self_reference",
    5: "binary_alternation gcd largest_island letter_counting maze polynomial_equations pool_matrix rotten_oranges "
    "shortest_path string_insertion string_manipulation",
    6: "propositional_logic",
    10: "graph_color",
}
BALANCED = {task: one_in for one_in, tasks in _ONE_IN.items() for task in tasks.split()}
"""Tasks with balanced answers, each with a number N: no answer is right on more than one row in N (rounded up).

The answer that is balanced is the gold answer, with these exceptions:

- propositional_logic: a variable or a negated variable. Several answers can be right.
- graph_color: any coloring, for graphs with few edges. At most one row in ten has a graph for which a fixed coloring is
  right with a probability above `_CHANCE`.
- modulo_grid: the sign that fills all gaps. With the library's default of a single gap, the rarer sign is the answer in
  one draw in ten.
- string_insertion (in 93% of the draws), string_manipulation, pool_matrix: the text or grid in the question, if it is
  also the answer.
- largest_island: the number of ones in the grid, if they form a single island.
"""
_CHANCE = 0.2

BALANCE_PATIENCE = 300
"""Number of consecutive new questions, all with frequent answers, after which a split is no longer balanced. A run of
this length means that the task's options make other answers rare or impossible."""
PATIENCE_DRAWS = 2000
"""Number of consecutive draws without a new question for a split after which a task is considered exhausted. It is not
a time, so that the rows of an exhausted task are the same on every machine."""


class DrawnRow(TypedDict):
    """One question with everything needed to score an answer."""

    question: str
    answer: str
    """The gold answer in a form that scores 1.0, or "" if the library does not store one."""
    info: dict[str, str]


class Selection:
    """Selects a task's rows from its items, in order."""

    def __init__(
        self,
        task: str,
        config_json: str,
        splits: tuple[Split, ...],
        by: SplitBy = "problem",
    ) -> None:
        self.draws = 0
        self._by = by
        self._common = {"rg_task": task, "config": config_json}
        self._seen: set[str] = set()
        self.parts = {split: SplitRows(BALANCED.get(task, 0)) for split in splits}
        """Rows selected so far for each split."""

    def offer(self, item: Item | None) -> None:
        """Process the next draw's item, or None if the draw yielded no item."""
        self.draws += 1
        key = question_hash(item.question) if item else ""
        split = item.split(self._by) if item else None
        for own, part in self.parts.items():
            if item is not None and own == split and key not in self._seen:
                info = {**self._common, "entry": item.entry, "problem": item.problem}
                answers = _answers(self._common["rg_task"], item)
                part.add({"question": item.question, "answer": item.gold or "", "info": info}, answers)
            else:
                part.miss()
        self._seen.add(key)


class SplitRows:
    """One split's rows in draw order, except that some rows are held back so that no answer is right on more than one
    row in `one_in`."""

    def __init__(self, one_in: int) -> None:
        self.rows: list[DrawnRow] = []
        self.problems: set[str] = set()
        """The problems drawn so far."""
        self._one_in = one_in  # 0 means unlimited
        self._counts: Counter[str] = Counter()
        self._waiting: dict[tuple[str, ...], deque[tuple[int, DrawnRow]]] = {}
        self._number = 0
        self._lag = 0
        self._barren = 0

    def add(self, row: DrawnRow, answers: tuple[str, ...]) -> None:
        self._barren = 0
        self.problems.add(row["info"]["problem"])
        if not self._one_in:
            self.rows.append(row)
            return
        self._number += 1
        self._waiting.setdefault(answers, deque()).append((self._number, row))
        before = len(self.rows)
        while ready := [(queue[0][0], own) for own, queue in self._waiting.items() if self._may_take(own)]:
            own = min(ready)[1]
            self._counts.update(own)
            self.rows.append(self._waiting[own].popleft()[1])
            if not self._waiting[own]:
                del self._waiting[own]
        self._lag = 0 if len(self.rows) > before else self._lag + 1
        if self._lag >= BALANCE_PATIENCE:
            self._stop_balancing()

    def miss(self) -> None:
        self._barren += 1
        if self._barren >= PATIENCE_DRAWS:
            self._stop_balancing()

    def exhausted(self) -> bool:
        """Whether further draws would be useless."""
        return self._barren >= PATIENCE_DRAWS

    def _may_take(self, answers: tuple[str, ...]) -> bool:
        share = -(-(len(self.rows) + 1) // self._one_in)
        return all(self._counts[answer] < share for answer in answers)

    def _stop_balancing(self) -> None:
        left = sorted(((number, row) for queue in self._waiting.values() for number, row in queue), key=lambda x: x[0])
        self.rows += [row for _, row in left]
        self._waiting, self._one_in = {}, 0


def repeated(rows: Sequence[DrawnRow], n: int) -> list[DrawnRow]:
    """Return `n` rows: the distinct rows in order, then repeated ones, chosen so that each problem occurs equally
    often."""
    by_problem: dict[str, list[DrawnRow]] = {}
    for row in rows[:n]:
        by_problem.setdefault(row["info"]["problem"], []).append(row)
    filled = list(rows[:n])
    counts = Counter({problem: len(own) for problem, own in by_problem.items()})
    rarest = [(count, number, problem) for number, (problem, count) in enumerate(counts.items())]
    heapq.heapify(rarest)
    while len(filled) < n:
        count, number, problem = rarest[0]
        filled.append(by_problem[problem][count % len(by_problem[problem])])
        heapq.heapreplace(rarest, (count + 1, number, problem))
    return filled


def _answers(task: str, item: Item) -> tuple[str, ...]:
    """Return the answers to balance (see `BALANCED`) that are right for this item."""
    if task == "propositional_logic":
        return tuple(Premises(json.loads(item.entry)["metadata"]).literals())
    if task == "graph_color":
        return ("any coloring",) if fit_by_chance(json.loads(item.entry)) > _CHANCE else ()
    if task == "modulo_grid":
        shown = item.question.rpartition("\n\n")[2]
        signs = {sign for sign, own in zip(item.gold or "", shown, strict=False) if own == "❔"}
        return tuple(signs) if len(signs) == 1 else ()
    gold = (item.gold or "").strip()
    if task in ("pool_matrix", "string_insertion", "string_manipulation"):
        given = item.question.rpartition(":")[2].split()
        return ("as given",) if given == gold.split() or _numbers(given) == _numbers(gold.split()) else ()
    if task == "largest_island":
        return ("all ones",) if gold == str(sum(map(sum, json.loads(item.entry)["metadata"]["grid"]))) else ()
    return (gold.lower(),)


def _numbers(cells: list[str]) -> list[float] | str:
    """Return the values of the cells, or their text if any cell is not a number."""
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return " ".join(cells)
