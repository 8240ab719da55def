"""What a problem's key is made by, and the helpers that most tasks need."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rg_env.core.problem_keys.forms import Bag

Entry = Mapping[str, Any]
"""The library's entry, as JSON gives it back."""


class Key(NamedTuple):
    """How the problem of one task is told from others."""

    asks: str
    """What makes the problem, in words."""
    form: Callable[[Entry], Any]
    """That, as `core.problem_keys.forms` takes it."""


def fields(*names: str, any_order: Sequence[str] = ()) -> Callable[[Entry], Any]:
    """The form of these fields of the metadata; those in `any_order` are lists whose order does not matter."""

    def form(entry: Entry) -> Any:
        metadata = entry["metadata"]
        return tuple(Bag(metadata[name]) if name in any_order else metadata[name] for name in names)

    return form


def parts(pattern: re.Pattern[str], text: str) -> list[Any]:
    """What the pattern finds; the whole text where it finds nothing, which keeps problems apart that are written in a
    way that the library has not today."""
    return pattern.findall(text) or [text.strip()]
