"""Rows: questions with all that is needed to score an answer to them, split into training and evaluation.

A row is `{"question": str, "answer": str, "info": {"rg_task", "config", "entry", "share"}}`, all values of `info` text:
the whole library entry as JSON (so that scoring never generates again), and the share of the task among the rows, as
"37/200". The task's key is `rg_task` because verifiers 0.3 reads `info["task"]` itself and wants another thing there.

Which split a question belongs to is decided by the question itself (`core.splits`): training and evaluation rows are
disjoint whatever the seeds. The items of a task are walked from a starting point derived from the seed, and the
distinct questions of the wanted split are kept until there are enough.
"""

import hashlib
import json
import random
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, TypedDict

from rg_env.core import library
from rg_env.core.graders import gold_answer
from rg_env.core.splits import Split, question_hash, split_of
from rg_env.core.tasks import Mixture, TaskSpec
from rg_env.errors import InputError

PATIENCE_DRAWS = 5000
"""A task counts as exhausted after this many draws in a row that gave no new question ..."""
PATIENCE_S = 20.0
"""... or after this many seconds without a new one, for tasks that are slow to draw from ..."""
PATIENCE_MIN_DRAWS = 200
"""... but not before this many draws."""

# acre's items depend on the dataset's size, list_functions, gsm_symbolic and word_ladder cannot go beyond it: items are
# drawn from datasets of a fixed size, one after the other. word_ladder takes no more than 20,000.
_BLOCK = 20_000
_SMALL_BLOCK = {"acre": 500}  # it makes all its items when constructed


class Row(TypedDict):
    """One question with what is needed to score an answer to it."""

    question: str
    answer: str
    """The gold answer in a form that scores 1.0; empty where the library stores none."""
    info: dict[str, str]


class ItemStream:
    """The distinct questions of one task, in an order that depends on (task, config, seed) only, drawn when asked for.

    One stream serves both splits, so that no item is drawn twice.
    """

    def __init__(self, spec: TaskSpec, seed: int) -> None:
        self.spec = spec
        self.draws = 0
        self._block = _SMALL_BLOCK.get(spec.name, _BLOCK)
        # The library draws item i of seed s from Random(s + i): the hash puts nearby seeds far apart. numpy, which some
        # tasks use, takes seeds below 2^32.
        self._start = int.from_bytes(hashlib.sha256(f"rg_env:{seed}".encode()).digest()[:4]) >> 1
        self._dataset: Any = None
        self._seen: set[str] = set()
        self._rows: dict[Split, list[Row]] = {"train": [], "eval": []}
        self._last_new_draw = 0
        self._last_new_time = time.monotonic()

    def take(self, split: Split, n: int) -> list[Row]:
        """The first `n` rows of `split`. Raises `InputError` if the task does not have as many distinct questions."""
        self._last_new_time = time.monotonic()
        with library.quiet():
            while len(self._rows[split]) < n:
                if self._exhausted():
                    found = len(self._rows[split])
                    raise InputError(
                        f"task {self.spec.name!r} has too few distinct questions: {n} asked for the {split} split, "
                        f"{found} found in {self.draws} draws; ask for fewer, or make its config wider"
                    )
                self._draw()
        return self._rows[split][:n]

    def _exhausted(self) -> bool:
        barren = self.draws - self._last_new_draw
        if barren >= PATIENCE_DRAWS:
            return True
        return barren >= PATIENCE_MIN_DRAWS and time.monotonic() - self._last_new_time > PATIENCE_S

    def _draw(self) -> None:
        block, index = divmod(self.draws, self._block)
        seed = self._start + block * self._block
        if index == 0:
            self._dataset = library.create(self.spec.name, self.spec.config, seed=seed, size=self._block)
        random.seed(seed + index)  # list_functions draws from the global generator; `quiet` restores it
        try:
            entry = self._dataset[index]
        except Exception as error:  # options that pass the library's own check and fail when used
            raise library.bad_options(self.spec.name, self.spec.config, error) from error
        self.draws += 1
        question = entry["question"]
        key = question_hash(question)
        gold = gold_answer(self.spec.name, entry)
        # A blank gold answer (string_manipulation has some) cannot be told from no answer at all.
        if key in self._seen or (gold is not None and not gold.strip()):
            return
        self._seen.add(key)
        self._last_new_draw, self._last_new_time = self.draws, time.monotonic()
        info = {
            "rg_task": self.spec.name,
            "config": self.spec.config_json,
            "entry": json.dumps(entry, default=library.to_plain),
        }
        self._rows[split_of(question)].append({"question": question, "answer": gold or "", "info": info})


def build_rows(mixture: object, split: Split, n: int, seed: int) -> list[Row]:
    """`n` distinct questions of `split`; `mixture` is anything that `Mixture.parse` takes.

    Tasks share the rows by weight and are shuffled together by `seed`. Raises `InputError` for options that the library
    refuses and for a task that does not have enough distinct questions.
    """
    parsed = Mixture.parse(mixture)
    return _build(parsed, split, n, seed, _streams(parsed, seed))


def build_splits(
    gym: object, num_train: int, num_eval: int, seed: int, eval_seed: int = 0
) -> tuple[list[Row], list[Row], dict[str, Any]]:
    """Training rows, evaluation rows and their manifest.

    `seed` picks the training rows and `eval_seed` the evaluation rows, so that the evaluation set stays the same while
    training seeds change.
    """
    mixture = Mixture.parse(gym)
    streams = _streams(mixture, seed)
    train = _build(mixture, "train", num_train, seed, streams)
    if eval_seed != seed:
        streams = _streams(mixture, eval_seed)
    evaluation = _build(mixture, "eval", num_eval, eval_seed, streams)
    manifest = {
        "versions": {name: version(name) for name in ("rg-env", "reasoning-gym")},
        "tasks": mixture.model_dump()["tasks"],
        "splits": {"train": _split_manifest(train, seed), "eval": _split_manifest(evaluation, eval_seed)},
    }
    return train, evaluation, manifest


def _streams(mixture: Mixture, seed: int) -> list[ItemStream]:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed must be a whole number, not {seed!r}")
    return [ItemStream(spec, seed) for spec in mixture.tasks]


def _build(mixture: Mixture, split: Split, n: int, seed: int, streams: list[ItemStream]) -> list[Row]:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise InputError(f"the number of {split} examples must be a whole number from 0 up, not {n!r}")
    rows: list[Row] = []
    for stream, count in zip(streams, mixture.counts(n), strict=True):
        for row in stream.take(split, count):
            rows.append({**row, "info": {**row["info"], "share": f"{count}/{n}"}})
    random.Random(f"{split}:{seed}").shuffle(rows)
    return rows


def _split_manifest(rows: Iterable[Row], seed: int) -> dict[str, Any]:
    hashes = [question_hash(row["question"]) for row in rows]
    return {
        "seed": seed,
        "size": len(hashes),
        "sha256": hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
        "question_hashes": hashes,
    }
