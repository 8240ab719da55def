"""YAML as people write it: the scalars of version 1.2 (`1e-6` is a number, `on` is text), no key twice, keys are names.

PyYAML reads version 1.1. What is written here is read to the same values.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from rg_env.core.text import shortened

_MAX_DEPTH = 50
_MAX_VALUES = 100_000


def load(text: str) -> Any:
    """The values in `text`. Raises `yaml.YAMLError` where there are none, and `ValueError` where they are not plain."""
    try:
        values = yaml.load(text, Loader=Loader)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep") from error
    except (KeyError, TypeError, AttributeError, OverflowError) as error:  # a tag on a value that is none of its kind
        raise ValueError(f"a tag does not fit its value: {error}") from error
    check_plain(values)
    return values


def check_plain(values: Any) -> None:
    """Raise `ValueError` unless `values` are what JSON can hold, nested and repeated within reason.

    Aliases are counted each time: a few lines of them can stand for more values than memory holds, or for themselves.
    """
    level, count = [values], 0
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if not isinstance(value, dict | list | str | int | float | None):
                raise ValueError(f"{type(value).__name__} is no kind of value that a config has")
            if isinstance(value, dict):
                below += [*value, *value.values()]
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                _check_text(value)
            if len(below) > _MAX_VALUES:
                break
        count += len(below)
        if count > _MAX_VALUES:
            raise ValueError(f"it stands for more than {_MAX_VALUES:,} values")
        if not (level := below):
            return
    raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text with half a character ({text[error.start]!r}), which UTF-8 cannot write") from error


def to_yaml(values: Mapping[str, Any]) -> str:
    """Plain values as text that `load` reads to the same values."""

    def dumped(*, allow_unicode: bool) -> str:
        return yaml.dump(dict(values), Dumper=Dumper, sort_keys=False, allow_unicode=allow_unicode, width=120)

    text = dumped(allow_unicode=True)
    # Among others U+0085 is written as it is, and read as a line end.
    return text if load(text) == values else dumped(allow_unicode=False)


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each key in `text`, by the keys above it and itself."""
    return dict(_lines(yaml.compose(text, Loader=Loader), ()))


def _lines(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, yaml.MappingNode) and len(path) < _MAX_DEPTH:
        for key, value in node.value:
            own = (*path, str(key.value))
            yield own, key.start_mark.line + 1
            yield from _lines(value, own)


def reason_of(error: yaml.YAMLError) -> str:
    """What is wrong, and where, in one line."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + (getattr(error, "problem", None) or " ".join(str(error).split()))


class Loader(yaml.SafeLoader):
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
        # Keys are names, also those that look like numbers.
        return {str(key.value): self.construct_object(value, deep=True) for key, value in node.value}


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:  # a tag before text, or more digits than Python reads
        raise ValueError(f"{shortened(text)} is no whole number, or one too long to read") from error


class Dumper(yaml.SafeDumper):
    """Quotes text that the loader would take for something else, `1e5` for one."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _tag, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", "[-+]?[0-9]+", [*"-+0123456789"]),
    ("float", _FLOAT, [*"-+.0123456789"]),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: _whole_number(str(node.value)))
