"""Generate rows in child processes: in parallel, with a fixed hash seed, and with time limits.

Rows are never drawn in the user's process, because the items of six tasks depend on `PYTHONHASHSEED`, some draws never
end, and importing the library takes 2.5 s. Each process receives chunks of draws. The drawn items are put back in
order, so the rows do not depend on the number of processes. The processes run `core.data.items`.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from rg_env.core.data.items import Item, item_seed
from rg_env.core.data.selection import DrawnRow, Selection, repeated
from rg_env.core.data.splits import EVAL_SHARE, OnFew, Split, SplitBy
from rg_env.core.processes import JsonProcess, ProcessEndedError, bare_environment
from rg_env.core.tasks.mixture import TaskSpec
from rg_env.core.tasks.task_table import is_user_task
from rg_env.core.text import counted
from rg_env.core.user_code import sources
from rg_env.errors import GenerationError, InputError, TooFewQuestionsError

FAILED_DRAWS = 20
"""Number of consecutive failed draws after which the options are considered broken. A few draws fail even with the
library's defaults (one maze in several thousand has no path). A draw that fails does so on every
machine."""

_CHUNK = 8
"""Maximum number of draws in one job."""
_ROWS_PER_PROCESS = 100
"""Number of requested rows for which another process is started. Starting a process takes about a second."""
_FIRST_PROGRESS_S, _PROGRESS_S = 5.0, 20.0
"""Seconds until the first line that shows the progress of slow generation, and between two such lines."""
_MORE_PROCESSES_S = 4.0
"""Estimated seconds left for which another process is started."""
_SHARE = {"train": 1 - EVAL_SHARE, "eval": EVAL_SHARE}


@dataclass(frozen=True)
class Limits:
    """Time limits for draws. They do not change which rows are drawn."""

    draw_cpu_s: int = 60
    """CPU time limit per draw, in seconds. The same limit applies to starting a process and to importing a task. A
    longer draw raises an error, because skipping it would make rows depend on the machine. The limit is on CPU time,
    not elapsed time, because draws take longer on a busy machine."""
    silence_s: float = 600.0
    """Seconds without a reply after which a process is considered stuck. This limit catches draws that block without
    using CPU time."""


@dataclass(frozen=True)
class RowRequest:
    """A request for rows from one task."""

    spec: TaskSpec
    seed: int
    counts: Mapping[Split, int]
    by: SplitBy = "problem"
    """What determines an item's split: its problem or its question."""
    on_few: OnFew = "repeat"


class _Walk:
    """A walk through one request's items until all rows are found."""

    def __init__(self, request: RowRequest) -> None:
        self.request = request
        self.counts = {split: n for split, n in request.counts.items() if n}
        self.selection = Selection(request.spec.name, request.spec.config_json, tuple(self.counts), request.by)
        self.planned = 0
        self.processes = 0
        """Number of processes that are currently drawing this walk's items."""
        self.seconds = 0.0
        """Time that the processes have spent on this walk's draws."""
        self._ended: set[Split] = set()
        """Splits that contain all distinct questions, but fewer than requested."""
        self._arrived: dict[int, tuple[Item | None, str]] = {}
        self._failed = 0

    def add(self, index: int, item: Item | None, failure: str = "") -> None:
        """Add a drawn item or the library's error. Draws may arrive in any order.

        Raises `InputError` if `FAILED_DRAWS` consecutive draws fail, if the task has no question for a split, or if it
        has too few and `on_few` is "error".
        """
        self._arrived[index] = item, failure
        while self.missing() and self.selection.draws in self._arrived:
            item, failure = self._arrived.pop(self.selection.draws)
            self._failed = self._failed + 1 if failure else 0
            if self._failed >= FAILED_DRAWS:
                raise InputError(failure)
            self.selection.offer(item)
            for split in self.missing():
                part = self.selection.parts[split]
                if part.exhausted():
                    if self.request.on_few == "error" or not part.rows:
                        raise self._too_few(split)
                    self._ended.add(split)

    def _too_few(self, split: Split) -> TooFewQuestionsError:
        part = self.selection.parts[split]
        found, problems = len(part.rows), len(part.problems)
        remedy = "request fewer questions, or choose options that allow more"
        if self.request.by == "problem" and (problems < found or not found):
            remedy += ", or split by question instead of by problem (splits.by in a config, split_by elsewhere)"
        return TooFewQuestionsError(
            f"task {self.request.spec.name!r} has too few distinct questions: {self.counts[split]} requested for the "
            f"{split} split, {found} found ({counted(problems, 'distinct problem')}) in "
            f"{counted(self.selection.draws, 'draw')}; {remedy}",
            found,
        )

    def missing(self) -> dict[Split, int]:
        """Return how many rows each incomplete split still lacks."""
        found = {split: len(self.selection.parts[split].rows) for split in self.counts}
        return {
            split: n - found[split] for split, n in self.counts.items() if found[split] < n and split not in self._ended
        }

    def to_draw(self) -> int:
        """Estimate the number of further draws, including those that are handed out."""
        return self.to_plan() + self.planned - self.selection.draws if self.missing() else 0

    def to_plan(self) -> int:
        """Estimate the number of further draws to hand out."""
        needed = 0.0
        for split, missing in self.missing().items():
            rate = (len(self.selection.parts[split].rows) + 5) / (self.selection.draws + 5 / _SHARE[split])
            needed = max(needed, missing / rate)
        return max(0, int(needed * 1.05 + 1) - (self.planned - self.selection.draws)) if needed else 0

    def plan(self) -> range:
        """Return the next draws to hand out."""
        first, self.planned = self.planned, self.planned + min(_CHUNK, self.to_plan())
        return range(first, self.planned)

    def rows(self) -> dict[Split, list[DrawnRow]]:
        """Return the requested rows, keyed by split, or fewer if the task has fewer."""
        found = {split: self.selection.parts[split].rows[:n] for split, n in self.counts.items()}
        if "train" in self._ended and self.request.on_few == "repeat":
            found["train"] = repeated(found["train"], self.counts["train"])
        return found


class Drawer:
    """A process that draws items. `imports` lists the user's code to import first (`core.user_code.sources`).

    Raises `GenerationError` if the process cannot be started.
    """

    def __init__(self, imports: Mapping[str, str], limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        try:
            self.process = JsonProcess("rg_env.core.data.items:serve", bare_environment())
        except OSError as error:
            raise GenerationError(f"cannot start a process to generate rows: {error}") from error
        self._settings: dict[str, Any] = {"imports": dict(imports), "draw_cpu_s": self._limits.draw_cpu_s}

    def _wait_ready(self) -> None:
        """Wait until the process has started."""
        if self._settings:
            self._exchange(self._settings, "a generation process", " to start")
            self._settings = {}

    def draw(self, request: RowRequest, draws: range) -> list[tuple[Item | None, str]]:
        """Draw items for the splits in `request`, in order. Each result is a pair: an item or None, and the library's
        error or an empty string.

        Raises:
            InputError: the library rejects the options.
            GenerationError: a draw takes too long, or the process dies.
        """
        self._wait_ready()
        found: list[tuple[Item | None, str]] = []
        spec, splits = request.spec, [split for split, n in request.counts.items() if n]
        job: Any = {"task": spec.name, "config": spec.config, "seed": request.seed, "by": request.by}
        job |= {"splits": splits, "first": draws.start, "count": len(draws)}
        for index in draws:
            draw = f"draw {index} of seed {request.seed} (item seed {item_seed(request.seed, index)})"
            remedy = f" with config {spec.config_json}: choose another seed or easier options"
            reply = self._exchange(job, f"task {spec.name!r}: {draw}", remedy)
            job = None
            found.append((None, reply["failed"]) if isinstance(reply, dict) else (Item(*reply) if reply else None, ""))
        return found

    def check(self, spec: TaskSpec) -> str:
        """Return why the library rejects the options of a task, or "" if it accepts them."""
        self._wait_ready()
        reply = self._exchange({"task": spec.name, "config": spec.config}, f"the check of task {spec.name!r}", "")
        return str(reply["failed"])

    def _exchange(self, value: Any, what: str, remedy: str) -> Any:
        """Send `value`, if any, and wait for a reply. If the reply takes too long, the error contains `what` and
        `remedy`."""
        try:
            if value is not None:
                self.process.send(value)
            reply = self.process.receive(time.monotonic() + self._limits.silence_s)
        except TimeoutError:
            limit = f"{self._limits.silence_s:g} s"
        except ProcessEndedError as error:
            if error.code != -signal.SIGPROF:
                memory = " (out of memory?)" if error.code == -signal.SIGKILL else ""
                raise GenerationError(f"a generation process ended{memory}: {error}") from None
            limit = f"{self._limits.draw_cpu_s} s of CPU time"
        else:
            if isinstance(reply, dict) and "error" in reply:
                raise InputError(reply["error"])
            return reply
        raise GenerationError(f"{what} takes more than {limit}{remedy}")


def check_options(specs: Mapping[str, TaskSpec]) -> None:
    """Raise `InputError` if the library rejects the options of a task. `specs` maps each task's key in the config to
    the task.

    The library checks options when it builds a task's config object, in a process that imports only the given tasks,
    because importing the entire library takes 2.5 s. Options that the library rejects only while it draws questions are
    not detected.
    """
    changed = {key: spec for key, spec in specs.items() if spec.config}
    if not changed:
        return
    drawer = Drawer(sources(), Limits(silence_s=60.0))
    try:
        problems = {key: drawer.check(spec) for key, spec in changed.items()}
    except GenerationError:
        return  # the options are checked again when questions are drawn
    finally:
        drawer.process.kill()
    if found := [f"{key}.config: {problem}" for key, problem in problems.items() if problem]:
        raise InputError("; ".join(found))


class Generation:
    """Draws for `requests` in at most `processes` processes (default: one per core), each of which is served by a
    thread."""

    def __init__(
        self, requests: Sequence[RowRequest], processes: int | None = None, limits: Limits | None = None
    ) -> None:
        self.drawers: list[Drawer] = []
        """The processes that were started, all of which have ended once `run` returns."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._most = max(1, cores if processes is None else processes)
        self._limits = limits or Limits()
        self._walks = [_Walk(request) for request in requests]
        self._imports = sources() if any(is_user_task(request.spec.name) for request in requests) else {}

    def start(self) -> Drawer:
        """Start a process."""
        return Drawer(self._imports, self._limits)

    def run(self) -> list[dict[Split, list[DrawnRow]]]:
        """Draw until every request has its rows.

        Raises:
            InputError: the library rejects the options, or a task does not have enough distinct questions.
            GenerationError: a draw takes too long, or a process cannot be started or dies.
        """
        total = self._rows_missing()
        show_s = time.monotonic() + _FIRST_PROGRESS_S
        pool = ThreadPoolExecutor(self._most)
        try:
            for _ in range(min(self._most, -(-total // _ROWS_PER_PROCESS))):
                self.drawers.append(self.start())
            idle: list[tuple[Drawer, _Walk | None]] = [(drawer, None) for drawer in self.drawers]
            running: dict[Future[list[tuple[Item | None, str]]], tuple[Drawer, _Walk, range, float]] = {}
            while missing := self._rows_missing():
                left_s = self._seconds_left()
                if left_s > _MORE_PROCESSES_S and len(self.drawers) < self._most and self._next_walk(None):
                    self.drawers.append(self.start())
                    idle.append((self.drawers[-1], None))
                while idle and (walk := self._next_walk(idle[-1][1])):
                    drawer, draws = idle.pop()[0], walk.plan()
                    walk.processes += 1
                    running[pool.submit(drawer.draw, walk.request, draws)] = drawer, walk, draws, time.monotonic()
                if time.monotonic() > show_s:
                    minutes = max(1, round(left_s / 60))
                    hours = f"{minutes // 60:,} h left; to start sooner, request fewer questions"
                    left = f", about {hours if minutes > 120 else f'{minutes} min left'}" if left_s > 30 else ""
                    print(f"generating rows: {total - missing:,} of {total:,}{left}", file=sys.stderr, flush=True)
                    show_s = time.monotonic() + _PROGRESS_S
                for future in wait(running, 0.1, FIRST_COMPLETED).done:
                    drawer, walk, draws, began = running.pop(future)
                    walk.seconds += time.monotonic() - began
                    for index, (item, failure) in zip(draws, future.result(), strict=True):
                        walk.add(index, item, failure)
                    walk.processes -= 1
                    idle.append((drawer, walk))
        finally:  # also runs after errors and Ctrl-C
            for drawer in self.drawers:
                drawer.process.signal_kill()
            pool.shutdown()
            for drawer in self.drawers:
                drawer.process.kill()
        return [walk.rows() for walk in self._walks]

    def _rows_missing(self) -> int:
        return sum(sum(walk.missing().values()) for walk in self._walks)

    def _seconds_left(self) -> float:
        """Estimate the time until all rows are found. A walk that has not been measured is taken for an average one."""
        drawn = sum(walk.selection.draws for walk in self._walks)
        mean = sum(walk.seconds for walk in self._walks) / max(1, drawn)
        left = (
            walk.to_draw() * (walk.seconds / walk.selection.draws if walk.selection.draws else mean)
            for walk in self._walks
        )
        return sum(left) / max(1, len(self.drawers))

    def _next_walk(self, last: _Walk | None) -> _Walk | None:
        """Return the walk for a process that last worked on the walk `last`, or None if all draws are handed out.

        Opening a task takes up to 3 s, so a process stays with its walk while draws remain. After that, it prefers the
        walk with the fewest processes, and then the one with the most draws left.
        """
        left = {walk: n for walk in self._walks if (n := walk.to_plan())}
        return last if last in left else min(left, key=lambda w: (w.processes, -left[w]), default=None)
