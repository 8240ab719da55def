"""Config files: `extends:`, overrides, and the origin of each value.

`extends:` names one or more files, relative to the file that names them. Later files override earlier files, and the
file that contains `extends:` overrides all of them. Non-empty mappings are merged key by key, and any other value is
replaced. Null removes a key, which restores its default. An override replaces the value at its path. The lists of
modules and .py files under `imports:` are concatenated. Paths of .py files are relative to the config that contains
them and are made absolute. Configs cannot refer to environment variables. API keys are read directly from the
environment and never appear in a config.
"""

import copy
import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from rg_env.core.config import yaml12
from rg_env.core.config.yaml12 import Keys as Keys
from rg_env.core.files import regular
from rg_env.core.text import one_line, reason_of, shortened, similar_file
from rg_env.errors import InputError

COMMAND_LINE = "command line"
OTHER_NAMES: dict[str, dict[str, str]] = yaml12.load(Path(__file__).with_name("other_names.yaml").read_text("utf-8"))
SHORT_FORMS = {"model": "name", "data": "path", "engine": "kind", "output": "dir"}
"""Sections that may be given as plain text, each with the key that the text sets (`Section.short`)."""
_SUFFIXES = (".yaml", ".yml")
_MOST_BYTES = 16 * 2**20
_MOST_MERGES = 1000
_OTHER_EXTENDS = "_base_"
"""The key that has the meaning of `extends` in other tools."""
_MAY_START_WITH_HASH = {("data", "answer_after"), ("prompt", "system_prompt")}
"""Keys whose value may start with `#`, as gsm8k's marker `####` does. Without quotes, YAML would treat such a value as
a comment."""


@dataclass
class Document:
    """A config as read from files: plain values and the origin of each value."""

    values: dict[str, Any]
    file: Path
    origins: dict[Keys, str] = field(default_factory=dict)
    nulls: set[Keys] = field(default_factory=set)
    """Keys set to null, which removes them."""
    idle_nulls: set[Keys] = field(default_factory=set)
    """Keys set to null that were not set before."""

    def origin(self, path: Keys) -> str:
        """Return where the value at `path` was set: "FILE:LINE" or "command line". For a mapping emptied by nulls, this
        is the place of a null. If the value has no recorded origin, return the origin of a nested value or of its
        nearest parent, or the file name."""
        if self.get(path) == {}:
            path = min((known for known in self.nulls if known[: len(path)] == path), default=path)
        if path not in self.origins:
            for known, origin in self.origins.items():
                if known[: len(path)] == path:
                    return origin
        parents = (self.origins.get(path[:length]) for length in range(len(path), 0, -1))
        return next(filter(None, parents), str(self.file))

    def get(self, path: Keys) -> Any:
        """Return the value at `path`, or None if it is not set."""
        value: Any = self.values
        for key in path:
            if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def set(self, path: Keys, value: Any, origin: str) -> None:
        """Set the value at `path`. None removes the value. Origins of replaced values are dropped."""
        self.origins = {known: place for known, place in self.origins.items() if known[: len(path)] != path}
        self.origins[path] = origin
        self.idle_nulls |= {known for known in _nulls(path, value) if self.get(known) is None}
        self.nulls = {known for known in self.nulls if known[: len(path)] != path} | set(_nulls(path, value))
        holder = self.values
        for key in path[:-1]:
            if not isinstance(holder.get(key), dict):
                holder[key] = {}
            holder = holder[key]
        if value is None:
            holder.pop(path[-1], None)
        else:
            holder[path[-1]] = without_nulls(value)

    def without(self, paths: Iterable[Keys]) -> "Document":
        """Return a copy without the values at `paths`, and without origins and nulls. Paths that are not set are
        ignored."""
        return Document(reduce(without_key, paths, self.values), self.file)


def without_key(values: Mapping[str, Any], path: Keys) -> dict[str, Any]:
    """Return a copy of nested mappings without the value at `path`. If an earlier value on the path is not a mapping,
    remove that value instead."""
    first = values.get(path[0])
    if path[1:] and isinstance(first, Mapping):
        return {**values, path[0]: without_key(first, path[1:])}
    return {key: value for key, value in values.items() if key != path[0]}


def is_config_file(name: str) -> bool:
    """Whether `name` has the suffix of a config file. Any other file is a script."""
    return name.endswith(_SUFFIXES)


def _nulls(path: Keys, value: Any) -> Iterator[Keys]:
    """Yield the paths of null values within a value at `path`, except null values in lists."""
    if value is None:
        yield path
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _nulls((*path, key), each)


def without_nulls(value: Any) -> Any:
    """Return `value` as a config stores it: without keys set to null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def read_config(file: str | Path, overrides: Sequence[str] = ()) -> Document:
    """Read `file` and the files that it extends, then apply `overrides` ("a.b=value").

    Raises:
        InputError: a file cannot be read or is not a YAML mapping, `extends:` is invalid or circular, or an override is
            malformed or cannot be applied.
    """
    document = Document({}, Path(file))
    _extend(document, Path(file), (), _Files())
    return overridden(document, overrides)


def overridden(document: Document, overrides: Sequence[str]) -> Document:
    """Return a copy of `document` with `overrides` ("a.b=value") applied. Raises `InputError` if an override is
    malformed or cannot be applied."""
    document = copy.deepcopy(document)
    for override in overrides:
        _override(document, override)
    return document


@dataclass
class _Files:
    """Files that a config extends. Each is read once, but merged as often as it is extended."""

    read: dict[Path, tuple[dict[str, Any], dict[Keys, int]]] = field(default_factory=dict)
    merged: int = 0


def _extend(document: Document, file: Path, above: tuple[Path, ...], files: _Files) -> None:
    """Merge `file` into `document`, after the files that it extends."""
    here = file.resolve() if os.path.exists(file) else file
    files.merged += 1
    if files.merged > _MOST_MERGES:
        raise InputError(f"{file}: configs extend more than {_MOST_MERGES} files, counting repetitions")
    if here in above:
        raise InputError(f"configs extend each other circularly: {' -> '.join(p.name for p in (*above, here))}")
    if here not in files.read:
        files.read[here] = _read(file)
    values, lines = copy.deepcopy(files.read[here][0]), files.read[here][1]
    other_parents = values.get(_OTHER_EXTENDS)
    for parent in [other_parents] if isinstance(other_parents, str) else other_parents or []:
        # The key is a mistake, but the mistakes in the files that it names are reported with it.
        if isinstance(parent, str) and os.path.isfile(target := file.parent / parent):
            _extend(document, target, (*above, here), files)
    parents = values.pop("extends", None)
    place = f"{file}:{lines.get(('extends',), 1)}"
    parents = [parents] if isinstance(parents, str) else parents or []
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise InputError(f"{place}: extends must name a file or a list of files, not {shortened(parents)}")
    for parent in parents:
        target = file.parent / parent
        if not os.path.isfile(target):
            is_folder = os.path.isdir(target)
            remedy = "it is a folder" if is_folder else "use a path relative to the config that extends it"
            raise InputError(f"{place}: there is no file {one_line(target, 500)} to extend; {remedy}")
        _extend(document, target, (*above, here), files)
    own, earlier = values.get("imports"), document.values.get("imports") or []
    own = [own] if isinstance(own, str) else own
    if isinstance(own, list):
        # Paths are made absolute because the run's copy of the config is in another folder.
        located = [os.path.abspath(file.parent / name) if str(name).endswith(".py") else name for name in own]
        values["imports"] = [*earlier, *(name for name in located if name not in earlier)]
    earlier_place = document.origins.get((_OTHER_EXTENDS,))
    _merge(document, values, lines, file, ())
    if earlier_place and other_parents:
        document.origins[_OTHER_EXTENDS,] += f" and {earlier_place}"


def _merge(document: Document, values: Mapping[str, Any], lines: Mapping[Keys, int], file: Path, path: Keys) -> None:
    for key, value in values.items():
        own = (*path, key)
        if isinstance(value, Mapping) and value and isinstance(document.get(own), Mapping):
            _merge(document, value, lines, file, own)
            continue
        document.set(own, value, str(file))
        document.origins |= {known: f"{file}:{line}" for known, line in lines.items() if known[: len(own)] == own}


def _override(document: Document, text: str) -> None:
    name, separator, value = text.partition("=")
    path = tuple(name.strip().split("."))
    shown = f"override {shortened(text)}"
    if is_config_file(text) and not separator:
        raise InputError(f"{shown} is a second config: pass one config, which can name others under `extends`")
    if not separator or not all(path):
        raise InputError(f"{shown} is not of the form section.key=value, without spaces around the equals sign")
    if not value.strip():
        raise InputError(f"{shown} has no value (is a shell variable empty?); for the default, use {name}=null")
    if path[0] in ("extends", "imports"):
        remedy = "write one that extends this config" + (
            "" if path == ("extends",) else " (`rg-env eval` also has --imports FILE)"
        )
        raise InputError(f"{shown}: {path[0]} can be set only in a config file: {remedy}")
    try:
        parsed = yaml12.load_word(value)
    except ValueError as error:
        example = f"""{name}='"TEXT"'"""
        raise InputError(f"{shown}: cannot read the value ({error}); quote it if it is text: {example}") from error
    _open_lists(document, path, shown)
    document.set(path, parsed, COMMAND_LINE)


def _open_lists(document: Document, path: Keys, shown: str) -> None:
    """Turn a list of names, such as tasks, into a mapping of sections if the override sets a key within one of them.
    Also turn a section given as plain text into a mapping.

    Raises:
        InputError: the override would replace plain text, a list of names that does not contain the override's key, or
            a list with items that are not names.
    """
    for length in range(1, len(path)):
        above, key = path[:length], path[length]
        value, origin, where = document.get(above), document.origin(above), ".".join(above)
        names = [value] if isinstance(value, str) else value
        short = SHORT_FORMS.get(where) or ("model" if above[0] == "models" and length == 2 else "")
        if isinstance(value, str) and short:
            document.set(above, {short: value}, origin)
        elif isinstance(names, list) and key in names and all(isinstance(name, str) for name in names):
            document.set(above, {name: {} for name in names}, origin)
        elif isinstance(value, str | list):
            kind = shortened(value) if isinstance(value, str) else "a list"
            raise InputError(
                f"{shown}: {where} is {kind} ({origin}), which the override would replace; "
                f"set the entire value, {where}=..."
            )


def _read(file: Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """Return the mapping in a YAML file and the line number of each key."""
    name = shortened(str(file))
    try:
        with regular(file).open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1).decode()
        if len(text) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES / 2**20:g} MB")
        values, lines = yaml12.load_with_lines(text)
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read the config {name}: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        hint = _similar(file) if isinstance(error, FileNotFoundError) else ""
        hint = _folder_hint(file) if isinstance(error, IsADirectoryError) else hint
        if file.suffix in (".jsonl", ".csv", ".tsv", ".parquet"):
            hint = "a config is a YAML file; in it, set data.path to a file with questions"
        raise InputError(f"cannot read the config {name}: {reason_of(error)}{hint and f'; {hint}'}") from error
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise InputError(f"the config {name} must be a mapping of sections, not {shortened(values)}")
    for path in sorted(_MAY_START_WITH_HASH & lines.keys()):
        (section, key), line = path, lines[path]
        if values[section][key] is None and re.search(rf"{key}['\"]?:\s*#", text.splitlines()[line - 1]):
            raise InputError(
                f"{file}: line {line}: {section}.{key} has no value because '#' starts a comment; quote the value"
            )
    return values, lines


def _folder_hint(folder: Path) -> str:
    """Return what to pass instead of the folder of a run or model, or ""."""
    is_run, is_model = (folder / "config.yaml").is_file(), (folder / "config.json").is_file()
    evaluated = f"to evaluate it, use `rg-env eval --models {one_line(folder)}`"
    if is_run:
        return f"the run's config is {one_line(folder / 'config.yaml')}; {evaluated}"
    return evaluated if is_model else ""


def _similar(missing: Path) -> str:
    """Return a hint: that overrides follow the config, or the configs of this name in `configs/`, or files with similar
    names, or ""."""
    if "=" in str(missing) and not is_config_file(missing.name):
        return "the config comes first, then the overrides"
    shipped = sorted(map(str, Path("configs").glob(f"*/{glob.escape(missing.stem)}.yaml")))
    return f"did you mean {' or '.join(shipped)}?" if shipped else similar_file(missing)


def leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested mappings with its dotted path. An empty mapping counts as a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
