"""What the tasks of logic and on graphs ask."""

import re
from typing import Any

from rg_env.core.data.problem_keys.forms import Bag, Entry, Key, Name, parts
from rg_env.core.grading.parsing import formulas

_RESULT = re.compile(r"^(.+) → (\w+)$", re.MULTILINE)
_TEST_CASE = re.compile(r"New test case:\n(.*)")
_COUPLE = re.compile(r"(?<!\S)(\S+) is married to (\S+)\.(?: They have (?:a child|children) called ([^.]+)\.)?")
_CHILDREN = re.compile(r", | and ")
_STATEMENT = re.compile(r"(All|No|Some) (\w+) are (not )?(\w+)")
_PATH = re.compile(r"^(\|\S+ \d+(?:\|\d+ \d+)*)/(\d+) (\d+) = *$", re.MULTILINE)
_CATEGORY = re.compile(r"^ - (.*): (.*)$", re.MULTILINE)
_CHILD = re.compile(r"(?:child is named|mother of) (?=\w)")
_CLUE = re.compile(r"^\d+\. (.*)$", re.MULTILINE)
_WANTED = re.compile(r"^What is .*$", re.MULTILINE)
_LITERAL = re.compile(r"([A-Za-z]\w*)('?)")
_ORDERED = re.compile(r"directly left|to the left|to the right|is not in the \w+|is in the \w+")
_MUTUAL = re.compile(r"next to each other|one house between|two houses between")


def _acre(entry: Entry) -> Any:
    seen = [(Bag(map(Name, things.split(", "))), light) for things, light in parts(_RESULT, entry["question"])]
    (tested,) = parts(_TEST_CASE, entry["question"])
    return (Bag(seen), Bag(map(Name, tested.split(", "))))


def _circuit_logic(entry: Entry) -> Any:
    """An input is its value and the gates that it goes to; those that go nowhere do not matter."""
    metadata = entry["metadata"]
    gates, used = [], set()
    for term in metadata["term_strings"]:
        literals = _LITERAL.findall(term)
        used |= {name for name, _ in literals}
        kind = "".join(sorted(set(_LITERAL.sub("", term))))
        gates.append((kind, Bag((Name(name), negated) for name, negated in literals)))
    values = Bag((Name(name), metadata["assignments"][name]) for name in used)
    return (metadata["final_gate"], Bag(gates), values)


def _course_schedule(entry: Entry) -> Any:
    metadata = entry["metadata"]
    pairs = Bag((Name(course), Name(before)) for course, before in metadata["prerequisites"])
    return (len(metadata["courses"]), pairs)


def _cryptarithm(entry: Entry) -> Any:
    metadata = entry["metadata"]
    words = Bag(tuple(map(Name, word)) for word in metadata["words_letters"])
    return (words, tuple(map(Name, metadata["result_letters"])), metadata["allow_leading_zero"])


def _family_relationships(entry: Entry) -> Any:
    metadata = entry["metadata"]
    couples = parts(_COUPLE, entry["question"])
    families = [(Bag(couple), Bag(_CHILDREN.split(children))) for *couple, children in couples]
    return (Bag(families), metadata["person1"], metadata["person2"])


def _graph_color(entry: Entry) -> Any:
    puzzle = entry["metadata"]["puzzle"]
    edges = Bag(Bag(Name(vertex) for vertex in edge) for edge in puzzle["edges"])
    return (len(puzzle["vertices"]), puzzle["num_colors"], edges)


def _knights_knaves(entry: Entry) -> Any:
    claims = enumerate(entry["metadata"]["statements"])
    return Bag((Name(who), _claim(claim)) for who, claim in claims)


def _claim(claim: Any) -> Any:
    kind, *said = claim
    if kind in ("telling-truth", "lying"):
        return (kind, Name(said[0]))
    inner = map(_claim, said)
    return (kind, tuple(inner) if kind == "->" else Bag(inner))


def _path_star(entry: Entry) -> Any:
    ((edges, start, goal),) = parts(_PATH, entry["question"])
    return (Bag(edges.strip("|").split("|")), start, goal)


def _propositional_logic(entry: Entry) -> Any:
    metadata = entry["metadata"]
    variables = metadata["variables"]
    read = [formulas.parse(text, variables, max_tokens=20_000) for text in metadata["premises"]]
    return Bag(_formula(formula) for formula in read)


def _formula(formula: Any) -> Any:
    kind, *inner = formula
    if kind == "var":
        return Name(inner[0])
    shown = map(_formula, inner)
    return (kind, tuple(shown) if kind in ("implies", "not") else Bag(shown))


def _syllogism(entry: Entry) -> Any:
    """`Some A are B` and `No A are B` mean the same from right to left."""
    metadata = entry["metadata"]
    first, second, claim = (_quantified(metadata[name]) for name in ("premise1", "premise2", "conclusion"))
    return (Bag([first, second]), claim)


def _quantified(text: str) -> Any:
    ((quantifier, subject, negated, predicate),) = _STATEMENT.findall(text)
    either_way = quantifier in ("Some", "No") and not negated
    return (quantifier, negated, Bag([subject, predicate]) if either_way else (subject, predicate))


def _zebra_puzzles(entry: Entry) -> Any:
    """Values of a category exclude each other; what they are is no matter. A child may be called as a person is."""
    question = _CHILD.sub("child-", entry["question"])
    categories = []
    for line, values in parts(_CATEGORY, question):
        child = "child-" if "child" in line else ""
        categories.append([f"{child}{value}" for value in values.split(", ")])
    known = sorted((value for values in categories for value in values), key=lambda value: (-len(value), value))
    pattern = re.compile("|".join(map(re.escape, known)))
    clues = [_clue(text, pattern) for text in parts(_CLUE, question)]
    return (Bag(Bag(map(Name, values)) for values in categories), Bag(clues), parts(_WANTED, question))


def _clue(text: str, values: re.Pattern[str]) -> Any:
    found = [Name(value) for value in values.findall(text.casefold())]
    if relation := _MUTUAL.search(text):
        return (relation[0], Bag(found))
    if relation := _ORDERED.search(text):
        return (relation[0], *found)
    return Bag(found)


KEYS: dict[str, Key] = {
    "acre": Key("the results in any order and the test case, whatever the things", _acre),
    "circuit_logic": Key(
        "gates in any order and the values of their inputs, whatever the inputs' names", _circuit_logic
    ),
    "course_schedule": Key("the prerequisites in any order, however courses are numbered", _course_schedule),
    "cryptarithm": Key("the sum in any order, whatever its letters", _cryptarithm),
    "family_relationships": Key(
        "the families in any order and who is asked for, without wording", _family_relationships
    ),
    "graph_color": Key("the graph, however its vertices are numbered", _graph_color),
    "knights_knaves": Key("the claims, without names, roles, order and wording", _knights_knaves),
    "path_star": Key("the edges in any order, start and goal", _path_star),
    "propositional_logic": Key("the premises in any order, whatever the variables", _propositional_logic),
    "syllogism": Key("the premises in any order, and the conclusion", _syllogism),
    "zebra_puzzles": Key("the clues in any order, without names and wording", _zebra_puzzles),
}
