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


def multiplied_out(formula: Formula, positive: bool = True) -> set[frozenset[tuple[str, bool]]]:
    """Return the clauses that result from distribution and De Morgan's laws, for the formula or its negation. A literal
    is a variable and the value that makes it true."""
    kind, *parts = formula
    if kind == "var":
        return {frozenset({(parts[0], positive)})}
    if kind == "not":
        return multiplied_out(parts[0], not positive)
    a, b = parts
    if kind == "implies":
        return multiplied_out(("or", ("not", a), b), positive)
    if kind == "iff":
        both, one = ("and", ("or", ("not", a), b), ("or", ("not", b), a)), ("and", ("or", a, b), ("not", ("and", a, b)))
        return multiplied_out(both if positive else one)
    left, right = multiplied_out(a, positive), multiplied_out(b, positive)
    return left | right if (kind == "and") == positive else {one | other for one in left for other in right}


def is_conclusion(formula: Formula, premises: Sequence[Models], names: Sequence[str]) -> bool:
    """Return whether the formula is a conclusion.

    This implements the documented rule literally: the premises imply the formula, the formula is neither always true
    nor always false, and either none of its shortest clauses is implied by a single premise, or one of the clauses into
    which it is multiplied out is not.
    """
    true = models(formula, names)
    if len(true) in (0, 2 ** len(names)) or not frozenset.intersection(*premises) <= true:
        return False
    rows = list(itertools.product([False, True], repeat=len(names)))
    for literals in multiplied_out(formula):
        clause = frozenset(row for row in rows if any(row[names.index(name)] == value for name, value in literals))
        if not any(premise <= clause for premise in premises):
            return True
    implied = [(literals, clause) for literals, clause in clauses(names) if true <= clause]
    shortest = [clause for literals, clause in implied if not any(other < literals for other, _ in implied)]
    return not any(premise <= clause for premise in premises for clause in shortest)
