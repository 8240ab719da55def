"""YAML restricted to plain values and to the scalars of YAML 1.2, where `1e-6` is a number and `on` is text.

This module uses PyYAML's parser but its own constructors, because PyYAML's constructors follow YAML 1.1. The
alternative, ruamel.yaml (version 0.19 was tested), accepts dates, numbers with underscores, sets and non-text keys, and
limits neither depth nor aliases. With this module, keys and dates are text, duplicate keys are errors, and both the
depth and the number of values are limited. Every error is a one-line `ValueError`, with the position of the problem if
known. `load` reads back exactly the values that `to_yaml` wrote.
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any

import yaml

from rg_env.core.text import one_line, shortened

_REMEDIES = {
    "'\\t' that cannot start any token": ": indent with spaces instead of tabs",
    "cannot start any token": ": quote the text",
    "undefined alias": ": quote text that begins with '*'",
    "expected the node content": ": close the bracket, and quote text that contains '#'",
    "mapping values are not allowed here": ": quote text that contains ': ', and indent the keys of a section equally",
    "expected ',' or": ": close the bracket, and quote text that contains '#' or a comma",
    "could not find expected ':'": ": write each key as `key: value`",
    "found another document": ": a config is one document: remove the line `---`",
    "expected <block end>": ": indent the keys of a section equally",
    "found unexpected end of stream": ": close the quotation mark",
}
"""What to do about syntax errors, by a part of PyYAML's message."""
_MAX_DEPTH = 50
_MAX_VALUES = 100_000
_TAG = "tag:yaml.org,2002:"
Keys = tuple[str, ...]
"""Keys on the path from a document's root to a value."""


def load(text: str) -> Any:
    """Return the values in `text`. Raises `ValueError` if `text` is invalid."""
    return load_with_lines(text)[0]


def load_with_lines(text: str) -> tuple[Any, dict[Keys, int]]:
    """Return the values in `text` and the line number of each key that is not in a list. Raises `ValueError` if `text`
    is invalid."""
    reader = _Reader()
    try:
        node = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        problem = str(error.problem)
        remedy = next((text for part, text in _REMEDIES.items() if part in problem), "")
        raise _error(error.problem_mark, problem.removeprefix("but ") + remedy) from error
    except yaml.YAMLError as error:
        raise ValueError(one_line(error)) from error
    except RecursionError as error:
        raise ValueError(f"values are nested more than {_MAX_DEPTH} levels deep") from error
    return (None if node is None else reader.value(node, 0, ())), reader.lines


def load_word(text: str) -> Any:
    """Return the value in `text` from the command line, where a `#` is more likely to be text than a comment. Raises
    `ValueError` if `load` would, or if YAML would ignore part of `text`."""
    value = load(text)
    tokens = [*yaml.scan(text, Loader=Loader)]
    if any("#" in text[one.end_mark.index : other.start_mark.index] for one, other in itertools.pairwise(tokens)):
        raise ValueError("'#' starts a comment in YAML")
    if any(isinstance(token, yaml.DocumentStartToken | yaml.DocumentEndToken) for token in tokens):
        raise ValueError("'---' and '...' are document markers in YAML")
    return value


class _Reader:
    """Converts YAML nodes to plain values.

    The values behind an alias count toward `_MAX_VALUES` each time the alias is used, because a few lines with aliases
    can expand to billions of values.
    """

    def __init__(self) -> None:
        self.lines: dict[Keys, int] = {}
        self._count = 0

    def value(self, node: yaml.Node, depth: int, path: Keys | None) -> Any:
        """Return the plain value of `node`. `path` is None within a list."""
        self._count += 1
        if self._count > _MAX_VALUES:
            raise ValueError(f"there are more than {_MAX_VALUES:,} values")
        if depth > _MAX_DEPTH:
            raise ValueError(f"values are nested more than {_MAX_DEPTH} levels deep")
        match node:
            case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
                return self._mapping(node, depth, path)
            case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
                return [self.value(each, depth + 1, None) for each in node.value]
            case yaml.ScalarNode():
                return _scalar(node)
        raise _error(node.start_mark, f"the tag {shortened(node.tag)} is not supported")

    def _mapping(self, node: yaml.MappingNode, depth: int, path: Keys | None) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, each in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error(key.start_mark, "a key must be plain text")
            name = str(key.value)
            if name in values:
                raise _error(key.start_mark, f"the key {shortened(name)} appears twice")
            own = None if path is None else (*path, name)
            if own is not None:
                self.lines[own] = key.start_mark.line + 1
            values[name] = self.value(each, depth + 1, own)
        return values


def _scalar(node: yaml.ScalarNode) -> Any:
    text, kind = str(node.value), node.tag.removeprefix(_TAG)
    try:
        match kind:
            case "str":
                text.encode()  # raises an error for an unpaired surrogate
                return text
            case "null":
                return None
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "int":
                return int(text)
            case "float":
                return float(re.sub(r"\.(inf|nan)$", r"\1", text.lower()))
    except (KeyError, ValueError) as error:
        raise _error(node.start_mark, f"{shortened(text)} is not a valid {kind}") from error
    raise _error(node.start_mark, f"the tag {shortened(node.tag)} is not supported")


def _error(mark: yaml.Mark | None, problem: str) -> ValueError:
    return ValueError(f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem)


def to_yaml(values: Mapping[str, Any]) -> str:
    """Return plain values as YAML text that `load` reads back unchanged."""
    options: dict[str, Any] = {"Dumper": Dumper, "sort_keys": False, "width": 120}
    text: str = yaml.dump(dict(values), allow_unicode=True, **options)
    # U+0085 and some other characters would be written unescaped but read back as line breaks.
    return text if load(text) == values else str(yaml.dump(dict(values), **options))


class Loader(yaml.SafeLoader):
    """Resolves scalars as in YAML 1.2: common number formats are numbers, but words such as `on` are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own name)
    _nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._nodes += 1
        if self._nodes > 2 * _MAX_VALUES + 1:  # keys are nodes, too
            raise ValueError(f"there are more than {_MAX_VALUES:,} values")
        return super().compose_node(parent, index)


class Dumper(yaml.SafeDumper):
    """Quotes text, such as `1e5`, that the loader would otherwise read as another type."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _tag, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", "[-+]?[0-9]+", [*"-+0123456789"]),
    ("float", _FLOAT, [*"-+.0123456789"]),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    Loader.add_implicit_resolver(f"{_TAG}{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
