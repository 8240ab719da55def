"""Formulas of propositional logic: reading, truth table, normal form."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.graders.formulas import MAX_DEPTH, MAX_TOKENS, Formula, columns, leaves, normal, parse, truths

P, Q, R = ("var", "P"), ("var", "Q"), ("var", "R")
NAMES = ["P", "Q", "R"]
FORMULAS: st.SearchStrategy[Formula] = st.recursive(
    st.sampled_from([P, Q, R]),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or", "implies", "iff"]), inner, inner)
    ),
    max_leaves=12,
)
SIGNS = [
    {"not": "¬", "and": "∧", "or": "∨", "implies": "→", "iff": "↔"},
    {"not": "~", "and": "&", "or": "|", "implies": "->", "iff": "<->"},
    {"not": "!", "and": "&&", "or": "||", "implies": "=>", "iff": "<=>"},
    {"not": "not ", "and": "and", "or": "OR", "implies": "implies", "iff": "iff"},
    {"not": r"\lnot ", "and": r"\land", "or": r"\vee", "implies": r"\rightarrow", "iff": r"\leftrightarrow"},
]


def _write(formula: Formula, signs: dict[str, str]) -> str:
    kind, *parts = formula
    if kind == "var":
        return str(parts[0])
    texts = [_write(part, signs) for part in parts]
    return f"{signs['not']}{texts[0]}" if kind == "not" else f"({texts[0]} {signs[kind]} {texts[1]})"


def _holds(formula: Formula, values: dict[str, bool]) -> bool:
    kind, *parts = formula
    if kind == "var":
        return values[parts[0]]
    inner = [_holds(part, values) for part in parts]
    meaning: dict[str, Any] = {
        "not": lambda a: not a,
        "and": lambda a, b: a and b,
        "or": lambda a, b: a or b,
        "implies": lambda a, b: b or not a,
        "iff": lambda a, b: a == b,
    }
    return bool(meaning[kind](*inner))


@given(FORMULAS, st.sampled_from(SIGNS))
def test_what_is_written_is_read(formula: Formula, signs: dict[str, str]) -> None:
    """Logical signs, ASCII, words and LaTeX give the formula back."""
    assert parse(_write(formula, signs), NAMES) == formula


@given(FORMULAS)
def test_the_table_holds_what_the_formula_means(formula: Formula) -> None:
    """Row i of the table is the assignment whose bits are i, in alphabetical order."""
    value = truths(formula, columns(NAMES))[-1]
    for row in range(8):
        assert bool(value >> row & 1) == _holds(formula, {name: bool(row >> i & 1) for i, name in enumerate(NAMES)})
    assert value >> 8 == 0


@given(FORMULAS, FORMULAS)
def test_formulas_of_one_form_mean_the_same(left: Formula, right: Formula) -> None:
    """The normal form never joins formulas that differ in meaning."""
    table = columns(NAMES)
    if normal(left) == normal(right):
        assert truths(left, table)[-1] == truths(right, table)[-1]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("P ∧ Q", "Q ∧ ¬¬P", True),
        ("(P ∧ Q) ∧ R", "R ∧ (Q ∧ (P ∧ P))", True),
        ("P ∨ P", "P", True),
        ("P ↔ Q", "Q ↔ P", True),
        ("P → Q", "Q → P", False),
        ("P → Q", "¬P ∨ Q", False),
    ],
)
def test_normal_forms(left: str, right: str, same: bool) -> None:
    """Order, repetition and double negation go; steps of reasoning stay."""
    forms = [normal(parse(text, NAMES) or P) for text in (left, right)]
    assert (forms[0] == forms[1]) is same


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
    assert formula is None or leaves(formula) == sum(text.count(name) for name in NAMES)


def test_variables_beyond_z() -> None:
    """The library goes on with `[` after `Z`: then that sign is a variable."""
    assert parse("([ ∨ P)", ["P", "["]) == ("or", ("var", "["), P)


def test_columns_are_bounded() -> None:
    """Sixteen variables have a table, seventeen do not."""
    names = ["".join(pair) for pair in itertools.product("abcd", repeat=2)]
    assert len(columns(names)) == 16
    with pytest.raises(ValueError, match="17 variables"):
        columns([*names, "x"])
