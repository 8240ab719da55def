"""Config files: what extends what, what overrides what, and where each value was given.

`extends:` names one file or several, relative to the file that says so; what comes later wins, and the file itself
last. Mappings are merged key by key, anything else is replaced; null takes a key away, back to its default. An override
replaces what stands at its path. `imports:` lists add up, and a .py file in one is relative to the file that names it:
the outcome is one list, of modules and absolute paths. There are no references to the environment: keys of services
are read from it directly, and no config holds any.
"""

import copy
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.config import yaml12
from rg_env.core.text import shortened
from rg_env.errors import InputError

COMMAND_LINE = "command line"
SUFFIXES = (".yaml", ".yml")
_MAX_CHARS = 1_000_000
Keys = tuple[str, ...]
"""Keys from the top of a config down to a value."""


@dataclass
class Document:
    """A config as read: plain values, and where each came from."""

    values: dict[str, Any]
    file: Path
    origins: dict[Keys, str] = field(default_factory=dict)

    def origin(self, path: Keys) -> str:
        """Where the value at `path`, or what it is part of, was given: "FILE:LINE" or "command line"."""
        for length in range(len(path), 0, -1):
            if (found := self.origins.get(path[:length])) is not None:
                return found
        return next((origin for known, origin in self.origins.items() if known[: len(path)] == path), str(self.file))

    def at(self, path: Keys) -> Any:
        """The value at `path`. Raises `KeyError` if none was given."""
        value: Any = self.values
        for key in path:
            if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            elif isinstance(value, Mapping) and key in value:
                value = value[key]
            else:
                raise KeyError(key)
        return value

    def has(self, path: Keys) -> bool:
        """Whether a value was given at `path`."""
        try:
            self.at(path)
        except KeyError:
            return False
        return True


def is_config_file(name: str) -> bool:
    """Whether it is a config, by its name: any other file is a script."""
    return name.endswith(SUFFIXES)


def read_config(file: str | Path, overrides: Sequence[str] = ()) -> Document:
    """The values of `file`, of what it extends, and `overrides` ("a.b=value") over them.

    Raises:
        InputError: a file cannot be read or is no YAML mapping; files extend each other in a circle; an override is no
            "key=value", or its value no YAML.
    """
    path = Path(file)
    document = Document({}, path)
    _extend(document, path, ())
    return overridden(document, overrides)


def overridden(document: Document, overrides: Sequence[str]) -> Document:
    """A copy of `document` with `overrides` ("a.b=value") over its values. Raises as `read_config`."""
    document = copy.deepcopy(document)
    for override in overrides:
        _override(document, override)
    return document


def _extend(document: Document, file: Path, above: tuple[Path, ...]) -> None:
    """Put the values of `file` over those of `document`, those of the files that it extends first."""
    here = file.resolve() if os.path.exists(file) else file
    if here in above:
        raise InputError(f"configs extend each other in a circle: {' -> '.join(p.name for p in (*above, here))}")
    values, lines = _read(file)
    parents = values.pop("extends", None)
    parents = [parents] if isinstance(parents, str) else parents or []
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise InputError(f"{file}: extends must name a file or a list of files, not {shortened(parents)}")
    for parent in parents:
        target = file.parent / parent
        if not os.path.isfile(target):
            raise InputError(
                f"{file}: extends: there is no file {_name(target)}; the path is relative to the file itself"
            )
        _extend(document, target, (*above, here))
    own, earlier = values.get("imports"), document.values.get("imports")
    if isinstance(own, list):
        own = [_located(name, file) for name in own]
        values["imports"] = [*earlier, *(name for name in own if name not in earlier)] if earlier else own
    _merge(document, values, lines, file, ())


def _name(file: Path) -> str:
    return text if len(text := str(file)) <= 500 else shortened(text)


def _located(name: Any, file: Path) -> Any:
    """A .py file of `imports` by its absolute path: the config that is written with a run stands in another folder."""
    return os.path.abspath(file.parent / name) if isinstance(name, str) and name.endswith(".py") else name


def _merge(document: Document, values: Mapping[str, Any], lines: Mapping[Keys, int], file: Path, path: Keys) -> None:
    for key, value in values.items():
        own = (*path, key)
        if isinstance(value, Mapping) and value and document.has(own) and isinstance(document.at(own), Mapping):
            _merge(document, value, lines, file, own)
            continue
        _place(document, own, value)
        for each in [own, *(below for below in lines if below[: len(own)] == own)]:
            document.origins[each] = f"{file}:{lines[each]}" if each in lines else str(file)


def _place(document: Document, path: Keys, value: Any) -> None:
    """Set the value at `path`; None takes it away. Where the old one came from is forgotten."""
    for known in [known for known in document.origins if known[: len(path)] == path]:
        del document.origins[known]
    holder = document.values
    for key in path[:-1]:
        inner = holder.get(key)
        if not isinstance(inner, dict):
            inner = holder[key] = {}
        holder = inner
    if value is None:
        holder.pop(path[-1], None)
    else:
        holder[path[-1]] = without_nulls(value)


def without_nulls(value: Any) -> Any:
    """As a config has it: what has no value is not named."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _override(document: Document, text: str) -> None:
    name, separator, value = text.partition("=")
    path = tuple(name.strip().split("."))
    shown = shortened(text)
    if not separator or not all(path):
        raise InputError(f"override {shown} is not of the form section.key=value")
    if path[0] in ("extends", "imports"):
        raise InputError(f"override {shown}: {path[0]} is read from config files only")
    try:
        parsed = yaml12.load(value)
        yaml12.check_plain(functools.reduce(lambda inner, key: {key: inner}, reversed(path), parsed))
    except yaml.YAMLError as error:
        raise InputError(f"override {shown}: the value is no YAML ({yaml12.reason_of(error)}); quote it") from error
    except ValueError as error:
        raise InputError(f"override {shown}: {' '.join(str(error).split())}") from error
    _open_lists(document, path, shown)
    _place(document, path, parsed)
    document.origins[path] = COMMAND_LINE


def _open_lists(document: Document, path: Keys, shown: str) -> None:
    """Make a section for each name of a list, such as that of tasks, where the override sets something within one.

    Raises:
        InputError: it is another list, which would be gone.
    """
    for length in range(1, len(path)):
        above = path[:length]
        names = document.at(above) if document.has(above) else None
        if not isinstance(names, list):
            continue
        if path[length] not in names or not all(isinstance(name, str) for name in names):
            where = ".".join(above)
            raise InputError(
                f"override {shown}: {where} is a list ({document.origin(above)}), which it would replace: "
                f"give all of it, {where}=..."
            )
        origin = document.origin(above)
        _place(document, above, {name: {} for name in names})
        document.origins[above] = origin


def _read(file: Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """The mapping in a YAML file, and the line of each of its keys."""
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_MAX_CHARS + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputError(f"cannot read the config {shortened(str(file))}: {reason}") from error
    if len(text) > _MAX_CHARS:
        raise InputError(f"{file} is no config: it has more than {_MAX_CHARS:,} characters")
    try:
        values, lines = yaml12.load(text), yaml12.key_lines(text)
    except yaml.YAMLError as error:
        raise InputError(f"{file} is no YAML: {yaml12.reason_of(error)}") from error
    except ValueError as error:  # it refers to itself, or has tags such as !!binary
        raise InputError(f"{file} is no config: {' '.join(str(error).split())}") from error
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise InputError(f"{file} is no config: it must be a mapping of sections, not a {type(values).__name__}")
    return values, lines
