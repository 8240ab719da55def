"""Formulas of propositional logic: reading and truth table."""

import itertools

import pytest
from formula_cases import formulas_in, holds, written
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.parsing.formulas import MAX_DEPTH, MAX_TOKENS, Formula, columns, flipped, parse, truth

P, Q, R = ("var", "P"), ("var", "Q"), ("var", "R")
NAMES = ["P", "Q", "R"]
FORMULAS = formulas_in(NAMES)
SIGNS = [
    {"not": "¬", "and": "∧", "or": "∨", "implies": "→", "iff": "↔"},
    {"not": "~", "and": "&", "or": "|", "implies": "->", "iff": "<->"},
    {"not": "!", "and": "&&", "or": "||", "implies": "=>", "iff": "<=>"},
    {"not": "not ", "and": "and", "or": "OR", "implies": "implies", "iff": "iff"},
    {"not": r"\lnot ", "and": r"\land", "or": r"\vee", "implies": r"\rightarrow", "iff": r"\leftrightarrow"},
]


@given(FORMULAS, st.sampled_from(SIGNS))
def test_what_is_written_is_read(formula: Formula, signs: dict[str, str]) -> None:
    """Logical signs, ASCII, words and LaTeX give the formula back."""
    assert parse(written(formula, signs), NAMES) == formula


@given(FORMULAS)
def test_the_table_holds_what_the_formula_means(formula: Formula) -> None:
    """Row i of the table is the assignment whose bits are i, in the order of the names."""
    value = truth(formula, columns(NAMES))
    for row in range(8):
        assert bool(value >> row & 1) == holds(formula, {name: bool(row >> i & 1) for i, name in enumerate(NAMES)})
    assert value >> 8 == 0


@given(FORMULAS, st.sampled_from(NAMES))
def test_a_column_flips_with_a_variable(formula: Formula, name: str) -> None:
    """Exchanging the rows in which a variable is true and false is the formula with its negation in its place."""
    table = columns(NAMES)
    negated = parse(written(formula).replace(name, f"(¬{name})"), NAMES)
    assert negated is not None
    assert flipped(truth(formula, table), table[name]) == truth(negated, table)


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("¬P ∧ Q ∨ R → P ↔ Q", ("iff", ("implies", ("or", ("and", ("not", P), Q), R), P), Q)),
        ("P → Q → R", ("implies", P, ("implies", Q, R))),
        ("P ∧ Q ∧ R", ("and", ("and", P, Q), R)),
        ("[P /\\ Q] \\/ R", ("or", ("and", P, Q), R)),
        ("((P))", P),
        ("", None),
        ("P Q", None),
        ("(P", None),
        ("P)", None),
        ("(Q ∨ Q) (Q", None),
        ("P ∧", None),
        ("S ∧ P", None),
        ("PQ", None),
        ("p", None),
        ("P = Q", None),
        ("P ∧ True", None),
        ("\x00\ud800", None),
        ("¬" * 3000 + "P", None),
        ("(" * (MAX_DEPTH + 2) + "P" + ")" * (MAX_DEPTH + 2), None),
        (" ∧ ".join(["P"] * MAX_TOKENS), None),
    ],
)
def test_reading(text: str, formula: Formula | None) -> None:
    """How tightly operators bind, and what is no formula."""
    assert parse(text, NAMES) == formula


@given(st.text(alphabet="PQR()¬∧∨→↔ &|~<->\\andor", max_size=60))
def test_any_text_is_read_or_not(text: str) -> None:
    """No text raises."""
    formula = parse(text, NAMES)
    assert formula is None or str(formula).count("'var'") == sum(text.count(name) for name in NAMES)


def test_variables_beyond_z() -> None:
    """The library goes on with `[` after `Z`: then that sign is a variable."""
    assert parse("([ ∨ P)", ["P", "["]) == ("or", ("var", "["), P)


def test_columns_are_bounded() -> None:
    """Sixteen variables have a table, seventeen do not."""
    names = ["".join(pair) for pair in itertools.product("abcd", repeat=2)]
    assert len(columns(names)) == 16
    with pytest.raises(ValueError, match="17 variables"):
        columns([*names, "x"])
