"""Two searches for solvers: for a shortest path, and for an assignment of values to names."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any


def search(
    start: Hashable, moves: Callable[[Any], Iterable[tuple[str, Hashable]]], done: Callable[[Any], bool]
) -> list[str] | None:
    """Return the names of the moves on a shortest path to a `done` state; None if no such state can be reached."""
    ways: dict[Hashable, list[str]] = {start: []}
    queue = [start]
    for state in queue:
        if done(state):
            return ways[state]
        for name, after in moves(state):
            if after not in ways:
                ways[after] = [*ways[state], name]
                queue.append(after)
    return None


def assign(
    names: Sequence[Any], choices: Callable[[dict[Any, Any], Any], Iterable[Any]], given: dict[Any, Any] | None = None
) -> dict[Any, Any] | None:
    """Return the first assignment found; `choices` lists the next name's values, given the earlier ones."""
    given = given or {}
    if len(given) == len(names):
        return given
    name = names[len(given)]
    ways = (assign(names, choices, {**given, name: value}) for value in choices(given, name))
    return next((way for way in ways if way is not None), None)
