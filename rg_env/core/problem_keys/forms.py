"""Canonical forms: what a problem says, without the order and the names that do not matter.

A form is a JSON value (text, number, list, ...), a tuple of forms in this order, a `Bag` of forms in any order, or a
`Name` (which name it is does not matter, only where it comes again):

    canonical((Bag([(Name("Q"), "->", Name("P"))]), Name("P")))     # the same for any two names in place of P and Q

Names are told apart by where they occur, as in the Weisfeiler-Leman test for graphs: forms that differ by renaming and
by the order in bags always become the same text. The reverse holds but for highly regular forms (two triangles against
one hexagon), which may share a text: for splits that is on the safe side.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_ROUNDS = 8
"""Rounds of refinement at most: a name is told apart by what is that many steps away from it."""


class Name(str):
    """A name that stands for itself only: another one in all its places means the same."""

    __slots__ = ()


class Bag(tuple[Any, ...]):
    """Parts in any order, each as often as it occurs."""

    __slots__ = ()

    def __new__(cls, parts: Iterable[Any] = ()) -> "Bag":
        return super().__new__(cls, parts)


def canonical(form: Any) -> str:
    """The same text for forms that differ in names and in the order in bags alone."""
    return _text(form, _labels(form))


def _labels(form: Any) -> dict[str, str]:
    """A label for each name, by where it occurs."""
    named = [(sorted(set(_names(statement))), statement) for statement in _statements(form)]
    labels = dict.fromkeys(sorted({name for names, _ in named for name in names}), "n")
    classes = 1
    for _ in range(_ROUNDS):
        if classes == len(labels):  # all are told apart
            break
        places: dict[str, list[str]] = {name: [] for name in labels}
        for names, statement in named:
            for name in names:
                label = labels[name]
                labels[name] = f"{label}!"
                places[name].append(_text(statement, labels))
                labels[name] = label
        seen = {name: json.dumps([labels[name], sorted(found)]) for name, found in places.items()}
        ranks = {text: f"n{rank}" for rank, text in enumerate(sorted(set(seen.values())))}
        if len(ranks) == classes:  # nothing more is told apart
            break
        labels, classes = {name: ranks[text] for name, text in seen.items()}, len(ranks)
    return labels


def _statements(form: Any) -> Iterator[Any]:
    """The parts of a form that name others: a form's own parts, and those of its bags, with their place."""
    if isinstance(form, tuple) and not isinstance(form, Bag):
        for place, part in enumerate(form):
            yield from ((place, each) for each in part) if isinstance(part, Bag) else [(place, part)]
    elif isinstance(form, Bag):
        yield from form
    else:
        yield form


def _names(form: Any) -> Iterator[str]:
    if isinstance(form, Name):
        yield form
    elif isinstance(form, tuple):
        for part in form:
            yield from _names(part)


def _text(form: Any, labels: Mapping[str, str]) -> str:
    if isinstance(form, Name):
        return labels[form]
    if isinstance(form, Bag):
        return "{" + ",".join(sorted([_text(part, labels) for part in form])) + "}"
    if isinstance(form, tuple):
        return "[" + ",".join([_text(part, labels) for part in form]) + "]"
    return json.dumps(form, sort_keys=True)


def renumbered(text: Iterable[str]) -> list[int]:
    """Each sign as the number of its first appearance: the same for texts that differ in their alphabet alone."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(sign, len(numbers)) for sign in text]
