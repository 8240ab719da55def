"""Which conclusions of propositional_logic are right: the grader against its rule, applied literally by brute force."""

import itertools
import json
import time

import pytest
from formula_cases import Models, formulas_in, is_conclusion, models, written
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rg_env.core.data.dataset import build_rows
from rg_env.core.grading.graders.logic import MAX_DEPENDS, Premises, propositional_logic
from rg_env.core.grading.parsing.formulas import Formula, parse

NAMES = ["P", "Q", "R"]
FORMULAS = formulas_in(NAMES, max_leaves=6)
PREMISES = st.lists(FORMULAS, min_size=1, max_size=3)


def graded(answer: str, premises: list[str], names: list[str] = NAMES) -> bool:
    metadata = {"variables": names, "premises": premises, "example_answer": "P"}
    return bool(propositional_logic(answer, {"question": "?", "answer": None, "metadata": metadata}, {}))


def rewritten(formula: Formula, draw: st.DataObject) -> Formula:
    """An equivalent formula: each part replaced by another way to say it, drawn at random."""
    kind, *parts = formula
    if kind == "var":
        same: Formula = formula
    else:
        parts = [rewritten(part, draw) for part in parts]
        same = (kind, *parts)
    options: list[Formula] = [
        same,
        ("not", ("not", same)),
        ("and", same, same),
        ("or", same, ("and", same, ("var", "R"))),
    ]
    if kind == "and":
        options += [("and", *parts[::-1]), ("not", ("or", ("not", parts[0]), ("not", parts[1])))]
    elif kind == "or":
        options += [("or", *parts[::-1]), ("implies", ("not", parts[0]), parts[1])]
    elif kind == "implies":
        options += [("or", ("not", parts[0]), parts[1]), ("implies", ("not", parts[1]), ("not", parts[0]))]
    elif kind == "iff":
        options += [("and", ("implies", *parts), ("implies", *parts[::-1]))]
    return draw.draw(st.sampled_from(options))


@given(PREMISES, FORMULAS, st.data())
def test_equivalent_formulas_get_the_same_verdict(
    premises: list[Formula], formula: Formula, draw: st.DataObject
) -> None:
    """Whatever says the same is right or wrong alike, and so it is for the premises."""
    same = rewritten(formula, draw)
    texts = [written(premise) for premise in premises]
    assume(all(parse(text, NAMES) for text in (written(same), *texts)))
    assert models(same, NAMES) == models(formula, NAMES)
    verdict = graded(written(formula), texts)
    assert graded(written(same), texts) == verdict
    others = [written(rewritten(premise, draw)) for premise in premises]
    assume(all(parse(text, NAMES, 20_000) for text in others))
    assert graded(written(formula), others) == verdict


@given(PREMISES, FORMULAS)
@example([("var", "P"), ("not", ("var", "P"))], ("and", ("var", "P"), ("not", ("var", "P"))))
def test_the_rule_is_what_it_says(premises: list[Formula], formula: Formula) -> None:
    """The grader agrees with the documented rule, applied to sets of assignments."""
    said = [models(premise, NAMES) for premise in premises]
    right = is_conclusion(models(formula, NAMES), said, NAMES)
    assert graded(written(formula), [written(premise) for premise in premises]) == right


def test_all_conclusions_of_one_or_two_literals() -> None:
    """On drawn questions each formula of up to two literals is paid if and only if it is a conclusion by the rule."""
    paid = refused = 0
    for row in build_rows("propositional_logic", "eval", 25, seed=8):
        metadata = json.loads(row["info"]["entry"])["metadata"]
        names = metadata["variables"]
        said: list[Models] = []
        for text in metadata["premises"]:
            premise = parse(text, names)
            assert premise is not None
            said.append(models(premise, names))
        variables: list[Formula] = [("var", name) for name in names]
        literals = variables + [("not", variable) for variable in variables]
        signs = ["and", "or", "implies", "iff"]
        pairs = [(sign, a, b) for sign in signs for a, b in itertools.product(literals, repeat=2)]
        right = {f: is_conclusion(models(f, names), said, names) for f in [*literals, *pairs]}
        assert {f: graded(written(f), metadata["premises"], names) for f in right} == right
        assert any(right.values())
        paid += sum(right.values())
        refused += sum(frozenset.intersection(*said) <= models(f, names) for f in right) - sum(right.values())
    assert paid > 100
    assert refused > 100


@pytest.mark.parametrize(
    ("premises", "right", "wrong"),
    [
        (["P", "(P → Q)"], ["Q", "Q ∨ R", "R → Q", "Q ∧ (R ∨ ¬R)"], ["P ∧ Q", "P ↔ Q", "P", "¬P ∨ Q", "P ∨ R", "R"]),
        (["(P → Q)", "(Q → R)"], ["P → R", "¬R → ¬P"], ["P → (Q ∧ R)", "(P → Q) ∧ (Q → R)", "(P → Q) ∨ R", "R"]),
        (["(P ∨ Q)", "(P ↔ Q)"], ["P", "Q", "P ∧ Q", "P ∧ (P ↔ Q)"], ["P ∨ Q", "P ↔ Q", "P ∨ ¬Q"]),
        (["(P ↔ Q)", "(Q ↔ R)"], ["P ↔ R", "P → R"], ["(P ↔ Q) ∧ (P ↔ R)", "Q ↔ R"]),
        (["Q", "R"], [], ["Q ∧ R", "Q ↔ R", "Q", "Q ∨ R", "¬(¬Q ∧ ¬R)", "Q → R", "P → Q ∧ R"]),
    ],
)
def test_examples(premises: list[str], right: list[str], wrong: list[str]) -> None:
    """What is new is right; what holds a part that one premise says is not."""
    assert [graded(answer, premises) for answer in right] == [True] * len(right)
    assert [graded(answer, premises) for answer in wrong] == [False] * len(wrong)


@given(PREMISES)
def test_the_gold_answer_is_a_conclusion(premises: list[Formula]) -> None:
    """The shortest one; none only if no formula of up to two literals is one, or the premises contradict each other."""
    said = [models(premise, NAMES) for premise in premises]
    texts = [written(premise) for premise in premises]
    found = Premises({"variables": NAMES, "premises": texts})
    gold = found.conclusion()
    literals: list[Formula] = [
        (*sign, ("var", name)) if sign else ("var", name) for name in NAMES for sign in ((), ("not",))
    ]
    ors: list[Formula] = [("or", a, b) for a, b in itertools.combinations(literals, 2)]
    if not frozenset.intersection(*said):
        assert (gold, found.literals()) == (None, [])
        return
    right = [written(f) for f in literals + ors if is_conclusion(models(f, NAMES), said, NAMES)]
    assert gold == (right[0] if right else None)
    assert found.literals() == [text for text in right if " " not in text]


def test_sixteen_variables_are_quick() -> None:
    """The largest table and the most parts cost milliseconds; beyond `MAX_DEPENDS` variables nothing is right."""
    names = [chr(ord("A") + i) for i in range(16)]
    chain = [f"({a} → {b})" for a, b in itertools.pairwise(names)]
    answers = ["A → C ∨ " + " ∨ ".join(f"¬{name}" for name in names[4 : MAX_DEPENDS + 2]), " ↔ ".join(names[:10])]
    start = time.process_time()
    assert [graded(answer, chain, names) for answer in answers] == [True, False]
    assert time.process_time() - start < 0.5
    assert not graded(answers[0] + f" ∨ ¬{names[-1]}", chain, names)
