"""Solver of zebra_puzzles, by elimination over all orders of each characteristic."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations

Places = dict[str, int]
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
_CHILD = "child "
_STEMS = {"brit": "british", "swede": "swedish", "norwegian": "norwegian", "dane": "danish"}


_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    " is directly left of ": lambda a, b: a + 1 == b,
    " is directly right of ": lambda a, b: a - 1 == b,
    " is somewhere to the left of ": lambda a, b: a < b,
    " is somewhere to the right of ": lambda a, b: a > b,
    " and ": lambda a, b: abs(a - b) == 1,
}


def _related(relation: Callable[[int, int], bool], one: str, other: str, at: Places) -> bool:
    return relation(at[one], at[other])


def _named(text: str, values: list[str]) -> str:
    """Return the longest value that occurs in a part of a clue."""
    children = [value for value in values if value.startswith(_CHILD) and value.removeprefix(_CHILD) in text]
    if "mother of" in text and children:
        return children[0]
    return max((value for value in values if value in text or _STEMS.get(value, value) in text), key=len, default="")


def _holds(clue: str, values: list[str]) -> tuple[set[str], Callable[[Places], bool]]:
    clue = clue.lower().rstrip(".").replace("the person's child is named", "the mother of")
    if found := re.search(r"(.+) is in the (\w+) house$", clue):
        one, place = _named(found[1], values), _ORDINALS.index(found[2])
        return {one}, lambda at: at[one] == place
    between = {"one": 2, "two": 3}
    if found := re.search(r"there (?:is|are) (one|two) houses? between (.+) and (.+)$", clue):
        one, other, apart = _named(found[2], values), _named(found[3], values), between[found[1]]
        return {one, other}, lambda at: abs(at[one] - at[other]) == apart
    for words, relation in _RELATIONS.items():
        left, separator, right = clue.removesuffix(" are next to each other").partition(words)
        if separator and (words != " and " or "next to each other" in clue):
            one, other = _named(left, values), _named(right, values)
            return {one, other}, partial(_related, relation, one, other)
    splits = [(clue[: found.start()], clue[found.end() :]) for found in re.finditer(" is ", clue)]
    one, other = next(names for a, b in splits if all(names := (_named(a, values), _named(b, values))))
    return {one, other}, lambda at: at[one] == at[other]


def zebra_puzzles(question: str) -> str:
    kinds = []
    for kind, listed in re.findall(r"^ - (.+): (.+)$", question, re.MULTILINE):
        mark = _CHILD if "child" in kind else ""  # children and people can have the same name
        kinds.append([mark + value for value in listed.lower().split(", ")])
    values = [value for kind in kinds for value in kind]
    clues = [_holds(clue, values) for clue in re.findall(r"^\d+\. (.+)$", question, re.MULTILINE)]
    house = int(re.findall(r"lives in House (\d+)", question)[0]) - 1

    def worlds(left: list[list[str]], at: Places) -> Iterator[Places]:
        if not left:
            yield at
            return
        for order in permutations(range(len(left[0]))):
            more = at | dict(zip(left[0], order, strict=True))
            if all(holds(more) for names, holds in clues if names <= more.keys() and not names <= at.keys()):
                yield from worlds(left[1:], more)

    answers = {next(name for name in kinds[0] if at[name] == house) for at in worlds(kinds, {})}
    return answers.pop() if len(answers) == 1 else f"several: {sorted(answers)}"
