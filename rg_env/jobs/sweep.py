"""Run a grid of validated configs one after another, each in its own process. On Linux without a GPU, the processes are
forked from one that has imported torch, so that only the first run waits for the imports.

    words = ["training.learning_rate=1e-6,2e-6", "seed=0,1,2"]
    sweep = load_sweep("configs/train/tiny.yaml", [], words)
    folder = sweep_folder(sweep, "tiny", resume=False)
    code = run_sweep(sweep, folder, again=resume_command("configs/train/tiny.yaml", [], words, folder))

Values are written in YAML, as in a config, and are separated by commas outside brackets and quotes. The grid combines
the values of all keys, in the given order but with seeds innermost. A sweep has one resumable folder:

config.yaml         resolved config shared by all points, from which the runs are started
sweep.yaml          swept values and points
NAME/               a point's run (see `RunFolder`)
logs/NAME.log       the run's output
logs/NAME.failed    reason for the failure, if the run failed
comparison.*        comparison as data (.json, .csv), tables (.md, .tex) and a plot (.png); see `jobs.comparison`
curves.png          mean learning curves of the finished runs, by setting

The sweep continues if a point fails or is stopped by a monitor. When the sweep is resumed, failed points are rerun,
but stopped points are not. Ctrl-C, SIGTERM and SIGHUP let the current run save, and then end the sweep.
"""

import contextlib
import itertools
import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import yaml

from rg_env.core.config import yaml12
from rg_env.core.config.files import COMMAND_LINE, Document, leaves, overridden, read_config, without_key
from rg_env.core.files import check_no_link, links_out, make_folder, read_bytes, write_aside
from rg_env.core.fork_server import ForkServer
from rg_env.core.processes import Command, entered, python_module
from rg_env.core.run_folder import RunFolder, damaged, locked, read_yaml
from rg_env.core.text import counted, listed, one_line, point_labels, shortened
from rg_env.errors import ConfigError, InputError, OutputFolderError
from rg_env.inference.machine import visible_gpus
from rg_env.jobs.supervisor import Supervisor
from rg_env.training.config.load import checked_config
from rg_env.training.config.schema import TrainConfig

SWEEP_FILE, CONFIG_FILE, LOGS = "sweep.yaml", "config.yaml", "logs"
SEED = "seed"
MOST_POINTS = 1000
"""Maximum number of points. This is also the maximum size of a Slurm array with the default MaxArraySize."""
MOST_CHARACTERS = 80
"""Maximum length of a point's name."""
_NAME = re.compile(r"[A-Za-z0-9_=+][A-Za-z0-9._=+-]*")
_FREE = ("output", "logging", "hub", "engine.host", "engine.port")
"""Keys that may change when a sweep is resumed."""
_NOT_RERUN = ("finished", "stopped")
"""Statuses of runs that are not rerun."""
_SHARED_MODULES = ("rg_env.training.run", "rg_env.evaluation.plots.curves")
"""Modules that every run needs, with all that they import. Importing them takes most of the CPU time of a start."""


Axes = dict[str, list[Any]]
"""Values of each swept key, in grid order."""
RunStatus = Literal["finished", "stopped", "failed", "not finished", "not started"]


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep."""

    number: int
    """Position in the grid, counting from 1."""
    name: str
    """Folder name of at most `MOST_CHARACTERS` characters: ASCII letters, digits, and any of . _ = + -"""
    values: dict[str, Any]
    """Value of each swept key."""
    overrides: tuple[str, ...]
    """Config overrides: "key=value"."""


@dataclass(frozen=True)
class Sweep:
    """The points of a grid, with a validated config for each."""

    axes: Axes
    points: tuple[SweepPoint, ...]
    configs: tuple[TrainConfig, ...]
    """Configs, in point order."""

    def base(self) -> dict[str, Any]:
        """Return the resolved config shared by all points, as plain values without the swept keys and `output.dir`."""
        paths = (tuple(key.split(".")) for key in (*self.axes, "output.dir"))
        return reduce(without_key, paths, self.configs[0].resolved())

    def described(self) -> dict[str, Any]:
        """Return the contents of sweep.yaml (the values of each swept key, and the points) as plain values."""
        return {"swept": self.axes, "points": {point.name: point.values for point in self.points}}


def load_sweep(
    file: str | Path, overrides: Sequence[str], words: Sequence[str], *, processes: int | None = None
) -> Sweep:
    """Load the config in `file` with `overrides` and sweep it over `words` ("key=value,value").

    Raises:
        InputError: a file cannot be read, a word is not "key=value,value", a key is swept twice or both swept and
            overridden, there are too many points, or two points are the same run or would be published
            to the same repository.
        ConfigError: the configs of some points are invalid. The message has one line per mistake.
    """
    axes = parse_axes(words)
    document = read_config(file, overrides)
    for key in axes:
        if _is_overridden(document, tuple(key.split("."))):
            raise InputError(f"{key} is both swept and overridden: remove one")
    points = grid(axes)
    configs: list[TrainConfig] = []
    mistakes: dict[str, list[str]] = {}
    for point in points:
        try:
            configs.append(checked_config(overridden(document, point.overrides), processes=processes))
        except InputError as error:
            lines = str(error).splitlines()
            for line in lines[1:] or lines:  # the first of several lines contains only the number of mistakes
                mistakes.setdefault(line.strip(), []).append(point.name)
    if mistakes:
        lines = [f"{some_of(names, len(points))}: {line}" for line, names in mistakes.items()]
        head = [f"{file}: {len(lines)} mistakes in the {len(points)} points of the sweep"] if len(lines) > 1 else []
        raise ConfigError("\n  ".join([*head, *lines]))
    seen: dict[str, str] = {}
    for point, config in zip(points, configs, strict=True):
        if (other := seen.setdefault(json.dumps(config.resolved(), sort_keys=True), point.name)) != point.name:
            raise InputError(f"{other} and {point.name} are the same run: remove one")
    published = [config.hub.repo_id for config in configs if config.hub.enabled]
    if len(set(published)) < len(published):
        raise InputError(
            "hub.enabled: a repository can contain only one run, but several points have the same hub.repo_id; publish "
            "the best one with rg-env push, or sweep hub.repo_id as well"
        )
    return Sweep(axes, points, tuple(configs))


def parse_axes(words: Sequence[str]) -> Axes:
    """Parse the swept keys and return them in grid order, which is the given order but with the seed last. Raises
    `InputError` if a word is invalid, a key is swept twice, or there are too many points."""
    axes: Axes = {}
    for key, values in map(_axis, words):
        if other := next((each for each in axes if _overlap(each.split("."), key.split("."))), None):
            if other == key:
                raise InputError(f"{key} is swept twice: list all its values at once, as in {key}=VALUE,VALUE")
            raise InputError(f"{other} and {key} are both swept, but overlap: keep only one of them")
        axes[key] = values
    if (count := math.prod(map(len, axes.values()))) > MOST_POINTS:
        sizes = " x ".join(str(len(values)) for values in axes.values())
        raise InputError(f"the sweep has {count:,} points ({sizes}), more than {MOST_POINTS:,}: sweep fewer values")
    return dict(sorted(axes.items(), key=lambda axis: axis[0] == SEED))


def fixed_and_swept(overrides: Sequence[str], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the words after `--sweep` into overrides and words to sweep. A key with a single value becomes an
    override, as if it were given before `--sweep`.

    Returns:
        All overrides, and the words to sweep.

    Raises:
        InputError: a word is invalid, a key with a single value is also given before `--sweep`, or no key has more than
            one value.
    """
    fixed = [word for word in words if len(_axis(word)[1]) == 1]
    given = {each.partition("=")[0].strip() for each in overrides}
    if twice := next((key for word in fixed if (key := word.partition("=")[0].strip()) in given), None):
        raise InputError(f"{twice} is given both inside and outside --sweep: remove one")
    if len(fixed) == len(words):
        is_list = isinstance(_axis(words[0])[1][0], list)
        remedy = "leave out the brackets" if is_list else "list several values for at least one key, such as seed=0,1,2"
        raise InputError(f"--sweep {shortened(words[0])}: {remedy}")
    return [*overrides, *fixed], [word for word in words if word not in fixed]


def grid(axes: Axes) -> tuple[SweepPoint, ...]:
    """Return a point for each combination of values. The values of the last axis change fastest."""
    points = [dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())]
    return tuple(
        SweepPoint(number, name, each, tuple(override(*item) for item in each.items()))
        for number, (name, each) in enumerate(zip(_names(points), points, strict=True), 1)
    )


def override(key: str, value: Any) -> str:
    """Format the config override "key=value". Text is quoted only if YAML would not read it back unchanged."""
    with contextlib.suppress(yaml.YAMLError, ValueError):
        if isinstance(value, str) and yaml12.load(value) == value:
            return f"{key}={value}"
    return f"{key}={json.dumps(value)}"


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Describe the differences between two configs (`Sweep.base`). Returns an empty string if there are no differences.

    The sections `output`, `logging` and `hub` and the server's address are ignored.
    """
    one, other = dict(leaves(there)), dict(leaves(here))
    paths = [path for path in {**one, **other} if one.get(path) != other.get(path)]
    paths = [path for path in paths if not f"{path}.".startswith(tuple(f"{free}." for free in _FREE))]

    def of(values: Mapping[str, Any], path: str) -> str:
        return shortened(values[path]) if path in values else "not given"

    return listed([f"{path} was {of(one, path)} before and is {of(other, path)} now" for path in paths])


def some_of(names: Sequence[str], points: int) -> str:
    """Format the names of some points as a short phrase. `points` is the total number of points."""
    return "every point" if 1 < len(names) == points else listed(names, 1)


def _overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two keys, split into parts, are equal or one contains the other."""
    return all(map(str.__eq__, one, other))


def _axis(word: str) -> tuple[str, list[Any]]:
    key, _, text = word.partition("=")
    key, option = key.strip(), f"--sweep {shortened(word)}"
    if not all(key.split(".")) or not text.strip() or text.rstrip().endswith(","):
        raise InputError(
            f"{option} is not of the form section.key=value,value, without spaces (an empty value is '' or null)"
        )
    try:
        values = yaml12.load_word(f"[{text}\n]")  # a line break keeps a comment from swallowing the bracket
    except (ValueError, yaml.YAMLError) as error:
        remedy = "write empty values as '' and put text in quotes"
        raise InputError(f"{option} is not a list of values ({one_line(error)}): {remedy}") from error
    if key in ("output", "output.dir") and len(values) > 1:
        raise InputError(f"{option}: each point gets its own folder in output.dir, so set output.dir to a single value")
    return key, values


def _is_overridden(document: Document, path: tuple[str, ...]) -> bool:
    """Whether an override on the command line sets a value that sweeping over `path` would replace."""
    origins = [*document.origins.items(), (path, document.origin(path) if document.get(path) is not None else None)]
    return any(given[: len(path)] == path and where == COMMAND_LINE for given, where in origins)


def _names(points: Sequence[dict[str, Any]]) -> list[str]:
    """Return a name for each point. The names start with the points' numbers if a name is too long, or if names are not
    unique when case is ignored."""
    texts = point_labels(points, "_")
    names = [re.sub(r"[^A-Za-z0-9._=+-]+", "-", text).lstrip("-.") for text in texts]
    if max(map(len, names)) <= MOST_CHARACTERS and len({name.lower() for name in names}) == len(names):
        return names
    width = len(str(len(names)))
    return [f"{number:0{width}}_{name}"[:MOST_CHARACTERS] for number, name in enumerate(names, 1)]


# Runs and their folder


def status_of(folder: Path, name: str) -> tuple[RunStatus, str]:
    """Return the status of the run called `name` in the sweep folder, and the reason for that status (empty if the run
    has finished or the reason is unknown)."""
    results = RunFolder(folder / name).results()
    if results and not results["interrupted"] and not results["error"]:
        rule = results.get("stopped_by")
        return ("stopped", f"by monitor {rule} after {counted(results['steps'], 'step')}") if rule else ("finished", "")
    if (file := _failure_file(folder, name)).is_file():
        return "failed", one_line(read_bytes(file).decode(errors="replace"))
    if results and results["error"]:
        return "failed", one_line(results["error"])
    if results:
        return "not finished", f"interrupted after {counted(results['steps'], 'step')}"
    return ("not finished" if _has_files(folder / name) else "not started"), ""


def read_points(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the swept values of each point in the sweep folder, by point name.

    Raises:
        InputError: `folder` is not a sweep, or sweep.yaml is damaged.
    """
    file = folder / SWEEP_FILE
    if not file.is_file():
        if not folder.is_dir():
            raise InputError(f"there is no folder {one_line(folder)}: pass the output.dir of a sweep")
        raise InputError(
            f"{folder} is not a sweep, because it has no {SWEEP_FILE}; pass the output.dir of a sweep. For single "
            "runs, use `rg-env plot` or `rg-env eval --models`"
        )
    points: dict[str, dict[str, Any]] = read_yaml(file).get("points", {})
    if not points or not isinstance(points, dict) or not all(isinstance(each, dict) for each in points.values()):
        raise damaged(file, "it has no points")
    for name in points:
        if not _NAME.fullmatch(name):
            raise damaged(file, f"{one_line(name, 80)!r} is not the name of a run")
        if links_out(folder / name, folder):
            raise InputError(f"{folder / name} is a link out of the sweep's folder: replace it with a copy")
    return points


def sweep_folder(sweep: Sweep, name: str, resume: bool) -> Path:
    """Return the sweep's folder, checked but not yet created: `output.dir`, or a new folder whose name starts with
    `name`.

    Raises:
        OutputFolderError: the folder is not writable, has files (without `resume`), or has files that do not belong to
            this sweep (with `resume`).
    """
    folder = RunFolder.choose(sweep.configs[0].output.dir, f"{name}-sweep", "auto" if resume else None)
    if not _has_files(folder):
        return folder
    if not (folder / SWEEP_FILE).is_file():
        raise OutputFolderError(
            f"{folder} cannot be used for a sweep (choose another output.dir), because it has files but no {SWEEP_FILE}"
        )
    points = read_points(folder)
    reason = "" if list(points) == [point.name for point in sweep.points] else "its swept keys or values differ"
    if not reason and (folder / CONFIG_FILE).is_file():  # the file is missing if Slurm jobs created the folder
        reason = difference(read_yaml(folder / CONFIG_FILE), sweep.base())
    if reason:
        raise OutputFolderError(f"{folder} contains another sweep: {reason}; use the same values or another output.dir")
    return folder


def refuse_sweep(folder: str | None) -> None:
    """Raise `OutputFolderError` if the output folder of a single run is a sweep folder."""
    if folder is not None and (Path(folder) / SWEEP_FILE).is_file():
        raise OutputFolderError(f"{folder} contains a sweep: add its --sweep ..., or pass one of its run folders")


PointCommand = Callable[[SweepPoint, Path, bool], Command]
"""Function that creates a point's command from the point, its folder, and whether its run resumes."""


def train_command(point: SweepPoint, folder: Path, resumes: bool) -> Command:
    """Return the command that trains a point."""
    settings = [str(folder.parent / CONFIG_FILE), *point.overrides, override("output.dir", str(folder))]
    resume = ["--resume", "auto"] if resumes else []
    return python_module("rg_env.cli.main", "train", *settings, *resume)


def resume_command(file: str, overrides: Sequence[str], words: Sequence[str], folder: Path) -> str:
    """Return the command that resumes the sweep in `folder`."""
    fixed = [each for each in overrides if each.partition("=")[0].strip() != "output.dir"]
    settings = [*fixed, override("output.dir", str(folder)), "--sweep", *words]
    return shlex.join([entered("rg-env"), "train", file, *settings, "--resume", "auto"])


def run_sweep(sweep: Sweep, folder: Path, *, again: str, command: PointCommand = train_command) -> int:
    """Run the unfinished points, one after another.

    Args:
        folder: result of `sweep_folder`.
        again: command that resumes the sweep, shown to the user.

    Returns:
        0 if all points finished, 1 if a point failed or was stopped by a monitor, or 128 + N if signal N ended the
        sweep.
    """
    make_folder(folder / LOGS)
    supervisor = Supervisor()
    with supervisor.noting_signals(), locked(folder), contextlib.ExitStack() as at_end:
        for name, values in ((SWEEP_FILE, sweep.described()), (CONFIG_FILE, sweep.base())):
            write_aside(folder / name, yaml12.to_yaml(values))
        server = None
        left = [point for point in sweep.points if status_of(folder, point.name)[0] not in _NOT_RERUN]
        if sys.platform == "linux" and len(left) > 1 and not visible_gpus():
            server = ForkServer(_SHARED_MODULES)
            at_end.callback(server.kill)
        failed = False
        for point in sweep.points:
            if not supervisor.signals:
                failed |= not _run_point(supervisor, sweep, point, folder, command, server)
        if supervisor.signals:
            supervisor.say(f"the sweep was interrupted; resume it with: {again}")
            return 128 + supervisor.signals[0]
    return int(failed)


def _shown(head: str) -> Callable[[str], str | None]:
    """Return a function that selects the lines of a run's output for the console: those before the summary, without
    answers. The others are in the log."""
    is_over = False

    def shown(line: str) -> str | None:
        nonlocal is_over
        hidden = is_over or line[:1] in ("", " ")
        is_over = is_over or line.startswith(("Trained for ", "Interrupted after ", "Stopped by "))
        return None if hidden else f"{head} {line}"

    return shown


def _run_point(
    supervisor: Supervisor,
    sweep: Sweep,
    point: SweepPoint,
    folder: Path,
    command: PointCommand,
    server: ForkServer | None,
) -> bool:
    """Run a point until it ends. A point that has already finished or been stopped by a monitor is not rerun. Returns
    whether the run has finished, rather than failed or been stopped."""
    head, place = f"[{point.number}/{len(sweep.points)}]", folder / point.name
    status, reason = status_of(folder, point.name)
    if status in _NOT_RERUN:
        supervisor.say(f"{head} {point.name}: already {' '.join([status, reason]).strip()}")
        return status == "finished"
    failure, log = _failure_file(folder, point.name), folder / LOGS / f"{point.name}.log"
    failure.unlink(missing_ok=True)
    check_no_link(place)
    resumes = _has_files(place)
    supervisor.say(f"{head} {point.name}{' resumes' if resumes else ''}")
    start = time.monotonic()
    if server and not supervisor.wait_until(lambda: not server.is_importing()):
        return False
    with supervisor.ending_programs():
        program = supervisor.start(command(point, place, resumes), log, _shown(head), server)
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
        write_aside(failure, reason + "\n")
        supervisor.say(f"{head} {point.name} failed with {reason} (see {log}); the sweep continues")
    return status == "finished"


def plan_lines(sweep: Sweep, folder: Path) -> list[str]:
    """Describe the grid, with one line per point."""
    lines = [f"{counted(len(sweep.points), 'run')}, one after another, in {folder}/"]
    width = max(len(point.name) for point in sweep.points)
    for point, config in zip(sweep.points, sweep.configs, strict=True):
        status, _ = status_of(folder, point.name)
        state = "" if status == "not started" else f", {status}"
        steps = config.training_for().max_steps
        lines.append(f"{point.number:>4}  {point.name:<{width}}  {counted(steps, 'step')}{state}")
    return lines


def _failure_file(folder: Path, name: str) -> Path:
    return folder / LOGS / f"{name}.failed"


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
