"""Running a sweep: one point after another, each as a process of its own, in one folder, from which it can go on.

    folder = sweep_folder(sweep, "outputs/rates", "tiny")
    code = run_sweep(sweep, folder, again="rg-env train ... --resume auto")

config.yaml         the resolved config that all points share, which the runs are started from
sweep.yaml          what is swept, and the points
NAME/               the run of a point (see `RunFolder`)
logs/NAME.log       what it printed
logs/NAME.failed    why it failed, if it did
comparison.*        the comparison: table as .json and .md, picture as .png

A point that fails does not end the sweep, nor does one that a monitor stops; that one is left as it is when the sweep
goes on. Ctrl-C, SIGTERM and SIGHUP let the run under way save, and end the sweep.
"""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.config import yaml12
from rg_env.core.run_folder import RunFolder, write_aside
from rg_env.errors import OutputFolderError
from rg_env.jobs.sweep.comparison import SWEEP_FILE, read_points
from rg_env.jobs.sweep.grid import Point, Sweep, difference, some_of
from rg_env.jobs.sweep.outcome import FINISHED, LOGS, NOT_STARTED, STOPPED, failure_file, status_of
from rg_env.training.config.dry_run import without_effect

CONFIG_FILE = "config.yaml"
SAVE_TIMEOUT_S = 300.0
"""For the run under way to save after a signal."""


def sweep_folder(sweep: Sweep, name: str, resume: bool) -> Path:
    """The folder that the sweep may write to, checked but not yet made: `output.dir`, or a fresh one for `name`.

    Raises:
        OutputFolderError: it cannot be written; without `resume`: it holds files; with it: they are not those of this
            very sweep.
    """
    folder = RunFolder.choose(sweep.configs[0].output.dir, f"{name}-sweep", "auto" if resume else None)
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder
    if not (folder / SWEEP_FILE).is_file():
        raise OutputFolderError(f"{folder} holds something else than a sweep: there is no {SWEEP_FILE}")
    points = read_points(folder)
    swept = _read(folder / SWEEP_FILE).get("swept", {})
    if not isinstance(swept, dict):
        raise OutputFolderError(f"{folder / SWEEP_FILE} is not what a sweep leaves: its 'swept' names no keys")
    told = difference(swept, sweep.described()["swept"])
    if not told and list(points) != [point.name for point in sweep.points]:
        told = "the swept keys stand in another order"
    if not told and (folder / CONFIG_FILE).is_file():  # not where Slurm's jobs made it
        told = difference(_read(folder / CONFIG_FILE), sweep.base())
    if told:
        raise OutputFolderError(f"{folder} holds another sweep: {told}; give the same, or another output.dir")
    return folder


def refuse_sweep(folder: str | None) -> None:
    """Raise `OutputFolderError` where a single run is to go on in the folder of a sweep."""
    if folder is not None and (Path(folder) / SWEEP_FILE).is_file():
        raise OutputFolderError(f"{folder} holds a sweep: say --sweep ... as it was, or name a run's folder in it")


def run_sweep(
    sweep: Sweep, folder: Path, *, again: str, command: Callable[[Point, Path, bool], Sequence[str]] | None = None
) -> int:
    """Run what has not finished, one after another. Where no signal ended it, the comparison is made by the caller.

    Args:
        folder: by `sweep_folder`.
        again: the command with which the sweep goes on, for people.
        command: what runs a point in a folder, and whether it goes on there; default: `rg-env train`.

    Returns:
        0; 1 if a point failed, or a monitor has stopped it; 128 + N where signal N ended the sweep.
    """
    from rg_env.jobs.launch import signals_noted

    signals: list[int] = []
    with signals_noted(signals), _alone_in(folder):
        for name, values in ((SWEEP_FILE, sweep.described()), (CONFIG_FILE, sweep.base())):
            write_aside(folder / name, yaml12.to_yaml(values))
        runner = _Runner(sweep, folder, command or train_command, signals)
        for point in sweep.points:
            if not signals:
                runner.run(point)
        if signals:
            runner.say(f"the sweep was interrupted; go on with: {again}")
            return 128 + signals[0]
    return 1 if runner.failed else 0


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Within, no other process runs a sweep in `folder`, which is made if it is not there."""
    try:
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise OutputFolderError(f"cannot write to {folder}: {error.strerror}") from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputFolderError(f"another process runs the sweep in {folder}: wait for it, or end it") from error
    except OSError:  # a file system without locks
        pass


class _Runner:
    """Runs points, and tells of it on the console."""

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        command: Callable[[Point, Path, bool], Sequence[str]],
        signals: list[int],
    ):
        from rg_env.jobs.launch import Console

        self._sweep, self._folder, self._command, self._signals = sweep, folder, command, signals
        self._console = Console()
        self.failed = 0
        """Points, those included that a monitor has stopped."""
        self.say = self._console.line

    def run(self, point: Point) -> None:
        """One point, to its end or to that which a signal asks for."""
        place, head = self._folder / point.name, f"[{point.number}/{len(self._sweep.points)}]"
        status, reason = status_of(self._folder, point.name)
        if status == FINISHED:
            self.say(f"{head} {point.name} has finished already")
            return
        if status == STOPPED:
            self.failed += 1
            self.say(f"{head} {point.name} was stopped already, {reason}")
            return
        failure_file(self._folder, point.name).unlink(missing_ok=True)
        goes_on = place.is_dir() and any(place.iterdir())
        if goes_on:
            _make_way(place, self._sweep.configs[point.number - 1].in_updates().training.max_steps)
        self.say(f"{head} {point.name}{' goes on' if goes_on else ''}")
        start = time.monotonic()
        log = self._folder / LOGS / f"{point.name}.log"
        code, last = self._supervise(self._command(point, place, goes_on), head, log)
        status, reason = status_of(self._folder, point.name)
        if status == FINISHED:
            self.say(f"{head} {point.name} finished after {time.monotonic() - start:.0f} s")
        elif status == STOPPED:
            self.failed += 1
            self.say(f"{head} {point.name} was stopped, {reason}; the sweep goes on")
        elif not self._signals:
            self.failed += 1
            reason = f"exit code {code}: {last or reason or 'it said nothing'}"
            failure_file(self._folder, point.name).write_text(reason + "\n", encoding="utf-8")
            self.say(f"{head} {point.name} failed, {reason[:300]} (see {log}); the sweep goes on")

    def _supervise(self, command: Sequence[str], head: str, log: Path) -> tuple[int, str]:
        """Its exit code, and the last line that it wrote."""
        import psutil

        from rg_env.core.processes import TICK_S, Command, ProcessGroup, adopt_orphans, descendants, end_all
        from rg_env.jobs.launch import GRACE_S, HURRY_S

        strangers = set(descendants(psutil.Process()))
        adopt_orphans()
        group = ProcessGroup(Command(tuple(command)), log)

        def show() -> None:
            for line in group.new_lines():
                self.say(f"{head} {line}")

        def grace() -> float:
            return HURRY_S if len(self._signals) > 1 else GRACE_S

        deadline = None
        try:
            while group.code is None and len(self._signals) < 2:
                if self._signals:
                    if deadline is None:
                        deadline = time.monotonic() + SAVE_TIMEOUT_S
                        self.say(
                            f"interrupted: the run has {SAVE_TIMEOUT_S:g} s to save (Ctrl-C again ends it at once)"
                        )
                    group.interrupt()
                    if time.monotonic() > deadline:
                        self.say(f"it did not end within {SAVE_TIMEOUT_S:g} s: it is ended now")
                        break
                time.sleep(TICK_S)
                show()
        finally:
            group.end(grace)
            show()
            end_all(lambda: set(descendants(psutil.Process())) - strangers, grace)  # orphans that it left
        return group.code or 0, " ".join(group.last_lines(1))


def train_command(point: Point, folder: Path, goes_on: bool) -> list[str]:
    """`rg-env train` by this interpreter. Like a program it does not import from the working folder, unless this
    process does."""
    isolated = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
    settings = [str(folder.parent / CONFIG_FILE), *point.overrides, folder_override(folder)]
    resume = ["--resume", "auto"] if goes_on else []
    return [sys.executable, *isolated, "-m", "rg_env.cli.main", "train", *settings, *resume]


def folder_override(folder: Path) -> str:
    """The override that says so, its value quoted where YAML would take it for something else."""
    text = str(folder)
    with contextlib.suppress(yaml.YAMLError, ValueError):
        if yaml12.load(text) == text:
            return f"output.dir={text}"
    quoted = yaml.dump(text, Dumper=yaml12.Dumper, default_style='"', width=10**6).strip()
    return f"output.dir={quoted}"


def _make_way(folder: Path, steps: int) -> None:
    """Rename checkpoints after the last step of a run that has not finished: there is no going on from there to the
    last evaluation, which was interrupted. The steps before it are made again."""
    for path in folder.glob("checkpoint-*"):
        number = path.name.removeprefix("checkpoint-")
        if number.isdecimal() and int(number) >= steps:
            path.rename(next(p for n in count(1) if not (p := path.with_name(f"not-evaluated-{number}-{n}")).exists()))


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml12.load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise OutputFolderError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise OutputFolderError(f"{file} is not what a sweep leaves: give another output.dir")
    return values


def plan_lines(sweep: Sweep, folder: Path) -> list[str]:
    """The grid, a line a point, and what has no effect in it: for people, before anything starts."""
    lines = [f"{len(sweep.points)} runs, one after another, in {folder}/"]
    width = max(len(point.name) for point in sweep.points)
    for point, config in zip(sweep.points, sweep.configs, strict=True):
        status, _ = status_of(folder, point.name)
        state = "" if status == NOT_STARTED else f", {status}"
        steps = config.in_updates().training.max_steps
        lines.append(f"{point.number:>4}  {point.name:<{width}}  {steps} step{'s' * (steps != 1)}{state}")
    return [*lines, *notes(sweep)]


def notes(sweep: Sweep) -> list[str]:
    """The keys without effect in runs of the sweep, a line for each set of them, with the points that it is true of."""
    found: dict[str, list[str]] = {}
    last, line = sweep.configs[0], without_effect(sweep.configs[0])
    for point, config in zip(sweep.points, sweep.configs, strict=True):
        if config.model_copy(update={"seed": last.seed}) != last:  # asking anew takes a millisecond
            last, line = config, without_effect(config)
        if line:
            found.setdefault(line, []).append(point.name)
    return [f"{some_of(names, len(sweep.points))}: {line}" for line, names in found.items()]
