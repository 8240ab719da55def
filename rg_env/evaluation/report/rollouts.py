"""Rollouts in a report, read from files of records (see `evaluation.runner`) up to a limit.

    rollouts, answers, notes = gather([file_source(folder / "rollouts.jsonl", "training")], limit=10_000)

Sources are read twice: first to count all rollouts, then to collect those in the report.
"""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rg_env.core.data.splits import question_hash
from rg_env.core.run_folder import damaged, json_lines
from rg_env.core.text import counted
from rg_env.evaluation.runner import Answer

MAX_CHARACTERS = 50_000_000
"""Maximum number of model-written characters in a report; more would make browsers slow."""
Record = dict[str, Any]
Source = Callable[[], Iterator[Record]]
_TEXTS = ("question", "answer", "completion", "reasoning", "extracted", "detail", "error")
_SHOWN = (
    "source", "part", "model", "task", "level", "step", "problem", "rollout", "draw", "answer", "reasoning",
    "completion", "extracted", "prompt_tokens", "completion_tokens", "truncated", "score", "correct", "reward",
    "rewards", "status", "detail", "error", "seconds",
)  # fmt: skip


Answers = dict[tuple[str, str], dict[str, list[Answer]]]
"""Each sampled answer in an evaluation, by (model, task) and question."""


@dataclass
class Rollouts:
    """Content of the rollout browser. Shared texts (questions, system prompts) are stored once, in `texts`."""

    records: list[Record] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    """Steps of a run, or models, in display order; their answers to a question can be compared."""
    found: int = 0
    """Total number of rollouts, including omitted ones."""


def file_source(file: Path, kind: str, tasks: Container[str] | None = None) -> Source:
    """Source for a file of "training" or "evaluation" rollouts; it yields only rollouts on `tasks` (None: all)."""

    def read() -> Iterator[Record]:
        for record in json_lines(file):
            if not isinstance(record.get("question"), str):
                raise damaged(file, "a rollout has no question")
            if tasks is None or record.get("task") in tasks:
                yield {**record, "source": kind, "variant": record.get("model") if kind == "evaluation" else None}

    return read


def step_source(rollouts: Sequence[Record], step: int) -> Source:
    """Source for the rollouts of an evaluation in a training run."""
    place = {"source": "evaluation", "variant": f"step {step}", "step": step, "model": None}
    return lambda: ({**record, **place} for record in rollouts)


class _Found(NamedTuple):
    """The last record of an answer; earlier records, from failed calls, do not count."""

    number: int
    question: str
    characters: int
    answer: Answer


def gather(
    sources: Sequence[Source],
    limit: int,
    *,
    variants: Sequence[str] = (),
    system_prompt: Callable[[Record], str | None] = lambda _: None,
    characters: int = MAX_CHARACTERS,
) -> tuple[Rollouts, Answers, list[str]]:
    """Collect at most `limit` rollouts from all sources; either all or none of the answers to a question are included.

    Args:
        variants: models in display order.
        system_prompt: returns a rollout's system prompt.
        characters: maximum total number of characters.

    Returns:
        The rollouts; all answers, including those of omitted rollouts; and notes about repeated and omitted ones.

    Raises:
        InputError: a source is damaged or unreadable.
    """
    found: dict[tuple[Any, ...], _Found] = {}
    number = -1
    for number, record in enumerate(_all(sources)):
        size = sum(len(str(record.get(name) or "")) for name in _TEXTS)
        answer = Answer.of({**dict.fromkeys(Answer._fields), **record})
        found[_identity(record, number)] = _Found(number, question_hash(record["question"]), size, answer)
    chosen = _chosen(found.values(), limit, characters)
    rollouts, texts = Rollouts(found=len(found), variants=list(variants)), dict[str, int]()
    last = {each.number for each in found.values() if each.question in chosen}
    for number, record in enumerate(_all(sources)):
        if number in last:
            rollouts.records.append(_page_record(record, texts, rollouts.variants, system_prompt(record)))
    rollouts.texts = list(texts)
    answers: Answers = {}
    for (_, model, task, question, _, draw), each in found.items():
        if model and draw != "greedy":
            answers.setdefault((model, task), {}).setdefault(question, []).append(each.answer)
    notes = []
    if (repeated := number + 1 - len(found)) > 0:
        notes.append(f"{counted(repeated, 'repeated rollout')}: the last record of each counts")
    if len(last) < len(found):
        questions = len({each.question for each in found.values()})
        notes.append(
            f"{len(last):,} of {len(found):,} rollouts are on this page: all answers to {len(chosen):,} of "
            f"{questions:,} questions (--max-rollouts N: up to N, or {characters / 1e6:.0f} million characters)"
        )
    return rollouts, answers, notes


def _all(sources: Sequence[Source]) -> Iterator[Record]:
    for source in sources:
        yield from source()


def _identity(record: Record, number: int) -> tuple[Any, ...]:
    """Identity of a record: kind, variant, task, question, answer index and draw; in training, the record's index."""
    if record["source"] == "training":
        return "training", None, "", "", number, None
    question, answer = record.get("row") or question_hash(record["question"]), record.get("rollout", number)
    return "evaluation", record["variant"], record.get("task", ""), question, answer, record.get("draw")


def _chosen(found: Iterable[_Found], limit: int, characters: int) -> set[str]:
    """Questions that fit within the limits, selected in hash order, so that the selection is not biased by their
    content."""
    sizes: dict[str, list[int]] = {}
    for each in found:
        sizes.setdefault(each.question, []).append(each.characters)
    chosen: set[str] = set()
    for question, texts in sorted(sizes.items()):
        limit, characters = limit - len(texts), characters - sum(texts)
        if limit < 0 or characters < 0:
            break
        chosen.add(question)
    return chosen


def _page_record(record: Record, texts: dict[str, int], variants: list[str], system: str | None) -> Record:
    """The record for the report, with shared texts and the variant replaced by their indices."""
    shown = {name: record[name] for name in _SHOWN if record.get(name) is not None}
    if not isinstance(shown.get("answer", ""), str):  # gold answers of custom rows may be numbers or lists
        shown["answer"] = json.dumps(shown["answer"], ensure_ascii=False)
    if "rewards" in shown:
        shown["rewards"] = {name: value for name, value in shown["rewards"].items() if value is not None}
    shown["question"] = texts.setdefault(record["question"], len(texts))
    if system:
        shown["system"] = texts.setdefault(system, len(texts))
    if variant := record["variant"]:
        if variant not in variants:
            variants.append(variant)
        shown["variant"] = variants.index(variant)
    return shown
