"""Drawing items from the library, one by one, so that an item depends on (task, config, seed, index) only.

`ItemStream` is used inside generation processes (`core.row_child`), where the hash seed is fixed and `core.mends` has
mended the library. Callers want `core.dataset`.
"""

import hashlib
import json
import random
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rg_env.core.data.problem_keys import problem_key
from rg_env.core.data.splits import Split, SplitBy, question_hash, split_of
from rg_env.core.grading.graders.gold import gold_answer
from rg_env.core.tasks import library
from rg_env.core.tasks.library_fixes import is_item
from rg_env.core.tasks.task_table import is_user_task
from rg_env.core.tasks.user_tasks import checked_entry
from rg_env.errors import InputError

# acre's items depend on the dataset's size, list_functions, gsm_symbolic and word_ladder cannot go beyond it: items are
# drawn from datasets of a fixed size, one after the other. word_ladder takes no more than 20,000.
_BLOCK = 20_000
_SMALL_BLOCK = {"acre": 500}  # it makes all its items when constructed

SLOW_DRAWS = Path(__file__).with_name("slow_draws.json")
"""Draws known to take too long, which every build skips: a list of {"task", "config", "reasoning-gym", "seeds"}."""


class Item(NamedTuple):
    """One question of a task."""

    question: str
    gold: str | None
    """The gold answer in a form that scores 1.0; None where the library stores none."""
    entry: str
    """The library's whole entry as JSON."""
    problem: str
    """The key of the problem that the question asks (`core.problem_keys`)."""

    def split(self, by: SplitBy) -> Split:
        """The split that it belongs to."""
        return split_of(self.problem if by == "problem" else question_hash(self.question))


class DrawFailed(InputError):
    """The library raised on one item."""


class ItemStream:
    """The items of one task under one seed."""

    def __init__(self, task: str, config: Mapping[str, Any], seed: int) -> None:
        self.task = task
        self.config = config
        self._seed = seed
        self._slow = slow_seeds(task, config)
        self._block = -1
        self._dataset: Any = None
        self._repeated = False
        """Whether an item of a user's task was drawn twice, to see that it stays the same."""

    def draw(self, index: int) -> Item | None:
        """Item `index`; None if the draw gives no question: it is on the shipped list, or its gold answer is blank
        (string_manipulation has some), which cannot be told from no answer at all.

        Raises `InputError` for options that the library refuses, and `DrawFailed` where it fails on this item.
        """
        seed = item_seed(self._seed, index)
        if seed in self._slow:
            return None
        size = _SMALL_BLOCK.get(self.task, _BLOCK)
        block, within = divmod(index, size)
        if block != self._block:
            self._dataset = library.create(self.task, self.config, seed=seed - within, size=size)
            self._block = block
        entry = self._entry(seed, within)
        if is_user_task(self.task):
            entry = checked_entry(self.task, entry)
            if not self._repeated and repr(checked_entry(self.task, self._entry(seed, within))) != repr(entry):
                raise InputError(
                    f"task {self.task!r}: item {within} is another one when it is drawn again; an item must depend on "
                    f"the config and Random(seed + index) only"
                )
            self._repeated = True
        if not is_item(self.task, entry):
            return None
        gold = gold_answer(self.task, entry, self.config)
        if gold is not None and not gold.strip():
            return None
        text = json.dumps(entry, default=library.to_plain)
        return Item(entry["question"], gold, text, problem_key(self.task, json.loads(text)))

    def _entry(self, seed: int, within: int) -> Any:
        # list_functions draws from the global generator, pool_matrix and snippets of codeio from numpy's too.
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
        try:
            return self._dataset[within]
        except Exception as error:
            raise DrawFailed(str(library.bad_options(self.task, self.config, error))) from error


def item_seed(seed: int, index: int) -> int:
    """The library's seed for item `index` of a user's `seed`.

    The library draws item i of seed s from Random(s + i): the hash puts nearby seeds far apart. numpy, which some tasks
    use, takes seeds below 2^32.
    """
    return (int.from_bytes(hashlib.sha256(f"rg_env:{seed}".encode()).digest()[:4]) >> 1) + index


def slow_seeds(task: str, config: Mapping[str, Any]) -> frozenset[int]:
    """Item seeds of `task` with `config` that the shipped list skips under the installed library."""
    installed = version("reasoning-gym")
    return frozenset(
        seed
        for entry in _slow_draws()
        if entry["task"] == task and entry["config"] == config and entry["reasoning-gym"] == installed
        for seed in entry["seeds"]
    )


@lru_cache(maxsize=1)
def _slow_draws() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(SLOW_DRAWS.read_text(encoding="utf-8"))
    return entries
