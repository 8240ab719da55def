"""Compare our graders with the library's on honest answers.

Honest answers are those that a model might actually give: the gold answer, small edits to it, and gold answers to other
questions. The library's graders are safe on honest answers, but not on arbitrary text.
"""

import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rg_env.core.data.problem_keys import problem_key
from rg_env.core.grading.audit import Audit
from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.common import prefix
from rg_env.core.grading.graders.forms import same_text
from rg_env.core.grading.graders.gold import NO_OPTIONS, corrected
from rg_env.core.grading.scoring import CORRECT_FROM
from rg_env.core.grading.workers import WorkerPool

from .disagreements import DISAGREEMENTS, explanation
from .rows import draws, entries_of
from .wrappings import taken

LIBRARY_S = 20.0
WRAPPED = 100
"""Maximum number of gold answers to try in each wrapping (see `wrappings`)."""
_OPPOSITES = [("True", "False"), ("Yes", "No"), ("yes", "no"), ("true", "false"), ("knight", "knave")]


@dataclass(frozen=True)
class Honest:
    """One honest answer to one entry."""

    kind: str
    entry: dict[str, Any]
    answer: str


def changed(answer: str, rng: random.Random) -> list[str]:
    """Return variants of a gold answer, each one edit away from it. Most variants are wrong; some, such as those in
    another order, may be right."""
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


def honest_answers(
    task: str, entries: list[dict[str, Any]], seed: int = 0, config: Mapping[str, Any] = NO_OPTIONS
) -> Iterator[Honest]:
    """Yield each entry's gold answer, variants of that answer, and up to two different gold answers to other
    entries."""
    rng = random.Random(f"{task}:{seed}")
    golds = [gold_answer(task, entry, config) for entry in entries]
    for entry, gold in zip(entries, golds, strict=True):
        if gold is not None and gold.strip():
            yield Honest("gold", entry, gold)
            yield from (Honest("changed", entry, text) for text in changed(gold, rng))
        others = [other for other in golds if other and other.strip() and other != gold]
        for other in rng.sample(others, min(2, len(others))):
            yield Honest("another's gold", entry, other)


def compare(task: str, items: int = 100, seeds: Sequence[int] = (0,), config: Mapping[str, Any] | None = None) -> Audit:
    """Draw `items` questions for each seed, and grade honest answers to them with both graders.

    The library's grader may run for `LIBRARY_S` seconds per task, because grading an antiderivative can take seconds.
    After that, answers are graded only by our grader and not compared.
    """
    result = Audit(task)
    config = dict(config or {})
    entries: list[dict[str, Any]] = []
    drawing = grading = library_s = 0.0
    graded = 0
    for seed in seeds:
        entries_of(task, 1, seed, config)  # imports modules and loads word lists, which must not be timed
        start, passed_over = time.perf_counter(), draws().passed_over[task]
        drawn = entries_of(task, items, seed, config)
        drawing += time.perf_counter() - start
        result.left_out += draws().passed_over[task] - passed_over
        entries += drawn
        for honest in honest_answers(task, drawn, seed, config):
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
                _differs(result, honest, right)
    golds = [gold_answer(task, entry, config) for entry in entries]
    result.items, result.distinct = len(entries), len({entry["question"] for entry in entries})
    result.problem_keys = len({problem_key(task, entry) for entry in entries})
    result.corrected = sum(corrected(task, entry, config) is not entry for entry in entries)
    result.without_gold = sum(gold is None or not gold.strip() for gold in golds)
    result.wrapping, result.wrapping_refused = taken(task, entries[:WRAPPED], config)
    result.draw_ms = 1e3 * drawing / len(entries)
    result.grade_us = 1e6 * grading / max(1, graded)
    return result


def _differs(result: Audit, honest: Honest, right: bool) -> None:
    """Count a disagreement on this answer; `right` is our verdict."""
    result.disagreements += 1
    gold = str(gold_answer(result.task, honest.entry))
    apart = prefix(honest.answer.strip(), gold.strip())
    verdict = "right" if right else "wrong"
    example = f"{_around(honest.answer, apart)} is {verdict}, gold {_around(gold, apart)}"
    kind = explanation(result.task, honest.entry, honest.answer, right)
    if kind is not None:
        known = {"count": 0, "why": DISAGREEMENTS[result.task][kind]["why"], "example": example}
        result.kinds.setdefault(kind, known)["count"] += 1
        return
    result.unexplained += 1
    if len(result.examples) < 5:
        result.examples.append(f"{honest.kind} {example}")


def _around(text: str, apart: int) -> str:
    """Return `text`, or an excerpt around position `apart` if the text is long. `apart` is where the text first differs
    from the one it is compared with."""
    text = text.strip()
    if len(text) <= 60:
        return repr(text)
    start = max(0, min(apart - 30, len(text) - 60))
    return repr(("..." if start else "") + text[start : start + 60] + ("..." if start + 60 < len(text) else ""))


@cache
def _library_pool() -> WorkerPool:
    return WorkerPool(
        "rg_env.core.grading.upstream:library_grade",
        workers=1,
        wall_s=5,
        start_s=120,
        warmup="rg_env.core.tasks.library:factory",
    )


def _library_value(task: str, config: dict[str, Any], entry: dict[str, Any], answer: str) -> float | None:
    """Return the library's score. It is 0.0 if the grader raises an error, as several graders do on unexpected text,
    and None if the process dies or grading takes too long, as it sometimes does for antiderivatives."""
    outcome = _library_pool().call(task, config, entry, answer)
    if outcome.status in ("timed_out", "died"):
        return None
    return float(outcome.value) if outcome.status == "ok" else 0.0
