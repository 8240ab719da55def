"""Generate rows in child processes: in parallel, with a fixed hash seed, and with time limits.

Rows are never drawn in the user's process, because the items of six tasks depend on `PYTHONHASHSEED`, some draws never
end, and importing the library takes 2.5 s. Processes receive chunks of draws, and their items are put back in order, so
the rows do not depend on the number of processes. `core.data.items` runs in these processes.
"""

import os
import selectors
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rg_env.core.data.items import Item, item_seed
from rg_env.core.data.selection import Row, Selection
from rg_env.core.data.splits import EVAL_SHARE, Split, SplitBy
from rg_env.core.processes import JsonProcess, bare_environment
from rg_env.core.tasks.mixture import TaskSpec
from rg_env.core.tasks.task_table import is_user_task
from rg_env.core.text import counted
from rg_env.core.user_code import sources
from rg_env.errors import GenerationError, InputError, TooFewQuestionsError

MAIN = "rg_env.core.data.items:serve"
FAILED_DRAWS = 20
"""Number of consecutive failed draws before the options count as broken. Individual draws fail even with the
library's defaults (one maze in thousands has no path). Such a draw yields no item, on any machine."""

_CHUNK_S = 0.25
_FIRST_CHUNK = 16
_SHARE = {"train": 1 - EVAL_SHARE, "eval": EVAL_SHARE}


@dataclass(frozen=True)
class Limits:
    """Time limits for draws, and how draws are divided among processes. No limit changes which rows are drawn."""

    draw_cpu_s: int = 60
    """CPU time limit per draw, in seconds. The first draw includes importing the task. A longer draw is an error:
    skipping it would make rows depend on the machine. The limit is on CPU time, not elapsed time, because draws take
    longer on a busy machine."""
    silence_s: float = 600.0
    """Seconds without a reply after which a process counts as stuck. A draw can also block without using CPU time."""
    max_chunk: int = 1000
    """Maximum number of draws in one job."""
    worth_a_process_s: float = 1.5
    """Seconds for which all processes must be busy before more are started; starting one takes about a second."""
    rows_a_process: int = 500
    """Number of requested rows per process at the start."""


@dataclass(frozen=True)
class Request:
    """A request for rows from one task."""

    spec: TaskSpec
    seed: int
    counts: Mapping[Split, int]
    by: SplitBy = "problem"
    """Whether an item's problem or its question decides its split."""


class _Walk:
    """The walk through one request's items, until all rows are found."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.counts = {split: n for split, n in request.counts.items() if n}
        self.selection = Selection(request.spec.name, request.spec.config_json, tuple(self.counts), request.by)
        self.planned = 0
        self.draw_s = 0.0  # seconds per draw; 0: not yet known
        self._arrived: dict[int, tuple[Item | None, str]] = {}
        self._failed = 0

    def add(self, index: int, item: Item | None, failure: str = "") -> None:
        """Add a drawn item or the library's error; draws may arrive in any order.

        Raises `InputError` if the task is exhausted or `FAILED_DRAWS` consecutive draws fail.
        """
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
        of, remedy = "", "request fewer, or choose options that allow more"
        if (self.request.by == "problem" and problems < found) or not found:
            of = f", with {counted(problems, 'distinct problem')}"
            remedy = (
                "request fewer, choose options that allow more, or split by question instead of by problem "
                "(splits.by: question in a config, split_by elsewhere)"
            )
        return TooFewQuestionsError(
            f"task {self.request.spec.name!r} has too few distinct questions: {self.counts[split]} requested for the "
            f"{split} split, {found} found in {counted(self.selection.draws, 'draw')}{of}; {remedy}",
            found,
        )

    def missing(self) -> dict[Split, int]:
        """Number of missing rows by split."""
        found = {split: len(self.selection.rows(split)) for split in self.counts}
        return {split: n - found[split] for split, n in self.counts.items() if found[split] < n}

    def to_plan(self) -> int:
        """Estimated number of further draws to hand out."""
        needed = 0.0
        for split, missing in self.missing().items():
            rate = (len(self.selection.rows(split)) + 5) / (self.selection.draws + 5 / _SHARE[split])
            needed = max(needed, missing / rate)
        return max(0, int(needed * 1.05 + 1) - (self.planned - self.selection.draws)) if needed else 0

    def left_s(self) -> float:
        """Estimated seconds for draws not yet handed out; 0 until the first draws are timed."""
        return self.to_plan() * self.draw_s

    def plan(self, most: int) -> range:
        """The next draws to hand out, at most `most`."""
        size = min(most, max(1, int(_CHUNK_S / self.draw_s))) if self.draw_s else _FIRST_CHUNK
        first, self.planned = self.planned, self.planned + min(size, self.to_plan())
        return range(first, self.planned)

    def rows(self) -> dict[Split, list[Row]]:
        """The requested rows by split."""
        return {split: self.selection.rows(split)[:n] for split, n in self.counts.items()}


class Drawer:
    """A process that draws items. `imports`: the user's code to import first (`core.user_code.sources`)."""

    def __init__(self, imports: Mapping[str, str], draw_cpu_s: int = Limits.draw_cpu_s) -> None:
        self.ready_since: float | None = None
        self.heard = time.monotonic()
        """Time of the last reply."""
        self.walk: _Walk | None = None
        """The walk with a dataset open in the process."""
        self.draws = self._left = range(0)
        """The draws assigned to the process; empty while it is idle."""
        self.started = 0.0
        """Time at which the draws were assigned."""
        try:
            self.process = JsonProcess(MAIN, bare_environment())
        except OSError as error:
            raise GenerationError(f"cannot start a process to generate rows: {error}") from error
        self._draw_cpu_s = draw_cpu_s
        self.send({"imports": dict(imports), "draw_cpu_s": draw_cpu_s})

    def send(self, value: Any) -> None:
        """Send a value. Raises `GenerationError` if the process is dead."""
        try:
            self.process.send(value)
        except OSError:
            raise self._death() from None

    def replies(self) -> list[Any]:
        """Wait for at least one reply, and return all that have arrived. Raises `GenerationError` if the process is
        dead."""
        try:
            replies = self.process.arrived()
        except (EOFError, OSError):
            raise self._death() from None
        self.heard = time.monotonic()
        return replies

    def draw(self, walk: _Walk, draws: range) -> None:
        """Assign draws of `walk` to the process."""
        self.walk, self.draws, self._left, self.started = walk, draws, draws, time.monotonic()
        request = walk.request
        job = {"task": request.spec.name, "config": request.spec.config, "seed": request.seed, "by": request.by}
        self.send({**job, "splits": list(walk.counts), "first": draws.start, "count": len(draws)})

    def drawn(self, item: Item | None, failure: str) -> None:
        """Pass the next draw's result to the walk. Raises the same errors as `_Walk.add`."""
        assert self.walk is not None
        self.walk.add(self._left[0], item, failure)
        self._left = self._left[1:]
        if not self._left:
            mean = (time.monotonic() - self.started) / len(self.draws)
            self.walk.draw_s = (self.walk.draw_s + mean) / 2 if self.walk.draw_s else mean
            self.draws = range(0)

    def too_slow(self, limit: str) -> GenerationError:
        """The error for a draw or process start that exceeds a time limit."""
        if self.walk is None or not self._left:
            return GenerationError(f"a generation process takes more than {limit} to start")
        spec, seed, index = self.walk.request.spec, self.walk.request.seed, self._left[0]
        return GenerationError(
            f"task {spec.name!r}: draw {index} of seed {seed} (item seed {item_seed(seed, index)}) takes more than "
            f"{limit} with config {spec.config_json}: choose another seed or easier options"
        )

    def _death(self) -> GenerationError:
        self.process.kill()
        if self.process.code == -signal.SIGXCPU:
            return self.too_slow(f"{self._draw_cpu_s} s of CPU time")
        memory = " (out of memory?)" if self.process.code == -9 else ""
        what = f"a generation process ended: {self.process.end}{memory}"
        return GenerationError(f"{what}: {self.process.last_error}")


class Generation:
    """Schedules the draws for `requests` across at most `processes` processes (default: one per core)."""

    def __init__(self, requests: Sequence[Request], processes: int | None = None, limits: Limits | None = None) -> None:
        self.drawers: list[Drawer] = []
        """The started processes; all have ended once `run` returns."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._most = max(1, cores if processes is None else processes)
        self._limits = limits or Limits()
        self._walks = [_Walk(request) for request in requests]
        self._imports = sources() if any(is_user_task(request.spec.name) for request in requests) else {}
        self._selector = selectors.DefaultSelector()

    def run(self) -> list[dict[Split, list[Row]]]:
        """Draw until every request has its rows.

        Raises:
            InputError: the library rejects the options, or a task does not have enough distinct questions.
            GenerationError: a draw takes too long, or a process dies.
        """
        total = self._rows_missing()
        progress = Progress(total, sys.stderr)
        try:
            if total:
                open_walks = sum(bool(walk.missing()) for walk in self._walks)
                self._start(min(open_walks, total // self._limits.rows_a_process) or 1)
            while missing := self._rows_missing():
                progress.show(total - missing)
                for key, _ in self._selector.select(timeout=0.5):
                    for reply in key.data.replies():
                        self._handle(key.data, reply)
                for drawer in self.drawers:
                    if drawer.ready_since and not drawer.draws and (walk := self._next_walk(drawer)):
                        drawer.draw(walk, walk.plan(self._limits.max_chunk))
                self._check_silence()
                self._start_more()
        finally:  # on errors and Ctrl-C too
            progress.close()
            for drawer in self.drawers:
                drawer.process.kill()
            self._selector.close()
        return [walk.rows() for walk in self._walks]

    def _rows_missing(self) -> int:
        return sum(sum(walk.missing().values()) for walk in self._walks)

    def _start(self, count: int) -> None:
        for _ in range(min(count, self._most - len(self.drawers))):
            drawer = Drawer(self._imports, self._limits.draw_cpu_s)
            self.drawers.append(drawer)
            self._selector.register(drawer.process, selectors.EVENT_READ, drawer)

    def _start_more(self) -> None:
        """Double the number of processes if all have been busy for a while and more draws are needed."""
        latest = max(drawer.ready_since or time.monotonic() for drawer in self.drawers)
        is_long = time.monotonic() - latest > self._limits.worth_a_process_s
        if is_long and all(drawer.draws for drawer in self.drawers) and any(walk.to_plan() for walk in self._walks):
            self._start(len(self.drawers))

    def _handle(self, drawer: Drawer, reply: Any) -> None:
        match reply:
            case {"error": message}:
                raise InputError(message)
            case "ready":
                drawer.ready_since = time.monotonic()
                return
            case {"failed": failure}:
                item = None
            case _:
                item, failure = Item(*reply) if reply else None, ""
        drawer.drawn(item, failure)

    def _next_walk(self, drawer: Drawer) -> _Walk | None:
        """The walk a process should work on next.

        Opening a task takes up to 3 s, so a process stays with its walk while draws remain. It then takes the longest
        remaining walk without a process, and shares another process's walk only if much is left to draw.
        """
        taken = [other.walk for other in self.drawers if other.draws]
        long_s = self._limits.worth_a_process_s
        open_walks = [walk for walk in self._walks if walk.to_plan() and (walk not in taken or walk.left_s() > long_s)]
        if drawer.walk in open_walks:
            return drawer.walk
        return max(open_walks, key=lambda walk: (not walk.planned, walk.left_s()), default=None)

    def _check_silence(self) -> None:
        for drawer in self.drawers:
            is_busy = drawer.draws or drawer.ready_since is None
            if is_busy and time.monotonic() - max(drawer.heard, drawer.started) > self._limits.silence_s:
                raise drawer.too_slow(f"{self._limits.silence_s:g} s")


class Progress:
    """A progress display for slow generation: a line that updates in place on a terminal, or a line every 20 seconds in
    a file."""

    def __init__(self, total: int, stream: TextIO, after_s: float | None = None) -> None:
        self._total, self._stream, self._shown = total, stream, False
        self._form, self._every_s, first_s = ("\r{}", 0.2, 3.0) if stream.isatty() else ("{}\n", 20.0, 20.0)
        self._next = time.monotonic() + (first_s if after_s is None else after_s)

    def show(self, found: int) -> None:
        if time.monotonic() >= self._next:
            text = f"generating rows: {found:,} of {self._total:,}"
            print(self._form.format(text), end="", file=self._stream, flush=True)
            self._next, self._shown = time.monotonic() + self._every_s, True

    def close(self) -> None:
        """Remove the line from the terminal."""
        if self._shown and self._stream.isatty():
            print("\r\x1b[K", end="", file=self._stream, flush=True)
