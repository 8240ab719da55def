"""Does each task's grader do what it must? Measured on honest answers, and kept in `task_audit.json`.

    rg-env tasks --audit                                   # the table as kept
    rg-env tasks --audit --measure --items 100 --seeds 3   # measured anew; --write keeps it

Honest answers are those that a model could give in earnest: the gold answer, gold answers a little changed, gold
answers of other questions. The library's graders are safe on them; they are not on arbitrary text.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rg_env.core.dataset import build_rows
from rg_env.core.draws import Draws
from rg_env.core.graders import gold_answer, grade
from rg_env.core.graders.common import prefix
from rg_env.core.graders.disagreements import DISAGREEMENTS, explanation
from rg_env.core.graders.forms import same_text
from rg_env.core.graders.table import GRADERS
from rg_env.core.selection import BALANCED
from rg_env.core.workers import WorkerPool

PATH = Path(__file__).with_name("task_audit.json")
CORRECT_FROM = 1 - 1e-9
"""What counts as right, of the library's scores too: some are off by a rounding error, and 0.9999995 is no such error
but what time_intervals pays for a wrong second."""
LIBRARY_S = 20.0
_OPPOSITES = [("True", "False"), ("Yes", "No"), ("yes", "no"), ("true", "false"), ("knight", "knave")]


@dataclass(frozen=True)
class Honest:
    """One honest answer to one entry."""

    kind: str
    entry: dict[str, Any]
    answer: str


@dataclass
class Audit:
    """What was measured on one task."""

    task: str
    items: int = 0
    """Questions looked at."""
    distinct: int = 0
    """Different ones among them."""
    without_gold: int = 0
    """Questions that the library stores no answer to, or none that follows."""
    gold_wrong: int = 0
    """Gold answers that do not score 1.0."""
    answers: int = 0
    """Honest answers graded by both, ours and the library's."""
    disagreements: int = 0
    """Those that our grader and the library's do not both call right, or both wrong."""
    unexplained: int = 0
    """Those among them that are of none of the task's kinds in `core.graders.disagreements`."""
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The others by kind: `count`, and the first one as `example`."""
    constant: float = 0.0
    """Share of the questions that the best constant answer is right on; of rows, where `core.selection` balances."""
    draw_ms: float = 0.0
    """Mean time to draw a question."""
    grade_us: float = 0.0
    """Mean time to grade an honest answer."""
    examples: list[str] = field(default_factory=list)
    """Some that are unexplained, for people."""

    @property
    def agreement(self) -> float:
        """Share of honest answers on which both graders agree."""
        return 1 - self.disagreements / max(1, self.answers)

    @property
    def fine(self) -> bool:
        """All gold answers are right, and every disagreement is explained."""
        return not self.gold_wrong and not self.unexplained

    def differs(self, honest: Honest, right: bool) -> None:
        """Count a disagreement on this answer, which we say is `right`."""
        self.disagreements += 1
        gold = str(gold_answer(self.task, honest.entry))
        apart = prefix(honest.answer.strip(), gold.strip())
        verdict = "right" if right else "wrong"
        example = f"{_around(honest.answer, apart)} is {verdict}, gold {_around(gold, apart)}"
        kind = explanation(self.task, honest.entry, honest.answer, right)
        if kind is not None:
            self.kinds.setdefault(kind, {"count": 0, "example": example})["count"] += 1
            return
        self.unexplained += 1
        if len(self.examples) < 5:
            self.examples.append(f"{honest.kind} {example}")


def _around(text: str, apart: int) -> str:
    """A long text as what is around the place where it departs from another."""
    text = text.strip()
    if len(text) <= 60:
        return repr(text)
    start = max(0, min(apart - 30, len(text) - 60))
    return repr(("..." if start else "") + text[start : start + 60] + ("..." if start + 60 < len(text) else ""))


def changed(answer: str, rng: random.Random) -> list[str]:
    """Variants of a gold answer, each one edit away: most are wrong, some (another order, say) may be right."""
    found = []
    digits = [match.start() for match in re.finditer(r"\d", answer)]
    if digits:
        at = rng.choice(digits)
        found.append(answer[:at] + str((int(answer[at]) + rng.randint(1, 9)) % 10) + answer[at + 1 :])
    if len(set(answer)) > 1:
        first, second = rng.sample(range(len(answer)), 2)
        letters = list(answer)
        letters[first], letters[second] = letters[second], letters[first]
        found.append("".join(letters))
    for separator in ("\n", " ", ","):
        parts = answer.split(separator)
        if len(parts) > 1:
            at = rng.randrange(len(parts))
            found += [separator.join(parts[:at] + parts[at + 1 :]), separator.join([*parts, parts[at]])]
            found.append(separator.join(rng.sample(parts, len(parts))))
            break
    for pair in _OPPOSITES:
        for old, new in (pair, pair[::-1]):
            if old in answer:
                found.append(answer.replace(old, new, 1))
    return [text for text in dict.fromkeys(found) if text.strip() and not same_text(text, answer)]


def honest_answers(task: str, entries: list[dict[str, Any]], seed: int = 0) -> Iterator[Honest]:
    """The gold answer of each entry, changed ones, and those of two other entries."""
    rng = random.Random(f"{task}:{seed}")
    golds = [gold_answer(task, entry) for entry in entries]
    for entry, gold in zip(entries, golds, strict=True):
        if gold is not None and gold.strip():
            yield Honest("gold", entry, gold)
            yield from (Honest("changed", entry, text) for text in changed(gold, rng))
        others = [other for other in golds if other and other.strip() and other != gold]
        for other in rng.sample(others, min(2, len(others))):
            yield Honest("another's gold", entry, other)


def audit(task: str, items: int = 100, seeds: Sequence[int] = (0,), config: Mapping[str, Any] | None = None) -> Audit:
    """Draw `items` questions for each seed, and grade honest answers to them with both graders.

    The library's grader gets `LIBRARY_S` seconds a task: its integrations take up to seconds an answer. What it has not
    graded by then is graded by ours alone, and not compared.
    """
    result = Audit(task)
    library_s = 0.0
    config = dict(config or {})
    entries: list[dict[str, Any]] = []
    drawing = grading = 0.0
    graded = 0
    for seed in seeds:
        entries_of(task, 1, seed, config)  # imports the task and loads word lists: no question should be charged for it
        start = time.perf_counter()
        drawn = entries_of(task, items, seed, config)
        drawing += time.perf_counter() - start
        entries += drawn
        for honest in honest_answers(task, drawn, seed):
            answer = honest.answer.strip()
            start = time.perf_counter()
            ours = grade(task, config, honest.entry, answer)
            grading += time.perf_counter() - start
            graded += 1
            result.gold_wrong += honest.kind == "gold" and ours < CORRECT_FROM
            if library_s > LIBRARY_S:
                continue
            start = time.perf_counter()
            theirs = _library_value(task, config, honest.entry, answer)
            library_s += time.perf_counter() - start
            if theirs is None:
                continue
            result.answers += 1
            right = ours >= CORRECT_FROM
            if right != (theirs >= CORRECT_FROM):
                result.differs(honest, right)
    golds = [gold_answer(task, entry) for entry in entries]
    result.items, result.distinct = len(entries), len({entry["question"] for entry in entries})
    result.without_gold = sum(gold is None or not gold.strip() for gold in golds)
    result.draw_ms = 1e3 * drawing / len(entries)
    result.grade_us = 1e6 * grading / max(1, graded)
    if task in BALANCED:  # where rows are not what the library draws
        rows = build_rows({"name": task, "config": config}, "train", len(entries), seeds[0])
        entries = [json.loads(row["info"]["entry"]) for row in rows]
        golds = [gold_answer(task, entry) for entry in entries]
    common = Counter(gold for gold in golds if gold).most_common(3)
    result.constant = max(
        (sum(grade(task, config, entry, gold) for entry in entries) / len(entries) for gold, _ in common), default=0.0
    )
    return result


@cache
def _library_pool() -> WorkerPool:
    return WorkerPool(
        "rg_env.core.graders.library:grade", workers=1, wall_s=5, start_s=120, warmup="rg_env.core.library:factory"
    )


def _library_value(task: str, config: dict[str, Any], entry: dict[str, Any], answer: str) -> float | None:
    """The library's score; 0.0 where its grader raises, as several do on texts that they do not expect. None where it
    takes too long: its integrations now and then take minutes."""
    outcome = _library_pool().call(task, config, entry, answer)
    if outcome.status in ("timed_out", "died"):
        return None
    return float(outcome.value) if outcome.status == "ok" else 0.0


@cache
def _draws() -> Draws:
    return Draws()


def entries_of(task: str, n: int, seed: int = 0, config: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """`n` entries as rows carry them: drawn as rows are, where the library is mended, but none left out as a repeat."""
    return [json.loads(item.entry) for item in _draws().items(task, n, seed, config)]


def kept() -> dict[str, Audit]:
    """The audits as shipped with the package."""
    rows: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return {task: Audit(task, **row) for task, row in rows.items()}


def keep(audits: Iterable[Audit]) -> None:
    """Write these audits into the table, and leave those of other tasks."""
    table = kept() if PATH.exists() else {}
    table |= {result.task: result for result in audits}
    lines = []
    for task, result in sorted(table.items()):
        row = {name: value for name, value in vars(result).items() if name not in ("task", "examples")}
        row = {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
        lines.append(f"  {json.dumps(task)}: {json.dumps(row, ensure_ascii=False)}")
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


HEADER = (
    f"{'task':24} {'grader':34} {'items':>6} {'gold':>9} {'agrees':>7} {'constant':>8} {'draw ms':>8} {'grade us':>8}"
)


def grader_name(task: str) -> str:
    """Module and function of a task's grader."""
    grader = GRADERS[task]
    return f"{grader.__module__.rpartition('.')[2]}.{grader.__name__}"


def line(result: Audit) -> str:
    """One line of the table, under `HEADER`; below it what the library does otherwise, and how often it did."""
    golds = result.items - result.without_gold
    right = f"{golds - result.gold_wrong}/{golds}"
    lines = [
        f"{result.task:24} {grader_name(result.task):34} {result.items:6} {right:>9} {result.agreement:7.3f} "
        f"{result.constant:8.2f} {result.draw_ms:8.2f} {result.grade_us:8.1f}"
    ]
    for name, kind in DISAGREEMENTS.get(result.task, {}).items():
        seen = result.kinds.get(name, {"count": 0})
        lines.append(f"    {seen['count']:4} of {result.answers}: {kind.why}")
        lines += [f"         so {seen['example']}"] if seen["count"] else []
    return "\n".join(lines)
