"""Formulas of propositional logic for tests: a strategy, their text, and their meaning, computed independently of the
grader."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from rg_env.core.grading.graders.logic import Formula

SIGNS = {"not": "¬", "and": "∧", "or": "∨", "implies": "→", "iff": "↔"}


def formulas_in(names: Sequence[str], max_leaves: int = 12) -> st.SearchStrategy[Formula]:
    """Return a strategy for formulas in these variables."""
    return st.recursive(
        st.sampled_from([("var", name) for name in names]),
        lambda inner: st.one_of(
            st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or", "implies", "iff"]), inner, inner)
        ),
        max_leaves=max_leaves,
    )


def written(formula: Formula, signs: dict[str, str] = SIGNS) -> str:
    """Return the formula as text, with parentheses around every binary operation."""
    kind, *parts = formula
    if kind == "var":
        return str(parts[0])
    texts = [written(part, signs) for part in parts]
    return f"{signs['not']}{texts[0]}" if kind == "not" else f"({texts[0]} {signs[kind]} {texts[1]})"


def holds(formula: Formula, values: dict[str, bool]) -> bool:
    """Return whether the formula is true under an assignment."""
    kind, *parts = formula
    if kind == "var":
        return values[parts[0]]
    inner = [holds(part, values) for part in parts]
    meaning: dict[str, Any] = {
        "not": lambda a: not a,
        "and": lambda a, b: a and b,
        "or": lambda a, b: a or b,
        "implies": lambda a, b: b or not a,
        "iff": lambda a, b: a == b,
    }
    return bool(meaning[kind](*inner))


Models = frozenset[tuple[bool, ...]]


def models(formula: Formula, names: Sequence[str]) -> Models:
    """Return the assignments under which the formula is true, as values in the order of `names`."""
    rows = itertools.product([False, True], repeat=len(names))
    return frozenset(row for row in rows if holds(formula, dict(zip(names, row, strict=True))))


def clauses(names: Sequence[str]) -> Iterator[tuple[frozenset[str], Models]]:
    """Return all clauses in these variables, each as its set of literals and its models."""
    rows = list(itertools.product([False, True], repeat=len(names)))
    for wanted in itertools.product([None, True, False], repeat=len(names)):
        literals = [(i, value) for i, value in enumerate(wanted) if value is not None]
        if literals:
            text = frozenset(("" if value else "¬") + names[i] for i, value in literals)
            yield text, frozenset(row for row in rows if any(row[i] == value for i, value in literals))


def is_conclusion(formula: Models, premises: Sequence[Models], names: Sequence[str]) -> bool:
    """Return whether the formula is a conclusion.

    This implements the documented rule literally: the premises imply the formula, the formula is neither always true
    nor always false, and none of its shortest clauses is implied by a single premise.
    """
    if len(formula) in (0, 2 ** len(names)) or not frozenset.intersection(*premises) <= formula:
        return False
    implied = [(literals, clause) for literals, clause in clauses(names) if formula <= clause]
    shortest = [clause for literals, clause in implied if not any(other < literals for other, _ in implied)]
    return not any(premise <= clause for premise in premises for clause in shortest)
