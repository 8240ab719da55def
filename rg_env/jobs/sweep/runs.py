"""Run a sweep: its points one after another, each in its own process, in one resumable folder.

    folder = sweep_folder(sweep, "tiny", resume=False)
    code = run_sweep(sweep, folder, again="rg-env train ... --resume auto")

config.yaml         resolved config shared by all points, from which the runs are started
sweep.yaml          swept values and points
NAME/               run of a point (see `RunFolder`)
logs/NAME.log       output of the run
logs/NAME.failed    reason, if it failed
comparison.*        comparison: a table as .json and .md, a plot as .png

The sweep continues if a point fails or is stopped by a monitor; a stopped point is not rerun when the sweep is resumed.
Ctrl-C, SIGTERM and SIGHUP let the current run save, then end the sweep.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from rg_env.core.config import yaml12
from rg_env.core.processes import Command
from rg_env.core.run_folder import RunFolder, damaged, locked, read_yaml, write_aside
from rg_env.core.text import counted, one_line
from rg_env.errors import InputError, OutputFolderError
from rg_env.jobs.supervisor import Supervisor
from rg_env.jobs.sweep.grid import Point, Sweep, difference, override, some_of
from rg_env.training.config.plan import without_effect

SWEEP_FILE, CONFIG_FILE, LOGS = "sweep.yaml", "config.yaml", "logs"
Status = Literal["finished", "stopped", "failed", "not finished", "not started"]


def status_of(folder: Path, name: str) -> tuple[Status, str]:
    """Status of the run `name` of the sweep in `folder`, and the reason, if known, if it is not finished."""
    results = RunFolder(folder / name).results()
    if results and not results["interrupted"] and not results["error"]:
        rule = results.get("stopped_by")
        return ("stopped", f"by monitor {rule} after {counted(results['steps'], 'step')}") if rule else ("finished", "")
    if (file := _failure_file(folder, name)).is_file():
        return "failed", one_line(file.read_text(encoding="utf-8", errors="replace"))
    if results and results["error"]:
        return "failed", one_line(results["error"])
    if results:
        return "not finished", f"interrupted after {counted(results['steps'], 'step')}"
    return ("not finished" if _has_files(folder / name) else "not started"), ""


def read_points(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the swept values of each point of the sweep in `folder`, by name.

    Raises:
        InputError: `folder` is not a sweep, or sweep.yaml is damaged.
    """
    file = folder / SWEEP_FILE
    if not file.is_file():
        raise InputError(f"{folder} is not a sweep: it has no {SWEEP_FILE}; pass the output.dir of a sweep")
    points = read_yaml(file).get("points")
    if not points or not isinstance(points, dict) or not all(isinstance(each, dict) for each in points.values()):
        raise damaged(file, "it has no points")
    return points


def sweep_folder(sweep: Sweep, name: str, resume: bool) -> Path:
    """Return the folder of the sweep, checked but not yet created: `output.dir`, or a new one for `name`.

    Raises:
        OutputFolderError: it is not writable, has files (without `resume`), or holds another sweep (with `resume`).
    """
    folder = RunFolder.choose(sweep.configs[0].output.dir, f"{name}-sweep", "auto" if resume else None)
    if not _has_files(folder):
        return folder
    if not (folder / SWEEP_FILE).is_file():
        raise OutputFolderError(f"{folder} does not hold a sweep: it has no {SWEEP_FILE}")
    points = read_points(folder)
    reason = difference(read_yaml(folder / SWEEP_FILE).get("swept", {}), sweep.described()["swept"])
    if not reason and list(points) != [point.name for point in sweep.points]:
        reason = "its swept keys are in another order"
    if not reason and (folder / CONFIG_FILE).is_file():  # missing if Slurm's jobs created the folder
        reason = difference(read_yaml(folder / CONFIG_FILE), sweep.base())
    if reason:
        raise OutputFolderError(f"{folder} holds another sweep: {reason}; use the same values, or another output.dir")
    return folder


def refuse_sweep(folder: str | None) -> None:
    """Raise `OutputFolderError` if a single run is about to resume in the folder of a sweep."""
    if folder is not None and (Path(folder) / SWEEP_FILE).is_file():
        raise OutputFolderError(f"{folder} holds a sweep: add its --sweep ..., or pass the folder of one of its runs")


def run_sweep(
    sweep: Sweep, folder: Path, *, again: str, command: Callable[[Point, Path, bool], Sequence[str]] | None = None
) -> int:
    """Run the unfinished points, one after another.

    Args:
        folder: result of `sweep_folder`.
        again: command that resumes the sweep, for the message to the user.
        command: makes the command line of a point from its folder and whether it resumes; default: `rg-env train`.

    Returns:
        0; 1 if a point failed or was stopped by a monitor; 128 + N if signal N ended the sweep.
    """
    try:
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFolderError(f"cannot write to {folder}: {error.strerror}") from error
    supervisor = Supervisor()
    busy = f"another process is running the sweep in {folder}: wait for it or stop it"
    with supervisor.noting_signals(), locked(folder, busy):
        for name, values in ((SWEEP_FILE, sweep.described()), (CONFIG_FILE, sweep.base())):
            write_aside(folder / name, yaml12.to_yaml(values))
        failed = False
        for point in sweep.points:
            if not supervisor.signals:
                failed |= not _run_point(supervisor, sweep, point, folder, command or train_command)
        if supervisor.signals:
            supervisor.say(f"the sweep was interrupted; resume it with: {again}")
            return 128 + supervisor.signals[0]
    return int(failed)


def _run_point(
    supervisor: Supervisor,
    sweep: Sweep,
    point: Point,
    folder: Path,
    command: Callable[[Point, Path, bool], Sequence[str]],
) -> bool:
    """Run a point until it ends or a signal ends it; returns False if it failed or was stopped by a monitor."""
    head, place = f"[{point.number}/{len(sweep.points)}]", folder / point.name
    status, reason = status_of(folder, point.name)
    if status in ("finished", "stopped"):
        supervisor.say(f"{head} {point.name} is already {' '.join([status, reason]).strip()}")
        return status == "finished"
    failure, log = _failure_file(folder, point.name), folder / LOGS / f"{point.name}.log"
    failure.unlink(missing_ok=True)
    resumes = _has_files(place)
    supervisor.say(f"{head} {point.name}{' resumes' if resumes else ''}")
    start = time.monotonic()
    with supervisor.ending_programs():
        program = supervisor.start(Command(tuple(command(point, place, resumes))), log, lambda line: f"{head} {line}")
        if not supervisor.wait_until(lambda: program.code is not None):
            supervisor.let_save(program, "interrupted: the run", interrupt=True)
    status, reason = status_of(folder, point.name)
    if status == "finished":
        supervisor.say(f"{head} {point.name} finished after {time.monotonic() - start:.0f} s")
    elif status == "stopped":
        supervisor.say(f"{head} {point.name} was stopped {reason}; the sweep continues")
    elif not supervisor.signals:
        last = " ".join(program.last_lines(1))
        reason = f"exit code {program.code}: {one_line(last or reason or 'no output', 300)}"
        failure.write_text(reason + "\n", encoding="utf-8")
        supervisor.say(f"{head} {point.name} failed, {reason} (see {log}); the sweep continues")
    return status == "finished"


def train_command(point: Point, folder: Path, resumes: bool) -> list[str]:
    """Command line of `rg-env train` in this interpreter, without imports from the working folder."""
    settings = [str(folder.parent / CONFIG_FILE), *point.overrides, override("output.dir", str(folder))]
    resume = ["--resume", "auto"] if resumes else []
    return [sys.executable, "-P", "-m", "rg_env.cli.main", "train", *settings, *resume]


def plan_lines(sweep: Sweep, folder: Path) -> list[str]:
    """Describe the grid, one line per point, and keys without effect."""
    lines = [f"{counted(len(sweep.points), 'run')}, one after another, in {folder}/"]
    width = max(len(point.name) for point in sweep.points)
    for point, config in zip(sweep.points, sweep.configs, strict=True):
        status, _ = status_of(folder, point.name)
        state = "" if status == "not started" else f", {status}"
        steps = config.in_updates().training.max_steps
        lines.append(f"{point.number:>4}  {point.name:<{width}}  {counted(steps, 'step')}{state}")
    return [*lines, *notes(sweep)]


def notes(sweep: Sweep) -> list[str]:
    """Describe keys without effect: one line per set of keys, with its points."""
    found: dict[str, list[str]] = {}
    last, line = sweep.configs[0], without_effect(sweep.configs[0])
    for point, config in zip(sweep.points, sweep.configs, strict=True):
        if config.model_copy(update={"seed": last.seed}) != last:  # computing it takes a millisecond
            last, line = config, without_effect(config)
        if line:
            found.setdefault(line, []).append(point.name)
    return [f"{some_of(names, len(sweep.points))}: {line}" for line, names in found.items()]


def _failure_file(folder: Path, name: str) -> Path:
    return folder / LOGS / f"{name}.failed"


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
