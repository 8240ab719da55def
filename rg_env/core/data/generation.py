"""Generating rows in processes of their own: in parallel, with a fixed hash seed, killable.

Six tasks give other items under another `PYTHONHASHSEED`, some draws take for ever, and the library takes 2.5 s to
import: so rows are never drawn in the user's process. The processes are fresh interpreters (no fork of a process that
may hold threads and a GPU, no `multiprocessing`, which wants `if __name__ == "__main__"`) that exchange JSON lines with
this one over pipes (`core.row_child`), and see no secret of the environment. Draws are handed out in chunks and their
items are put back in order, so that the rows do not depend on the number of processes.

One generation process, from its parent's side: see `core.generation`.
"""

import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import rg_env
from rg_env.core.data.items import Item, item_seed
from rg_env.core.data.selection import Row, Selection
from rg_env.core.data.splits import EVAL_SHARE, Split, SplitBy
from rg_env.core.tasks.mixture import TaskSpec
from rg_env.core.tasks.task_table import is_user_task
from rg_env.core.user_code import sources
from rg_env.errors import GenerationError, InputError, TooFewQuestionsError

# The package is found as here, whatever the working directory is; `-P` keeps the user's files from shadowing modules.
_PROGRAM = (
    "import json, sys; paths, sources = map(json.loads, sys.argv[1:]); "
    "sys.path += [path for path in paths if path not in sys.path]; "
    "from rg_env.core.data.generation_worker import main; main(sources)"
)
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")
"""All of the environment that a generation process gets, beside `LC_*`: it runs the library's snippets of code."""


class RowProcess:
    """A fresh interpreter that draws items. `sources`: the user's code that it imports first (`core.imports`)."""

    def __init__(self, sources: Mapping[str, str] = MappingProxyType({})) -> None:
        self.ready = False
        """Whether it takes jobs."""
        self.heard = time.monotonic()
        """When it last replied."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        self._rest = b""
        paths = [str(Path(rg_env.__file__).resolve().parent.parent)]
        if sources:  # found as here
            paths += [os.path.abspath(path) for path in sys.path]
        arguments = [json.dumps(paths), json.dumps(dict(sources))]
        command = [sys.executable, "-P", "-W", "ignore", "-c", _PROGRAM, *arguments]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=child_environment(),
                bufsize=0,
                process_group=0,  # Ctrl-C reaches this process alone, which ends the others
            )
        except OSError as error:
            raise GenerationError(f"cannot start a process to generate rows: {error}") from error
        assert self._process.stdout is not None
        self.replies = self._process.stdout

    def send(self, job: dict[str, Any]) -> None:
        """Hand it a job."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
        except OSError:
            raise self._death() from None

    def read(self) -> list[Any]:
        """The replies that have come; to be called when `replies` is readable. Raises `GenerationError` if the process
        is dead."""
        data = os.read(self.replies.fileno(), 1 << 20)
        if not data:
            raise self._death()
        self.heard = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Kill it, whatever it does, and wait for its end."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _death(self) -> GenerationError:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        self._errors.seek(0)
        last = (self._errors.read().decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -9 else "")
        else:
            how = f"ended with code {code}"
        return GenerationError(f"a process that generates rows {how}: {last}")


def child_environment() -> dict[str, str]:
    """The environment of a generation process: a fixed hash seed, one thread, no secrets."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")}
    return {**kept, "PYTHONHASHSEED": "0", "TZ": "UTC", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


DRAW_LIMIT_S = 60.0
"""A draw (the first one with the import of the task) that takes longer is an error: skipping it would give other rows
on another machine."""
START_LIMIT_S = 60.0
"""Longest time for a process to start."""

FAILED_DRAWS = 20
"""So many draws in a row that the library fails on mean that it does not work with these options. Single ones happen
under its own defaults (maze finds no path in one of thousands) and give no item, on every machine."""

_CHUNK_S = 0.25
_FIRST_CHUNK, _MAX_CHUNK = 16, 1000
_SHARE = {"train": 1 - EVAL_SHARE, "eval": EVAL_SHARE}
_WORTH_A_PROCESS_S = 1.5
"""Work that one more process is started for: it costs a second to start one and import tasks there."""
_DRAW_MS = {
    **dict.fromkeys(["futoshiki", "knight_swap"], 150.0),
    **dict.fromkeys(["intermediate_integration", "zebra_puzzles", "countdown", "advanced_geometry", "puzzle24"], 60.0),
    **dict.fromkeys(["polynomial_equations", "codeio", "sudoku", "sokoban", "game_of_life", "rubiks_cube"], 15.0),
    **dict.fromkeys(["game_of_life_halting", "simple_equations", "jugs"], 5.0),
}
"""Rough times of a draw; a guess that only decides how many processes are started at once."""


@dataclass(frozen=True)
class Request:
    """Rows wanted of one task."""

    spec: TaskSpec
    seed: int
    counts: Mapping[Split, int]
    by: SplitBy = "problem"
    """What decides the split of an item."""


def generate(requests: Sequence[Request], processes: int | None = None) -> list[dict[Split, list[Row]]]:
    """The rows of each request. `processes`: at most this many (default: one per core).

    Raises `InputError` for options that the library refuses and for a task that does not have enough distinct
    questions, and `GenerationError` for a draw that takes too long and a process that dies. No process is left behind.
    """
    works = [_Work(request) for request in requests if any(request.counts.values())]
    if works:
        _Pool(works, max(1, processes if processes is not None else _cores())).run()
    done = iter(works)
    return [next(done).result() if any(request.counts.values()) else {} for request in requests]


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Work:
    """One request under way: what is drawn, what is handed out, what is still wanted."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.counts = {split: n for split, n in request.counts.items() if n}
        self.selection = Selection(request.spec.name, request.spec.config_json, tuple(self.counts), request.by)
        self.planned = 0
        self.draw_s = _DRAW_MS.get(request.spec.name, 0.3) / 1000
        self._timed = False
        self._arrived: dict[int, tuple[Item | None, str]] = {}
        self._failed = 0

    def take(self, index: int, item: Item | None, failure: str = "") -> None:
        """A drawn item, or what the library failed with, in any order. Raises `InputError` when the task is exhausted
        or does nothing but fail."""
        self._arrived[index] = item, failure
        while self.missing() and self.selection.draws in self._arrived:
            item, failure = self._arrived.pop(self.selection.draws)
            self._failed = self._failed + 1 if failure else 0
            if self._failed >= FAILED_DRAWS:
                raise InputError(failure)
            self.selection.offer(item)
            for split in self.missing():
                if self.selection.exhausted(split):
                    raise self._too_few(split)

    def _too_few(self, split: Split) -> TooFewQuestionsError:
        found, problems = len(self.selection.rows(split)), self.selection.problems(split)
        of, remedy = "", "ask for fewer, or make its config wider"
        if (self.request.by == "problem" and problems < found) or not found:
            of = f", which ask {problems} problem{'' if problems == 1 else 's'}"
            remedy = (
                "ask for fewer, make its config wider, or divide by question instead of by problem (splits.by: "
                "question in a config, split_by elsewhere)"
            )
        return TooFewQuestionsError(
            f"task {self.request.spec.name!r} has too few distinct questions: {self.counts[split]} asked for the "
            f"{split} split, {found} found in {self.selection.draws} draws{of}; {remedy}",
            found,
        )

    def timed(self, seconds: float, draws: int) -> None:
        """What a chunk took."""
        mean = seconds / draws
        self.draw_s = (self.draw_s + mean) / 2 if self._timed else mean
        self._timed = True

    def missing(self) -> dict[Split, int]:
        """Rows still wanted, by split."""
        found = {split: len(self.selection.rows(split)) for split in self.counts}
        return {split: n - found[split] for split, n in self.counts.items() if found[split] < n}

    def to_plan(self) -> int:
        """Draws that are likely needed and not handed out yet."""
        needed = 0.0
        for split, missing in self.missing().items():
            rate = (len(self.selection.rows(split)) + 5) / (self.selection.draws + 5 / _SHARE[split])
            needed = max(needed, missing / rate)
        return max(0, int(needed * 1.05 + 1) - (self.planned - self.selection.draws)) if needed else 0

    def left_s(self) -> float:
        """Rough seconds of work that is not handed out yet."""
        return self.to_plan() * self.draw_s

    def plan(self) -> tuple[int, int]:
        """First index and number of draws of the next chunk."""
        size = min(self.to_plan(), _MAX_CHUNK, max(1, int(_CHUNK_S / self.draw_s)) if self._timed else _FIRST_CHUNK)
        first, self.planned = self.planned, self.planned + size
        return first, size

    def result(self) -> dict[Split, list[Row]]:
        """The wanted rows."""
        return {split: self.selection.rows(split)[:n] for split, n in self.counts.items()}


@dataclass
class _Job:
    """A chunk that a process is drawing."""

    work: _Work
    next: int
    end: int
    started: float
    size: int


class _Pool:
    """The processes, and what each of them does."""

    def __init__(self, works: list[_Work], limit: int) -> None:
        self._works = works
        self._limit = limit
        self._sources = sources() if any(is_user_task(work.request.spec.name) for work in works) else {}
        self._jobs: dict[RowProcess, _Job | None] = {}
        self._last: dict[RowProcess, _Work] = {}
        self._touched: set[int] = set()
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Until every work has its rows."""
        total = sum(sum(work.counts.values()) for work in self._works)
        try:
            with _progress(total) as show:
                self._start_processes()
                while any(work.missing() for work in self._works):
                    self._step()
                    show(total - sum(sum(work.missing().values()) for work in self._works))
        finally:  # an error or Ctrl-C too
            for process in self._jobs:
                process.end()
            self._selector.close()

    def _start_processes(self) -> None:
        left = sum(work.left_s() for work in self._works)
        wanted = min(self._limit, max(1, round(left / _WORTH_A_PROCESS_S)))
        while len(self._jobs) < wanted:
            process = RowProcess(self._sources)
            self._jobs[process] = None
            self._selector.register(process.replies, selectors.EVENT_READ, process)

    def _step(self) -> None:
        for key, _ in self._selector.select(timeout=0.5):
            for reply in key.data.read():
                self._handle(key.data, reply)
        for process, job in self._jobs.items():
            if job is None and process.ready:
                self._assign(process)
        self._check_time()

    def _handle(self, process: RowProcess, reply: Any) -> None:
        failure = ""
        if isinstance(reply, Mapping):
            if "error" in reply:
                raise InputError(reply["error"])
            if "ready" in reply:
                process.ready = True
                return
            reply, failure = None, reply["failed"]
        job = self._jobs[process]
        assert job is not None
        job.work.take(job.next, Item(*reply) if reply else None, failure)
        job.next += 1
        if job.next == job.end:
            job.work.timed(time.monotonic() - job.started, job.size)
            self._jobs[process] = None
            self._start_processes()  # the work may have turned out slower than guessed

    def _assign(self, process: RowProcess) -> None:
        busy = {id(job.work) for job in self._jobs.values() if job}
        mine = self._last.get(process)
        # Importing a task and opening its dataset takes up to 3 s: a process keeps to what it has open, then takes what
        # nobody has, the longest first, and helps another process only where that has much left.
        open_works = [
            work
            for work in self._works
            if work.to_plan() and (work is mine or id(work) not in busy or work.left_s() > _WORTH_A_PROCESS_S)
        ]
        if not open_works:
            return
        fresh = [work for work in open_works if id(work) not in self._touched]
        work = mine if mine is not None and mine in open_works else max(fresh or open_works, key=_Work.left_s)
        self._touched.add(id(work))
        self._last[process] = work
        first, count = work.plan()
        self._jobs[process] = _Job(work, first, first + count, time.monotonic(), count)
        request = work.request
        process.send(
            {
                "task": request.spec.name,
                "config": request.spec.config,
                "seed": request.seed,
                "first": first,
                "count": count,
                "splits": list(work.counts),
                "by": request.by,
            }
        )

    def _check_time(self) -> None:
        now = time.monotonic()
        for process, job in self._jobs.items():
            if job is None:
                if not process.ready and now - process.heard > START_LIMIT_S:
                    raise GenerationError(f"a process that generates rows did not start within {START_LIMIT_S:g} s")
            elif now - max(process.heard, job.started) > DRAW_LIMIT_S:
                spec, seed = job.work.request.spec, job.work.request.seed
                raise GenerationError(
                    f"task {spec.name!r}: draw {job.next} of seed {seed} (item seed {item_seed(seed, job.next)}) takes "
                    f"more than {DRAW_LIMIT_S:g} s with config {spec.config_json}: take another seed or easier "
                    f"options, or add the item seed to rg_env/core/data/slow_draws.json"
                )


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A function that shows how many rows there are: on a terminal, and only if it takes more than 3 s."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    tqdm = importlib.import_module("tqdm")  # it has no types
    with tqdm.tqdm(total=total, desc="generating rows", unit="row", delay=3, leave=False) as bar:
        yield lambda found: bar.update(found - bar.n)
