"""Loading typed configs: YAML files that extend others, dotted overrides, and errors that tell where to look.

    document = read_config("configs/train/tiny.yaml", ["training.learning_rate=2e-6"])
    config = parse_config(document, TrainConfig)     # a frozen pydantic model

`extends:` names one file or several, relative to the file that says so; what comes later wins, and the file itself
last. Mappings are merged key by key, anything else is replaced; null takes a key away, back to its default. An override
replaces what stands at its path. `imports:` lists add up, and a .py file in one is relative to the file that names it:
the outcome is one list, of modules and absolute paths. YAML is read as YAML 1.2 has it: `1e-6` is a number and `on` is
text. There are no references to the environment: keys of services are read from it directly, and no config holds any.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from rg_env.core.checks import shortened
from rg_env.errors import ConfigError, InputError, unknown_name

COMMAND_LINE = "command line"
Keys = tuple[str, ...]
"""Keys from the top of a config down to a value."""
_Section = TypeVar("_Section", bound="Section")
_MAX_DEPTH = 20


class Section(BaseModel):
    """A part of a config: frozen, with typed fields and a docstring under each."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True)


@dataclass(frozen=True)
class Problem:
    """What is wrong with one value, and how to mend it."""

    path: Keys
    message: str


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
            if not isinstance(value, Mapping) or key not in value:
                raise KeyError(key)
            value = value[key]
        return value


def read_config(file: str | Path, overrides: Sequence[str] = ()) -> Document:
    """The values of `file`, of what it extends, and `overrides` ("a.b=value") over them.

    Raises:
        InputError: a file cannot be read or is no YAML mapping; files extend each other in a circle; an override is no
            "key=value", or its value no YAML.
    """
    path = Path(file)
    document = Document({}, path)
    _extend(document, path, ())
    for override in overrides:
        _override(document, override)
    return document


def parse_config(document: Document, schema: type[_Section]) -> _Section:
    """The typed config.

    Raises:
        ConfigError: keys or values that the schema refuses, all of them at once.
    """
    try:
        # By way of JSON, where lists pass for tuples although nothing else is converted.
        return schema.model_validate_json(json.dumps(document.values))
    except ValidationError as error:
        problems = list(_problems(document, schema, error))
    raise config_error(document, problems)


def config_error(document: Document, problems: Iterable[Problem]) -> ConfigError:
    """All problems of a config in one error, a line each: path, value, where it was given, remedy."""
    lines = list(dict.fromkeys(_line(document, problem) for problem in problems))
    head = [] if len(lines) == 1 else [f"{document.file}: {len(lines)} mistakes"]
    return ConfigError("\n  ".join([*head, *lines]))


def to_yaml(values: Mapping[str, Any]) -> str:
    """Plain values as a file that `read_config` reads to the same values."""

    def dumped(*, allow_unicode: bool) -> str:
        return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=120)

    text = dumped(allow_unicode=True)
    # Among others U+0085 is written as it is, and read as a line end.
    return text if yaml.load(text, Loader=_Loader) == values else dumped(allow_unicode=False)


def _line(document: Document, problem: Problem) -> str:
    path = ".".join(problem.path)
    try:
        value = document.at(problem.path)
    except KeyError:
        return f"{path}: {problem.message}" if path else problem.message
    return f"{path} = {_shown(value)} @ {document.origin(problem.path)}: {problem.message}"


def _shown(value: Any) -> str:
    """A value as YAML has it."""
    if isinstance(value, str | int | float | bool | None):
        return shortened(value) if isinstance(value, str | float) else json.dumps(value)
    return shortened(value)


def _extend(document: Document, file: Path, above: tuple[Path, ...]) -> None:
    """Put the values of `file` over those of `document`, those of the files that it extends first."""
    here = file.resolve() if file.exists() else file
    if here in above:
        raise InputError(f"configs extend each other in a circle: {' -> '.join(p.name for p in (*above, here))}")
    values, lines = _read(file)
    parents = values.pop("extends", None)
    parents = [parents] if isinstance(parents, str) else parents or []
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise InputError(f"{file}: extends must name a file or a list of files, not {shortened(parents)}")
    for parent in parents:
        target = file.parent / parent
        if not target.is_file():
            raise InputError(f"{file}: extends: there is no file {target}; the path is relative to the file itself")
        _extend(document, target, (*above, here))
    own, earlier = values.get("imports"), document.values.get("imports")
    if isinstance(own, list):
        own = [_located(name, file) for name in own]
        values["imports"] = [*earlier, *(name for name in own if name not in earlier)] if earlier else own
    _merge(document, values, lines, file, ())


def _located(name: Any, file: Path) -> Any:
    """A .py file of `imports` by its absolute path: the config that is written with a run stands in another folder."""
    return os.path.abspath(file.parent / name) if isinstance(name, str) and name.endswith(".py") else name


def _merge(document: Document, values: Mapping[str, Any], lines: Mapping[Keys, int], file: Path, path: Keys) -> None:
    for key, value in values.items():
        own = (*path, key)
        if isinstance(value, Mapping) and value and isinstance(_at_or_none(document, own), Mapping):
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
        holder[path[-1]] = _without_nulls(value)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _at_or_none(document: Document, path: Keys) -> Any:
    try:
        return document.at(path)
    except KeyError:
        return None


def _override(document: Document, text: str) -> None:
    name, separator, value = text.partition("=")
    path = tuple(name.strip().split("."))
    if not separator or not all(path):
        raise InputError(f"override {text!r} is not of the form section.key=value")
    if path[0] in ("extends", "imports"):
        raise InputError(f"override {text!r}: {path[0]} is read from config files only")
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(f"override {text!r}: the value is no YAML ({_reason(error)}); quote it") from error
    _place(document, path, parsed)
    document.origins[path] = COMMAND_LINE


def _read(file: Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """The mapping in a YAML file, and the line of each of its keys."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputError(f"cannot read the config {str(file)!r}: {reason}") from error
    try:
        node = yaml.compose(text, Loader=_Loader)
        values = yaml.load(text, Loader=_Loader)
        json.dumps(values)
    except yaml.YAMLError as error:
        raise InputError(f"{file} is no YAML: {_reason(error)}") from error
    except (RecursionError, ValueError, TypeError) as error:  # it refers to itself, or has tags such as !!binary
        raise InputError(f"{file} is no config: {' '.join(str(error).split())}") from error
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise InputError(f"{file} is no config: it must be a mapping of sections, not a {type(values).__name__}")
    return values, dict(_lines(node, ()))


def _lines(node: yaml.Node | None, path: Keys) -> Iterator[tuple[Keys, int]]:
    if isinstance(node, yaml.MappingNode) and len(path) < _MAX_DEPTH:
        for key, value in node.value:
            own = (*path, str(key.value))
            yield own, key.start_mark.line + 1
            yield from _lines(value, own)


def _reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + (getattr(error, "problem", None) or " ".join(str(error).split()))


class _Loader(yaml.SafeLoader):
    """YAML with the scalars of version 1.2: numbers as everyone writes them, and no words that are booleans."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own name)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be plain text", problem_mark=key.start_mark)
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {name!r} stands twice", problem_mark=key.start_mark)
            seen.add(name)
        self.flatten_mapping(node)
        # Keys are names, also those that look like numbers.
        return {str(key.value): self.construct_object(value, deep=True) for key, value in node.value}


class _Dumper(yaml.SafeDumper):
    """Quotes text that the loader would take for something else, `1e5` for one."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _tag, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", "[-+]?[0-9]+", [*"-+0123456789"]),
    ("float", _FLOAT, [*"-+.0123456789"]),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(str(node.value)))


def _problems(document: Document, schema: type[BaseModel], error: ValidationError) -> Iterator[Problem]:
    for found in error.errors(include_url=False):
        path = tuple(str(key) for key in found["loc"] if key != "[key]")
        if found["type"] == "extra_forbidden":
            yield Problem(path, _unknown(schema, path))
        else:
            yield Problem(path, _message(found["type"], found.get("ctx", {}), found["msg"]))


def _unknown(schema: type[BaseModel], path: Keys) -> str:
    kind = "key" if len(path) > 1 else "section"
    return str(unknown_name(kind, path[-1], _known_keys(schema, path[:-1])))


def _known_keys(schema: Any, path: Keys) -> list[str]:
    """The keys that the section at `path` can have."""
    if get_origin(schema) in (Union, UnionType):
        schema = next(each for each in get_args(schema) if each is not type(None))
    if path and get_origin(schema) is dict:
        return _known_keys(get_args(schema)[1], path[1:])
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return []
    if not path:
        return list(schema.model_fields)
    return _known_keys(schema.model_fields[path[0]].annotation, path[1:])


_MESSAGES = {
    "missing": "is required",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text (quote it if it is)",
    "string_too_short": "must not be empty",
    "too_short": "is empty: name at least {min_length}",
    "bool_type": "must be true or false",
    "literal_error": "must be one of {expected}",
    "list_type": "must be a list, such as [a, b]",
    "tuple_type": "must be a list, such as [a, b]",
    "dict_type": "must be a mapping of names, such as {{name: value}}",
    "model_type": "must be a section, with keys of its own",
}


def _message(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind == "value_error":
        return str(context["error"])
    return _MESSAGES[kind].format(**context) if kind in _MESSAGES else message
