"""Draw single items from the library. An item depends only on (task, config, seed, index).

`serve` is the main function of the processes that `core.data.generation` starts with a fixed hash seed. These processes
apply fixes to the library (`core.tasks.library_fixes`) and import the user's code for the user's own tasks. To build
rows, use `core.data.dataset`.
"""

import hashlib
import json
import queue
import random
import resource
import signal
import sys
import threading
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, get_args

from rg_env.core.child_main import ParentPipe
from rg_env.core.data.problem_keys import problem_key
from rg_env.core.data.splits import Split, SplitBy, question_hash, split_of
from rg_env.core.grading.graders.gold import gold_answer
from rg_env.core.tasks import library
from rg_env.core.tasks.library_fixes import fix_library, left_out
from rg_env.core.tasks.task_table import is_user_task, load_table
from rg_env.core.user_code import checked_entry, import_same
from rg_env.errors import InputError

# Items are drawn from consecutive datasets of a fixed size, because acre's items depend on the size, and
# list_functions, gsm_symbolic and word_ladder cannot draw items at indices beyond it. word_ladder accepts sizes up to
# 20,000.
_BLOCK = 20_000
_SMALL_BLOCK = {"acre": 500}  # this task generates all items in its constructor

_AT_TOP = "call register_dataset at the top level of the file, outside functions and `if __name__ == ...`"


class Item(NamedTuple):
    """One question from a task."""

    question: str
    gold: str | None
    """The gold answer in a form that scores 1.0, or None if the library does not store one."""
    entry: str
    """The complete library entry as JSON."""
    problem: str
    """The problem's key (`core.data.problem_keys`)."""

    def split(self, by: SplitBy) -> Split:
        """Return the item's split."""
        return split_of(self.problem if by == "problem" else question_hash(self.question))


class DrawFailed(InputError):
    """The library raised an error for one item."""


class ItemStream:
    """One task's items for one seed."""

    def __init__(self, task: str, config: Mapping[str, Any], seed: int) -> None:
        self.task = task
        self.config = config
        self._seed = seed
        self._block = -1
        self._dataset: Any = None
        self._repeated = False
        """Whether an item from a user's task has been drawn twice, to check that it is reproducible."""

    def draw(self, index: int, splits: Collection[Split] = get_args(Split), by: SplitBy = "problem") -> Item | None:
        """Return item `index`, or None if it is excluded or not in one of the `splits`.

        An item is excluded if `library_fixes.left_out` returns a reason, or if its gold answer is blank (in
        string_manipulation), because a blank answer is indistinguishable from a missing one.

        Raises:
            InputError: the library rejects the options.
            DrawFailed: the library fails on this item.
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
                    f"task {self.task!r}: item {within} differs when drawn again; an item must depend only on the "
                    f"config and Random(seed + index)"
                )
            self._repeated = True
        text = json.dumps(entry, default=library.to_plain)
        problem = problem_key(self.task, json.loads(text))
        # The checks below can take longer than the draw.
        if split_of(problem if by == "problem" else question_hash(entry["question"])) not in splits:
            return None
        if left_out(self.task, entry):
            return None
        gold = gold_answer(self.task, entry, self.config)
        if gold is not None and not gold.strip():
            return None
        return Item(entry["question"], gold, text, problem)

    def _entry(self, seed: int, within: int) -> Any:
        # list_functions uses Python's global random generator, pool_matrix uses numpy's, and the snippets of codeio use
        # both.
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
        try:
            return self._dataset[within]
        except Exception as error:
            raise DrawFailed(str(library.bad_options(self.task, self.config, error))) from error


def item_seed(seed: int, index: int) -> int:
    """Return the library's seed for item `index`, given the user's `seed`.

    For seed s, the library draws item i from Random(s + i). The user's seed is hashed so that neighboring seeds do not
    yield the same items. The result is below 2^32, the limit for seeds in numpy.
    """
    return (int.from_bytes(hashlib.sha256(f"rg_env:{seed}".encode()).digest()[:4]) >> 1) + index


def serve() -> None:
    """Draw items until the input ends. This is the main function of a child process.

    The first message is {"imports": `core.user_code.sources()`, "draw_cpu_s"}, and the reply is "ready". Each job is
    {"task", "config", "seed", "first", "count", "splits", "by"}. One reply is sent per draw, in order: an item, null if
    the draw yields no question for these splits, or {"failed": text} if the library fails on this item. If no draw is
    possible, the reply {"error": text} ends the job. A job without a seed checks the task's options, and its only reply
    is {"failed": text} with the library's error or an empty text. SIGPROF ends the process if startup, the import of a
    task or a single draw takes more than `draw_cpu_s` seconds of CPU time.
    """
    parent = ParentPipe()
    first = parent.receive()
    imports, draw_cpu_s = first["imports"], first["draw_cpu_s"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    limit_cpu(draw_cpu_s)
    try:
        import_same(imports)
        parent.send("ready")
    except InputError as error:
        parent.send({"error": str(error)})
    # A separate thread reads jobs, so that this process exits at the end of its input, even during a draw.
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        while True:
            jobs.put(parent.receive())

    threading.Thread(target=read, daemon=True).start()
    streams: dict[str, ItemStream] = {}
    while True:
        limit_cpu(draw_cpu_s)
        job = jobs.get()
        task = job["task"]
        if task not in load_table():
            names = ", ".join(imports)
            parent.send({"error": f"task {task!r} is not registered by importing {names}: {_AT_TOP}"})
            continue
        key = json.dumps([task, job["config"], job.get("seed")])
        if key not in streams and not is_user_task(task):
            library.import_only(task, load_table()[task]["module"])
        if "seed" not in job:
            parent.send({"failed": _option_problem(task, job["config"])})
            continue
        if key not in streams:
            fix_library(task)
            streams[key] = ItemStream(task, job["config"], job["seed"])
        try:
            for index in range(job["first"], job["first"] + job["count"]):
                limit_cpu(draw_cpu_s)
                parent.send(_reply(streams[key], index, job["splits"], job["by"]))
        except InputError as error:
            parent.send({"error": str(error)})


def _option_problem(task: str, config: Mapping[str, Any]) -> str:
    try:
        library.task_config(task, config)
    except InputError as error:
        return str(error)
    return ""


def limit_cpu(seconds: int) -> None:
    """Let SIGPROF end this process after `seconds` more seconds of CPU time.

    RLIMIT_CPU limits the total since the process started, which the kernel counts in clock ticks. On a busy virtual
    machine, this count was a quarter higher than `time.process_time()`, so that draws after some minutes failed.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _reply(stream: ItemStream, index: int, splits: Collection[Split], by: SplitBy) -> Any:
    try:
        return stream.draw(index, splits, by)
    except DrawFailed as error:
        return {"failed": str(error)}
