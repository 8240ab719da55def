"""Typed configs, and errors that tell where to look: path, value, file and line, remedy.

document = read_config("configs/train/tiny.yaml", ["training.learning_rate=2e-6"])    # see `config_files`
config = parse_config(document, TrainConfig)                                          # a frozen pydantic model
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from rg_env.core.checks import shortened
from rg_env.core.config_files import Document, Keys
from rg_env.core.config_files import read_config as read_config
from rg_env.errors import ConfigError, InputError, unknown_name

_Section = TypeVar("_Section", bound="Section")


class Section(BaseModel):
    """A part of a config: frozen, with typed fields and a docstring under each."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True)
    renamed: ClassVar[Mapping[str, str]] = {}
    """Keys that other releases and other tools have here, and what replaces each."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one value, and how to mend it."""

    path: Keys
    message: str
    secret: bool = False
    """Whether the value is not to be shown."""


def parse_config(document: Document, schema: type[_Section]) -> _Section:
    """The typed config.

    Raises:
        ConfigError: keys or values that the schema refuses, all of them at once.
    """
    try:
        # By way of JSON, where lists pass for tuples although nothing else is converted.
        return schema.model_validate_json(json.dumps(document.values))
    except ValidationError as error:
        problems = list(problems_in(schema, error))
    raise config_error(document, problems)


def config_error(document: Document, problems: Iterable[Problem]) -> ConfigError:
    """All problems of a config in one error, a line each: path, value, where it was given, remedy."""
    lines = list(dict.fromkeys(_line(document, problem) for problem in problems))
    head = [] if len(lines) == 1 else [f"{document.file}: {len(lines)} mistakes"]
    return ConfigError("\n  ".join([*head, *lines]))


def _line(document: Document, problem: Problem) -> str:
    path = ".".join(problem.path)
    try:
        value = document.at(problem.path)
    except KeyError:
        for length in range(len(problem.path) - 1, 0, -1):
            above = problem.path[:length]
            if document.has(above) and not isinstance(document.at(above), Mapping):  # a short form of a section
                return _line(
                    document, Problem(above, f"{'.'.join(problem.path[length:])} {problem.message}", problem.secret)
                )
        return f"{path}: {problem.message}" if path else problem.message
    shown = "***" if problem.secret else _shown(value)
    return f"{path} = {shown} @ {document.origin(problem.path)}: {problem.message}"


def _shown(value: Any) -> str:
    """A value as YAML has it."""
    if isinstance(value, str | int | float | bool | None):
        return json.dumps(value) if value is None or isinstance(value, bool) else shortened(value)
    return shortened(value)


def problems_in(schema: type[BaseModel], error: ValidationError, *, kind: str = "section") -> Iterator[Problem]:
    """What `schema` refuses. `kind`: what its own fields are called where one does not exist."""
    for found in error.errors(include_url=False):
        path = tuple(str(key) for key in found["loc"] if key != "[key]")
        if found["type"] == "extra_forbidden":
            yield Problem(path, _unknown(schema, path, kind))
        else:
            yield Problem(path, _message(found["type"], found.get("ctx", {}), found["msg"]))


def _unknown(schema: type[BaseModel], path: Keys, kind: str) -> str:
    section, name = _section_at(schema, path[:-1]), path[-1]
    if section is None:
        return str(unknown_name("key", name, ()))
    if issubclass(section, Section) and name in section.renamed:
        return section.renamed[name]
    return str(unknown_name("key" if len(path) > 1 else kind, name, section.model_fields))


def _section_at(schema: Any, path: Keys) -> type[BaseModel] | None:
    """The schema of the section at `path`; None if no section can be there."""
    if get_origin(schema) in (Union, UnionType):
        schema = next(each for each in get_args(schema) if each is not type(None))
    if path and get_origin(schema) is dict:
        return _section_at(get_args(schema)[1], path[1:])
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return None
    return _section_at(schema.model_fields[path[0]].annotation, path[1:]) if path else schema


def problem_of(path: Keys, check: Callable[[], Any]) -> Iterator[Problem]:
    """What `check` raises, as the problem of the value at `path`; nothing if it does not."""
    try:
        check()
    except InputError as error:
        yield Problem(path, str(error))


def problems_within(
    path: Keys, spec: Mapping[str, Any], check: Callable[[Any], Any], hint: str = ""
) -> Iterator[Problem]:
    """All that `check` raises of `spec`, each at its own key: it is asked again without what was wrong."""
    while True:
        try:
            check(spec)
            return
        except InputError as error:
            yield Problem((*path, *error.keys), f"{error}{hint}")
            if not error.keys:
                return
            spec = _without(spec, error.keys)


def _without(values: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    rest = {key: value for key, value in values.items() if key != keys[0]}
    return {**rest, keys[0]: _without(values[keys[0]], keys[1:])} if keys[1:] else rest


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
    "is_instance_of": "must be of class {class}",
    "model_type": "must be a section, with keys of its own",
}


def _message(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind == "value_error":
        return str(context["error"])
    return _MESSAGES[kind].format(**context) if kind in _MESSAGES else message
