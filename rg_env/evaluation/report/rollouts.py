"""Rollouts for a report's page: from lines of JSON and from evaluations of a run, checked, and not too many.

    sources = [line_source(folder / "rollouts.jsonl", training=True), *evaluation_sources]
    gathered = gather(sources, limit=10_000)

A source can be read twice: first all of it is counted, then what the page holds is kept. Of a record all but question
and completion may be missing; one without these, or with a value of the wrong type, is damaged: counted, never shown.
"""

import json
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rg_env.core.data.splits import question_hash
from rg_env.core.grading.extraction import extract
from rg_env.core.json_values import json_lines, number_of, text_of, whole_of
from rg_env.evaluation.report.parts import Rollouts

MAX_CHARACTERS = 50_000_000
"""Of model text in a page: more makes browsers slow."""
Record = dict[str, Any]

_TEXTS = ("question", "answer", "completion", "reasoning", "extracted", "detail", "error")
_NAMES = ("model", "task", "row", "part", "status", "source", "draw", "variant")
_WHOLE = ("problem", "rollout", "step", "level", "prompt_tokens", "completion_tokens")
_NUMBERS = ("score", "reward", "seconds")
_SHOWN = (
    "source", "part", "model", "task", "level", "step", "problem", "rollout", "draw", "answer", "reasoning",
    "completion", "extracted", "prompt_tokens", "completion_tokens", "truncated", "score", "correct", "reward",
    "rewards", "status", "detail", "error", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where rollouts come from. `read` gives them anew each time; None stands for a damaged one."""

    name: str
    read: Callable[[], Iterator[Record | None]]


@dataclass
class Gathered:
    """What `gather` found."""

    rollouts: Rollouts
    notes: list[str] = field(default_factory=list)
    answers: dict[tuple[str, str], dict[str, list[Record]]] = field(default_factory=dict)
    """By model and task, then by question: `correct` and `reward` of each rollout that has a model."""


def line_source(file: Path, *, training: bool, tasks: Container[str] | None = None) -> Source:
    """The rollouts in a file with one JSON object a line: of training, or of an evaluation (`None`: of all tasks)."""

    def read() -> Iterator[Record | None]:
        for values in json_lines(file):
            record = None if values is None else checked(values)
            if record is None:
                yield None
            elif tasks is not None and record.get("task") not in tasks:
                continue
            elif training:
                yield record | {"source": "training"}
            else:
                yield record | {"source": "evaluation", "variant": record.get("model", "")}

    return Source(file.name, read)


def evaluation_records(values: Mapping[str, Any], step: int) -> Iterator[Record | None]:
    """The rollouts in an evaluation of a run."""
    for found in values["rollouts"]:
        record = checked(found)
        yield record and record | {"source": "evaluation", "variant": f"step {step}", "step": step}


def checked(values: Mapping[str, Any], graded: bool | None = None) -> Record | None:
    """A record's known fields, those that are None left out; None if one has the wrong type, or there is no rollout.

    Where rg_env graded the answer, which a status tells (or `graded`), and the record does not say what was extracted,
    it is extracted anew: there is one rule.
    """
    record: Record = {}
    for names, fits in ((_TEXTS, _any_text), (_NAMES, text_of), (_WHOLE, whole_of), (_NUMBERS, number_of)):
        for name in names:
            if (value := values.get(name)) is not None:
                if (kept := fits(value)) is None:
                    return None
                record[name] = kept
    for name in ("correct", "truncated"):
        if (value := values.get(name)) is not None:
            if not isinstance(value, bool):
                return None
            record[name] = value
    if (rewards := values.get("rewards")) is not None:
        if not isinstance(rewards, dict) or any(v is not None and number_of(v) is None for v in rewards.values()):
            return None
        record["rewards"] = {name: value for name, value in rewards.items() if value is not None}
    if "question" not in record or not ("completion" in record or "error" in record):
        return None
    if (graded if graded is not None else "status" in record) and "extracted" not in values:
        answer = extract(record.get("completion")).answer
        record |= {} if answer is None else {"extracted": answer}
    if "error" in record:
        record.setdefault("status", "failed")
    return record


def _any_text(value: Any) -> str | None:
    """Questions and answers of other environments may be numbers or lists."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass
class _Count:
    """What the first reading found."""

    damaged: Counter[str] = field(default_factory=Counter)
    rollouts: Counter[str] = field(default_factory=Counter)
    """By question's hash."""
    characters: Counter[str] = field(default_factory=Counter)
    latest: dict[tuple[Any, ...], tuple[int, Record]] = field(default_factory=dict)
    """By what says which rollout it is: the last line about it, and its figures."""
    repeated: int = 0


def gather(
    sources: Sequence[Source],
    limit: int,
    *,
    models: Sequence[str] = (),
    system_prompt: Callable[[Record], str | None] = lambda _: None,
) -> Gathered:
    """The rollouts of all sources, at most `limit`, and those to one question all or none.

    An evaluation that was resumed has several lines about one rollout, the last of which counts.

    Args:
        models: in the order in which the page is to name them.
        system_prompt: that of a rollout.

    Raises:
        InputError: a source cannot be read.
    """
    count = _count(sources)
    chosen, found = _chosen(count, limit), sum(count.rollouts.values()) - count.repeated
    rollouts = Rollouts(found=found, variants=list(models))
    texts: dict[str, int] = {}
    for number, record in enumerate(_all(sources)):
        if record is None or question_hash(record["question"]) not in chosen:
            continue
        if (identity := _identity(record, number)) is not None and count.latest[identity][0] != number:
            continue
        rollouts.records.append(_page_record(record, texts, rollouts.variants, system_prompt(record)))
    rollouts.texts = list(texts)
    gathered = Gathered(rollouts)
    for name, lines in count.damaged.items():
        gathered.notes.append(f"{name}: {lines} damaged {'rollout' if lines == 1 else 'rollouts'} left out")
    if count.repeated:
        gathered.notes.append(f"{count.repeated} rollouts were written again later: the last line about each counts")
    if len(rollouts.records) < found:
        gathered.notes.append(
            f"{len(rollouts.records):,} of {found:,} rollouts are in this page: all answers to {len(chosen):,} of "
            f"{len(count.rollouts):,} questions (--rollouts N: up to N, or {MAX_CHARACTERS / 1e6:.0f} million letters)"
        )
    for (model, task, question, *_), (_, figures) in count.latest.items():
        gathered.answers.setdefault((model, task), {}).setdefault(question, []).append(figures)
    return gathered


def _all(sources: Sequence[Source]) -> Iterator[Record | None]:
    for source in sources:
        yield from source.read()


def _identity(record: Record, number: int) -> tuple[Any, ...] | None:
    """Which rollout of a model it is: model, task, question, rollout, or the line where that is not told."""
    if record["source"] != "evaluation" or "model" not in record:
        return None
    question = record.get("row") or question_hash(record["question"])
    return record["model"], record.get("task", ""), question, record.get("rollout", f"line {number}")


def _count(sources: Sequence[Source]) -> _Count:
    count, number = _Count(), -1
    for source in sources:
        for record in source.read():
            number += 1
            if record is None:
                count.damaged[source.name] += 1
                continue
            question = question_hash(record["question"])
            count.rollouts[question] += 1
            count.characters[question] += sum(len(record.get(name, "")) for name in _TEXTS)
            if (identity := _identity(record, number)) is not None:
                count.repeated += identity in count.latest
                figures: Record = {name: record[name] for name in ("correct", "reward") if name in record}
                count.latest[identity] = (number, figures)
    return count


def _chosen(count: _Count, limit: int) -> set[str]:
    """Questions by their hash, which has nothing to do with what they are about, as long as there is room."""
    if sum(count.rollouts.values()) <= limit and sum(count.characters.values()) <= MAX_CHARACTERS:
        return set(count.rollouts)
    chosen, rollouts, characters = set(), 0, 0
    for question in sorted(count.rollouts):
        rollouts, characters = rollouts + count.rollouts[question], characters + count.characters[question]
        if rollouts > limit or characters > MAX_CHARACTERS:
            break
        chosen.add(question)
    return chosen


def _page_record(record: Record, texts: dict[str, int], variants: list[str], system: str | None) -> Record:
    """As it stands in the page: shared texts and the variant by number."""
    shown = {name: record[name] for name in _SHOWN if name in record}
    shown["question"] = texts.setdefault(record["question"], len(texts))
    if system:
        shown["system"] = texts.setdefault(system, len(texts))
    if variant := record.get("variant"):
        if variant not in variants:
            variants.append(variant)
        shown["variant"] = variants.index(variant)
    return shown
