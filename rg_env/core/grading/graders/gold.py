"""The gold answer for an entry: the stored answer, or the right answer if the library stores a wrong answer or none.

    gold_answer("rush_hour", entry)                     # solved here, because the library does not store an answer
    corrected("mahjong_puzzle", entry)["answer"]        # the last round's result under the question's rules

Graders receive the entry that `corrected` returns, so they reward the right answer even if a wrong one is stored.
Questions whose right answer is unclear or does not exist never become rows (see `core.tasks.library_fixes.left_out`).
The solvers in `tests/helpers/solvers`, which answer questions from their text alone, determine which stored answers are
wrong and how often.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import compress, pairwise, product
from types import MappingProxyType
from typing import Any

from rg_env.core.grading.graders import forms, games, logic, move_games
from rg_env.core.grading.graders.arithmetic import elapsed_time
from rg_env.core.grading.graders.common import Config, Entry, option
from rg_env.core.grading.graders.expressions import exact_value
from rg_env.core.tasks.task_table import shipped_table

NO_OPTIONS: Config = MappingProxyType({})
CARDS = re.compile(r"initial cards ([A-Z]+)")
STATEMENT = re.compile(r"(All|No|Some) (\w+) are (not )?(\w+)")
Statement = tuple[str, str, str]
"""A quantifier ("all", "no", "some", "some not"), a subject and a predicate."""


def corrected(task: str, entry: Entry, config: Config = NO_OPTIONS) -> Entry:
    """Return `entry` with a wrong stored answer replaced by the right one, or `entry` itself if the stored answer is
    right."""
    right = _RIGHT.get(task)
    if right is None:
        return entry
    answer = right(entry, config)
    return entry if answer == entry["answer"] else {**entry, "answer": answer}


def aiw(entry: Entry, config: Config) -> str:
    """Return the number of Matilda's female colleagues. Matilda belongs to two circles. The number includes the woman
    at the center of the first circle, but not Matilda herself.

    The library counts Matilda as her own colleague in the first circle. The library also ignores the second circle,
    even though the question states that the members of each circle are all colleagues of each other.
    """
    women = re.findall(r"\b(\d+) female colleagues", entry["question"])
    if len(women) != 2:
        return str(entry["answer"])
    return str(int(women[0]) + int(women[1]) - 1)


def basic_arithmetic(entry: Entry, config: Config) -> str:
    """Return the exact value of the expression, which may be a fraction. The library discards the remainders of
    divisions. With `allow_parentheses=False`, the library also ignores operator precedence."""
    exact = exact_value(entry["metadata"]["expression"])
    return (
        str(entry["answer"]) if exact is None or exact == forms.attempt(forms.number, entry["answer"]) else str(exact)
    )


def tsumego(entry: Entry, config: Config) -> str:
    """Return the move that captures the most stones, which may differ from the stored move because the library adds
    stones at random."""
    captures = games.captures(entry["metadata"]["board"])
    size = len(entry["metadata"]["board"])
    best = [f"{chr(65 + column)}{size - row}" for (row, column), n in captures.items() if n == max(captures.values())]
    return str(entry["answer"]) if not best or entry["answer"] in best else best[0]


def knight_swap(entry: Entry, config: Config) -> str:
    """Return the stored answer, or a solution if "No" is stored for a solvable puzzle. To make some puzzles impossible,
    the library forbids a move without mentioning this rule in the question."""
    metadata = entry["metadata"]
    if entry["answer"] != "No":
        return str(entry["answer"])
    pieces = tuple(sorted((square, piece or "") for square, piece in metadata["pieces"].items()))
    return move_games.solve_knight_swap(pieces, metadata["start_turn"])


def mahjong_puzzle(entry: Entry, config: Config) -> str:
    """Return the last round's result. The library stores `Pass` for any randomly drawn card, even one that forms a
    group. The library also stores `Chi` for a card drawn to form a sequence, even if `Peng` takes precedence, and
    misses a sequence in which the middle card occurs twice."""
    *before, last = entry["metadata"]["rounds"]
    cards = CARDS.search(entry["question"])
    hand = before[-1]["cards"] if before else cards[1] if cards else ""
    card = last["add"]
    if hand.count(card) >= 2:
        return "Peng"
    around = [chr(ord(card) + step) in hand for step in (-2, -1, 1, 2)]
    return "Chi" if any(one and other for one, other in pairwise(around)) else "Pass"


def syllogism(entry: Entry, config: Config) -> str:
    """Return "Yes" if the conclusion holds in every model of the premises, and "No" if it does not. If the result
    depends on existential import, return the stored answer. The library applies some of the traditional rules, or
    checks for the converse of one premise, so it accepts some invalid conclusions and misses some valid conclusions."""
    follows = syllogism_follows(entry)
    return str(entry["answer"]) if follows is None else "Yes" if follows else "No"


def syllogism_follows(entry: Entry) -> bool | None:
    """Whether the conclusion follows from the two premises, or None if the result depends on existential import.

    "All A are B" implies "Some A are B" in Aristotle's logic, where every term has a member, but not in modern logic.
    """
    metadata = entry["metadata"]
    statements = [_statement(metadata[part]) for part in ("premise1", "premise2", "conclusion")]
    names = sorted({name for _, *terms in statements for name in terms})
    return _follows(tuple((kind, names.index(a), names.index(b)) for kind, a, b in statements))


def _statement(text: str) -> Statement:
    match = STATEMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a categorical proposition")
    kind, subject, negation, predicate = match.groups()
    return kind.lower() + (" not" if negation else ""), subject, predicate


@lru_cache(maxsize=4096)
def _follows(statements: tuple[tuple[str, int, int], ...]) -> bool | None:
    """Check in all models whether the conclusion follows. A region is a combination of terms, and a model is the set of
    regions that have members."""
    n_terms = 1 + max(max(terms) for _, *terms in statements)
    regions = list(product((False, True), repeat=n_terms))
    models = [list(compress(regions, inhabited)) for inhabited in product((False, True), repeat=len(regions))]
    aristotelian = [model for model in models if all(any(region[term] for region in model) for term in range(n_terms))]
    *premises, conclusion = statements
    modern, traditional = (
        all(_holds(conclusion, model) for model in each if all(_holds(premise, model) for premise in premises))
        for each in (models, aristotelian)
    )
    return modern if modern == traditional else None


def _holds(statement: tuple[str, int, int], model: list[tuple[bool, ...]]) -> bool:
    kind, subject, predicate = statement
    found = any(region[subject] and region[predicate] == (kind in ("no", "some")) for region in model)
    return found == kind.startswith("some")


_REVERSED = {
    **dict.fromkeys(("mother-in-law", "father-in-law"), ("son-in-law", "daughter-in-law")),
    **dict.fromkeys(("niece", "nephew"), ("nephew", "niece")),
}
"""For each stored relationship that may be wrong, the right relationship of a man and of a woman."""


def family_relationships(entry: Entry, config: Config) -> str:
    """Return the first person's relationship to the second person. For in-laws, the library stores the reverse
    relationship (`mother-in-law` for a daughter-in-law). For nieces and nephews, the library uses the second person's
    gender. The stored answer is kept if the options list the first person's name as both male and female, or as
    neither."""
    stored = str(entry["answer"])
    name = entry["metadata"]["person1"]
    male, female = (name in option("family_relationships", config, key) for key in ("male_names", "female_names"))
    if male == female:
        return stored
    return _REVERSED.get(stored, (stored, stored))[female]


def time_intervals(entry: Entry, config: Config) -> str:
    """Return the elapsed time, which the library computes incorrectly for some formats (see
    `arithmetic.elapsed_time`)."""
    return elapsed_time(entry)


_RIGHT: Mapping[str, Callable[[Entry, Config], str]] = {
    task: right for task, right in globals().items() if task in shipped_table()
}
"""Functions, named after their tasks, that return an entry's right answer in the stored format."""

SOLVED_TASKS = ("rush_hour", "boxnet")
"""Tasks whose gold answers are computed by a solver, which assumes that the entry is valid."""


def gold_answer(task: str, entry: Mapping[str, Any], config: Config = NO_OPTIONS) -> str | None:
    """Return the right answer for an entry of `task` generated with the options in `config`, or None if the answer is
    unknown.

    If the stored answer is wrong, the right answer under the question's rules replaces it (see `corrected`). Entries of
    graph_color and rubiks_cube do not have an `answer`, but their metadata contains an example of a right answer
    (except for cubes of a size other than 3). Entries of rush_hour and boxnet do not contain any answer, so this
    function solves the puzzles, which usually takes about 20 ms for rush_hour. The example stored for
    propositional_logic often restates a premise or is a variable that does not follow from the premises. The shortest
    conclusion replaces such an example.
    """
    if task in STORED_ELSEWHERE:
        return STORED_ELSEWHERE[task](entry)
    answer = corrected(task, entry, config)["answer"]
    if task == "jugs" and "No solution" in answer:
        return None  # the library's solver handles only three jugs
    if task in ("simple_integration", "intermediate_integration") and "Integral(" in answer:
        return None  # the library could not find the integral and stored the question instead
    return None if answer is None else str(answer)


def _conclusion(entry: Entry) -> str | None:
    premises = logic.Premises(entry["metadata"])
    shortest = premises.conclusion()
    example: str = entry["metadata"]["example_answer"]
    formula = forms.attempt(lambda text: logic.parse(text, premises.variables), example)
    return example if shortest and formula and premises.lead_to(formula) else shortest


STORED_ELSEWHERE: Mapping[str, Callable[[Entry], str | None]] = {
    "boxnet": move_games.solve_boxnet,
    "graph_color": lambda entry: json.dumps(entry["metadata"]["possible_answer"]),
    "propositional_logic": _conclusion,
    "rubiks_cube": lambda entry: entry["metadata"]["example_correct_answer"] or None,  # only 3x3 cubes have an example
    "rush_hour": move_games.solve_rush_hour,
}
"""Functions that return an entry's gold answer, for tasks whose entries do not have an `answer`."""
