"""The propositional_logic grader, compared with a literal implementation of its rule; and the parser of formulas."""

import itertools
import time

import pytest
from formula_cases import SIGNS, formulas_in, holds, is_conclusion, models, written
from grader_cases import entry
from hypothesis import example, given
from hypothesis import strategies as st

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.forms import Unreadable
from rg_env.core.grading.graders.logic import (
    MAX_ANSWER_TOKENS,
    MAX_DEPENDS,
    MAX_LEVELS,
    Formula,
    Premises,
    columns,
    flipped,
    parse,
    truth,
)

TERMS = {"knight": "hero", "knave": "villain", "a_knight": "a hero", "a_knave": "a villain"}
ISLAND = entry("-", names=["Ann", "Bob", "Cid"], solution=[True, False, True], knight_knave_terms=TERMS)
NAMES = ["P", "Q", "R"]
P, Q, R = ("var", "P"), ("var", "Q"), ("var", "R")


def premises(*texts: str, names: list[str] = NAMES):  # type: ignore[no-untyped-def]
    return entry(None, variables=names, premises=list(texts), example_answer="P")


@given(st.lists(st.sampled_from(["Ann", "Bob", "Cid", "hero", "villain", "is", "are", "and", "not", "x"]), max_size=14))
def test_knights_knaves_is_never_right_with_one_role_alone(words: list[str]) -> None:
    """Every answer that is right names all people and both roles."""
    if grade("knights_knaves", {}, ISLAND, " ".join(words)):
        assert {"Ann", "Bob", "Cid", "hero", "villain"} <= set(words)


FORMULAS = formulas_in(NAMES, max_leaves=6)
PREMISES = st.lists(FORMULAS, min_size=1, max_size=3)


def graded(answer: str, texts: list[str], names: list[str] = NAMES) -> bool:
    return bool(grade("propositional_logic", {}, premises(*texts, names=names), answer))


@given(PREMISES, FORMULAS)
@example([("var", "P"), ("not", ("var", "P"))], ("and", ("var", "P"), ("not", ("var", "P"))))
def test_the_rule_is_as_documented(given_: list[Formula], formula: Formula) -> None:
    """The grader and the gold answer agree with the documented rule, applied to sets of assignments.

    The gold answer is the shortest conclusion. It is missing only if no formula of up to two literals is a conclusion,
    or if the premises contradict each other.
    """
    premise_models, texts = [models(premise, NAMES) for premise in given_], [written(premise) for premise in given_]
    assert graded(written(formula), texts) == is_conclusion(formula, premise_models, NAMES)
    parsed = Premises({"variables": NAMES, "premises": texts})
    literals: list[Formula] = [
        (*sign, ("var", name)) if sign else ("var", name) for name in NAMES for sign in ((), ("not",))
    ]
    ors: list[Formula] = [("or", a, b) for a, b in itertools.combinations(literals, 2)]
    right = [written(f) for f in literals + ors if is_conclusion(f, premise_models, NAMES)]
    if not frozenset.intersection(*premise_models):
        right = []
    assert parsed.conclusion() == (right[0] if right else None)
    assert parsed.literals() == [text for text in right if " " not in text]


def test_gold_answers_of_propositional_logic() -> None:
    """The gold answer is the stored example if that is right, otherwise a conclusion of our own; it is missing if
    nothing follows."""
    item = premises("P", "(P → Q)")
    for stored, gold in (("(Q ∨ R)", "(Q ∨ R)"), ("P", "Q"), ("(P ∧ Q)", "(P ∧ Q)"), ("(P ∨ Q)", "Q")):
        assert gold_answer("propositional_logic", entry(None, **{**item["metadata"], "example_answer": stored})) == gold
    assert gold_answer("propositional_logic", premises("P", "Q")) is None


def test_sixteen_variables_are_quick() -> None:
    """Answers on the largest truth table and answers with the most parts are graded in under a second together."""
    names = [chr(ord("A") + i) for i in range(16)]
    chain = [f"({a} → {b})" for a, b in itertools.pairwise(names)]
    answers = ["A → C ∨ " + " ∨ ".join(f"¬{name}" for name in names[4 : MAX_DEPENDS + 2]), " ↔ ".join(names[:10])]
    more = [" ∨ ".join(names * 12), " → ".join("ABCD" * 49), "A ∧ (B ∨ " * 1000, answers[0] + f" ∨ ¬{names[-1]}"]
    start = time.process_time()
    assert [graded(answer, chain, names) for answer in answers + more] == [True, False, False, False, False, True]
    assert time.process_time() - start < 1.0


ALPHABETS = [
    SIGNS,
    {"not": "~", "and": "&", "or": "|", "implies": "->", "iff": "<->"},
    {"not": "!", "and": "&&", "or": "||", "implies": "=>", "iff": "<=>"},
    {"not": "not ", "and": "and", "or": "OR", "implies": "implies", "iff": "iff"},
    {"not": r"\lnot ", "and": r"\land", "or": r"\vee", "implies": r"\rightarrow", "iff": r"\leftrightarrow"},
]


@given(formulas_in(NAMES), st.sampled_from(ALPHABETS), st.sampled_from(NAMES))
def test_formulas_are_read_and_have_their_truth_table(formula: Formula, signs: dict[str, str], name: str) -> None:
    """Formulas are parsed from logical signs, ASCII, words and LaTeX. Bit k of a row's number is the value of variable
    k; `flipped` turns a formula's table into that of the formula with a variable negated."""
    assert parse(written(formula, signs), NAMES) == formula
    table_ = columns(NAMES)
    value = truth(formula, table_)
    rows = [bool(value >> row & 1) for row in range(8)]
    assert rows == [holds(formula, {each: bool(row >> i & 1) for i, each in enumerate(NAMES)}) for row in range(8)]
    assert value >> 8 == 0
    negated = parse(written(formula).replace(name, f"(¬{name})"), NAMES)
    assert flipped(value, table_[name]) == truth(negated, table_)


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("¬P ∧ Q ∨ R → P ↔ Q", ("iff", ("implies", ("or", ("and", ("not", P), Q), R), P), Q)),
        ("P → Q → R", ("implies", P, ("implies", Q, R))),
        ("P ∧ Q ∧ R", ("and", ("and", P, Q), R)),
        ("[P /\\ Q] \\/ R", ("or", ("and", P, Q), R)),
        ("((P))", P),
    ],
)
def test_how_tightly_operators_bind(text: str, formula: Formula) -> None:
    assert parse(text, NAMES) == formula


@pytest.mark.parametrize(
    "text",
    [
        *("", "P Q", "(P", "P)", "(Q ∨ Q) (Q", "P ∧", "S ∧ P", "PQ", "p", "P = Q", "P ∧ True", "\x00\ud800"),
        *(
            "¬" * 3000 + "P",
            "(" * (MAX_LEVELS + 2) + "P" + ")" * (MAX_LEVELS + 2),
            " ∧ ".join(["P"] * MAX_ANSWER_TOKENS),
        ),
    ],
)
def test_what_is_not_a_formula(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text, NAMES)


def test_variables_beyond_z_and_the_largest_table() -> None:
    """After `Z`, the library names a variable `[`, which then does not count as a bracket. Tables have at most sixteen
    variables."""
    assert parse("([ ∨ P)", ["P", "["]) == ("or", ("var", "["), P)
    names = ["".join(pair) for pair in itertools.product("abcd", repeat=2)]
    assert len(columns(names)) == 16
    with pytest.raises(ValueError, match="at most 16 variables, not 17"):
        columns([*names, "x"])
