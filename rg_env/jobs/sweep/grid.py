"""The grid of a sweep: one validated config per combination of the swept values.

    sweep = load_sweep("configs/train/tiny.yaml", [], ["training.learning_rate=1e-6,2e-6", "seed=0,1,2"])
    for point in sweep.points:
        print(point.name, point.overrides)

Values are YAML, as in a config, split at commas outside brackets and quotes. The grid is their product in the given
order, with seeds innermost. This module only plans; `jobs.sweep.runs` starts runs and writes files.
"""

import contextlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.config import yaml12
from rg_env.core.config.files import COMMAND_LINE, Document, leaves, overridden, read_config
from rg_env.core.text import one_line, short_keys, shortened, shown
from rg_env.errors import ConfigError, InputError
from rg_env.training.config.load import checked_config
from rg_env.training.config.schema import TrainConfig

SEED = "seed"
MOST_POINTS = 1000
"""Maximum number of points: the jobs of a Slurm array with the default MaxArraySize."""
MOST_CHARACTERS = 80
"""Maximum length of a point's name."""
_DIFFERENCES = 3
"""Maximum number of differences between two sweeps in an error."""
_FREE = ("output", "logging", "hub", "engine.host", "engine.port")
"""Keys that may change when a sweep is resumed."""


@dataclass(frozen=True)
class Axis:
    """A swept key and its values."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    number: int
    """Number from 1, in the order of the grid."""
    name: str
    """Folder name: at most `MOST_CHARACTERS` ASCII letters, digits and any of . _ = + -"""
    values: dict[str, Any]
    """Swept key -> value."""
    overrides: tuple[str, ...]
    """Config overrides: "key=value"."""


@dataclass(frozen=True)
class Sweep:
    """Points of a grid with a validated config per point."""

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    configs: tuple[TrainConfig, ...]
    """Configs, in the order of the points."""

    def base(self) -> dict[str, Any]:
        """Resolved config shared by all points, as plain values without the swept keys and `output.dir`."""
        values = self.configs[0].resolved()
        for key in [*(axis.key for axis in self.axes), "output.dir"]:
            _remove(values, key.split("."))
        return values

    def described(self) -> dict[str, Any]:
        """Content of sweep.yaml as plain values: the values of each swept key, and the points."""
        return {
            "swept": {axis.key: list(axis.values) for axis in self.axes},
            "points": {point.name: point.values for point in self.points},
        }


def load_sweep(
    file: str | Path, overrides: Sequence[str], words: Sequence[str], *, processes: int | None = None
) -> Sweep:
    """Load the config in `file` with `overrides` and sweep it over `words` ("key=value,value").

    Raises:
        InputError: a file cannot be read; a word is not "key=value,value"; a value is repeated; a key is both swept
            and overridden; there are too many points; two points would be published to one repository.
        ConfigError: configs of points are invalid; the message has one line per mistake.
    """
    axes = parse_axes(words)
    document = read_config(file, overrides)
    for axis in axes:
        if _is_overridden(document, tuple(axis.key.split("."))):
            raise InputError(f"{axis.key} is both swept and overridden: remove one")
    points = grid(axes)
    configs: list[TrainConfig] = []
    mistakes: dict[str, list[str]] = {}
    for point in points:
        try:
            configs.append(checked_config(overridden(document, point.overrides), processes=processes))
        except InputError as error:
            lines = str(error).splitlines()
            for line in lines[1:] if len(lines) > 1 else lines:  # the first line is only a count
                mistakes.setdefault(line.strip(), []).append(point.name)
    if mistakes:
        raise _all_of(mistakes, len(points), file)
    seen: dict[str, str] = {}
    for point, config in zip(points, configs, strict=True):
        if (other := seen.setdefault(_canonical(config.resolved()), point.name)) != point.name:
            raise InputError(f"{other} and {point.name} are the same run: remove one")
    published = [config.hub.repo_id for config in configs if config.hub.enabled]
    if len(set(published)) < len(published):
        raise InputError(
            "hub.enabled: a repository holds one run, but several points have the same hub.repo_id: publish the best "
            "one with rg-env push, or sweep hub.repo_id as well"
        )
    return Sweep(axes, points, tuple(configs))


def parse_axes(words: Sequence[str]) -> tuple[Axis, ...]:
    """Parse the swept keys in grid order: as given, with the seed last. Raises `InputError` like `load_sweep`."""
    axes = [_axis(word) for word in words]
    for one, other in itertools.combinations(axes, 2):
        if one.key == other.key:
            raise InputError(f"{one.key} is swept twice: list it once with all values")
        if f"{one.key}.".startswith(f"{other.key}.") or f"{other.key}.".startswith(f"{one.key}."):
            raise InputError(f"{one.key} and {other.key} are both swept, but one is part of the other: sweep one")
    if (count := math.prod(len(axis.values) for axis in axes)) > MOST_POINTS:
        sizes = " x ".join(str(len(axis.values)) for axis in axes)
        raise InputError(f"the sweep has {count:,} points ({sizes}), more than {MOST_POINTS:,}: sweep fewer values")
    return tuple(sorted(axes, key=lambda axis: axis.key == SEED))


def fixed_and_swept(overrides: Sequence[str], words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the words after `--sweep`: a key with one value is an override, as if it came before `--sweep`.

    Returns:
        All overrides, and the words to sweep.

    Raises:
        InputError: a word is invalid, a key is given before and after `--sweep`, or no key has several values.
    """
    fixed = [word for word in words if len(_axis(word).values) == 1]
    given = {each.partition("=")[0].strip() for each in overrides}
    if twice := next((key for word in fixed if (key := word.partition("=")[0].strip()) in given), None):
        raise InputError(f"{twice} is given twice, in and outside --sweep: remove one")
    if len(fixed) == len(words):
        raise InputError(f"--sweep {shortened(words[0])}: no key has several values, such as seed=0,1,2")
    return [*overrides, *fixed], [word for word in words if word not in fixed]


def grid(axes: Sequence[Axis]) -> tuple[Point, ...]:
    """Return the product of the axes, the last one innermost."""
    keys = [axis.key for axis in axes]
    values = [dict(zip(keys, each, strict=True)) for each in itertools.product(*(axis.values for axis in axes))]
    return tuple(
        Point(number, name, each, tuple(override(*item) for item in each.items()))
        for number, (name, each) in enumerate(zip(_names(values), values, strict=True), 1)
    )


def override(key: str, value: Any) -> str:
    """Format the config override "key=value"; text is quoted only if YAML would read it as another type."""
    with contextlib.suppress(yaml.YAMLError, ValueError):
        if isinstance(value, str) and yaml12.load(value) == value:
            return f"{key}={value}"
    return f"{key}={json.dumps(value)}"


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Describe the differences between two configs (`Sweep.base`) or two `swept`; empty if they are equal.

    Ignores output, logging and the server's address.
    """
    one, other = dict(leaves(there)), dict(leaves(here))
    paths = [path for path in {**one, **other} if one.get(path) != other.get(path)]
    paths = [path for path in paths if not f"{path}.".startswith(tuple(f"{free}." for free in _FREE))]

    def of(values: Mapping[str, Any], path: str) -> str:
        return shortened(values[path]) if path in values else "not given"

    found = [f"{path} is {of(one, path)} there and {of(other, path)} here" for path in paths]
    more = [f"{len(found) - _DIFFERENCES} more"] if len(found) > _DIFFERENCES else []
    return "; ".join([*found[:_DIFFERENCES], *more])


def some_of(names: Sequence[str], points: int) -> str:
    """Format the names of some points, shortened; `points` is the total number."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return "every point" if 1 < len(names) == points else f"{names[0]}{more}"


def _axis(word: str) -> Axis:
    key, separator, text = word.partition("=")
    key, option = key.strip(), f"--sweep {shortened(word)}"
    if not separator or not all(key.split(".")):
        raise InputError(f"{option} is not of the form section.key=value,value")
    if not text.strip():
        raise InputError(f"{option} has no value: use values such as {key}=1,2")
    if text.rstrip().endswith(","):
        raise InputError(f"{option}: the value after the last comma is empty; '' is an empty text, null is None")
    try:
        values = yaml12.load(f"[{text}]")
    except (ValueError, yaml.YAMLError) as error:
        remedy = "leave no value empty, and quote text"
        raise InputError(f"{option} is not a list of values ({one_line(error)}): {remedy}") from error
    seen = [_canonical(value) for value in values]
    if repeated := next((each for number, each in enumerate(seen) if each in seen[:number]), None):
        raise InputError(f"{option}: {shortened(json.loads(repeated))} is repeated")
    if key in ("output", "output.dir") and len(values) > 1:
        raise InputError(f"{option}: each point gets its own folder in output.dir: set output.dir to a single value")
    return Axis(key, tuple(values))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _is_overridden(document: Document, path: tuple[str, ...]) -> bool:
    """Whether an override on the command line sets a value that a sweep over `path` would replace."""
    if any(given[: len(path)] == path and where == COMMAND_LINE for given, where in document.origins.items()):
        return True
    return document.get(path) is not None and document.origin(path) == COMMAND_LINE


def _all_of(mistakes: Mapping[str, list[str]], points: int, file: str | Path) -> ConfigError:
    """Combine all mistakes into one error, each with the points that have it."""
    lines = [f"{some_of(names, points)}: {line}" for line, names in mistakes.items()]
    head = [] if len(lines) == 1 else [f"{file}: {len(lines)} mistakes in the {points} points of the sweep"]
    return ConfigError("\n  ".join([*head, *lines]))


def _names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name per point, prefixed with its number if names are too long, or equal on some file systems."""
    labels = short_keys(points[0])
    texts = ["_".join(f"{labels[key]}={shown(each)}" for key, each in point.items()) for point in points]
    names = [re.sub(r"[^A-Za-z0-9._=+-]+", "-", text).lstrip("-.") for text in texts]
    if max(map(len, names)) <= MOST_CHARACTERS and len({name.lower() for name in names}) == len(names):
        return names
    width = len(str(len(names)))
    return [f"{number:0{width}}_{name}"[:MOST_CHARACTERS] for number, name in enumerate(names, 1)]


def _remove(values: Any, path: Sequence[str]) -> None:
    for key in path[:-1]:
        values = values.get(key) if isinstance(values, dict) else None
    if isinstance(values, dict):
        values.pop(path[-1], None)
