"""Drawing items from the library, one by one, so that an item depends on (task, config, seed, index) only.

`serve` is the program of the processes that `core.data.generation` starts, with a fixed hash seed; they fix the library
(`core.tasks.library_fixes`) and import the user's code, where a task is theirs. For rows use `core.data.dataset`.
"""

import hashlib
import json
import queue
import random
import sys
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from rg_env.core.child_process import ParentPipe
from rg_env.core.data.problem_keys import problem_key
from rg_env.core.data.splits import Split, SplitBy, question_hash, split_of
from rg_env.core.grading.graders.gold import gold_answer
from rg_env.core.tasks import library
from rg_env.core.tasks.library_fixes import fix_library, left_out
from rg_env.core.tasks.task_table import is_user_task, load_table
from rg_env.core.tasks.user_tasks import checked_entry
from rg_env.core.user_code import import_same
from rg_env.errors import InputError

# acre's items depend on the dataset's size, list_functions, gsm_symbolic and word_ladder cannot go beyond it: items are
# drawn from datasets of a fixed size, one after the other. word_ladder takes no more than 20,000.
_BLOCK = 20_000
_SMALL_BLOCK = {"acre": 500}  # it makes all its items when constructed

_AT_TOP = "call register_dataset where the file is read, outside of functions and of `if __name__ == ...`"


class Item(NamedTuple):
    """One question of a task."""

    question: str
    gold: str | None
    """The gold answer in a form that scores 1.0; None where the library stores none."""
    entry: str
    """The library's whole entry as JSON."""
    problem: str
    """The key of the problem that the question asks (`core.data.problem_keys`)."""

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
        self._block = -1
        self._dataset: Any = None
        self._repeated = False
        """Whether an item of a user's task was drawn twice, to check that it stays the same."""

    def draw(self, index: int) -> Item | None:
        """Item `index`; None if the draw gives no question, see `library_fixes.left_out`, or one whose gold answer is
        blank (string_manipulation has some), which cannot be distinguished from no answer.

        Raises `InputError` for options that the library refuses, and `DrawFailed` where it fails on this item.
        """
        seed = item_seed(self._seed, index)
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
                    f"task {self.task!r}: item {within} differs when it is drawn again; an item must depend on the "
                    f"config and Random(seed + index) only"
                )
            self._repeated = True
        if left_out(self.task, entry):
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


def serve() -> None:
    """The program of a process that draws items, until its parent ends it.

    First comes `core.user_code.sources()`, answered by "ready". Each job is {"task", "config", "seed", "first",
    "count", "splits", "by"}, answered by one reply for each of its draws, in order: an item; null for a draw that gives
    no question of these splits; {"failed": text} for one that the library fails on. {"error": text} is what makes all
    draws impossible.
    """
    parent = ParentPipe()
    imports = parent.receive()
    try:
        import_same(imports)
        parent.send("ready")
    except InputError as error:
        parent.send({"error": str(error)})
    # A thread reads, so that the end of input ends this process in the middle of a draw.
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        while True:
            jobs.put(parent.receive())

    threading.Thread(target=read, daemon=True).start()
    streams: dict[str, ItemStream] = {}
    while True:
        job = jobs.get()
        task = job["task"]
        if task not in load_table():
            names = ", ".join(imports)
            parent.send({"error": f"task {task!r} is not registered by importing {names}: {_AT_TOP}"})
            continue
        key = json.dumps([task, job["config"], job["seed"]])
        if key not in streams:
            if not is_user_task(task):
                library.import_only(task, load_table()[task]["module"])
            fix_library(task)
            streams[key] = ItemStream(task, job["config"], job["seed"])
        try:
            for index in range(job["first"], job["first"] + job["count"]):
                parent.send(_reply(streams[key], index, job["splits"], job["by"]))
        except InputError as error:
            parent.send({"error": str(error)})


def _reply(stream: ItemStream, index: int, splits: list[str], by: SplitBy) -> Any:
    try:
        item = stream.draw(index)
    except DrawFailed as error:
        return {"failed": str(error)}
    return item if item and item.split(by) in splits else None
