"""Graders of the logic tasks."""

import functools
import operator
import re
from collections.abc import Mapping
from typing import Any

from rg_env.core.graders import common, formulas
from rg_env.core.graders.formulas import Formula
from rg_env.core.graders.types import Config, Entry, Grader

_WORD = re.compile(r"[^\W\d_]+")
_LINKS = {"is", "a", "an", "the", "are", "both", "and"}
_DENIALS = {"not", "no", "never", "neither", "nor", "or", "either", "if", "unless", "false", "untrue"}
_MAX_PREMISE_TOKENS = 20_000  # premises are the library's own: a bound for answers would make a large entry unusable


def knights_knaves(answer: str, entry: Entry, config: Config) -> float:
    """Who is what: everybody is named with the right role, in any order, and nobody with both roles.

    No partial credit: of two inhabitants, chance alone gets one.
    """
    metadata = entry["metadata"]
    terms = metadata["knight_knave_terms"]
    roles = {terms[key] + ending: key == "knight" for key in ("knight", "knave") for ending in ("", "s", "es")}
    right = {name.casefold(): bool(value) for name, value in zip(metadata["names"], metadata["solution"], strict=True)}
    return float(_claims(answer, set(right), roles) == right)


def _claims(answer: str, names: set[str], roles: dict[str, bool]) -> dict[str, bool] | None:
    """What the text says of each name; None where it contradicts or denies. Words between the claims may be any."""
    claims: dict[str, bool] = {}
    pending: list[str] = []  # names whose role is still to come
    plural = False
    last: bool | None = None
    for word in _WORD.findall(answer.casefold()):
        if word in names:
            pending.append(word)
        elif word in roles:
            role = roles[word]
            for name in pending if plural else pending[-1:]:
                if claims.setdefault(name, role) != role:
                    return None
            if not pending and role != last:  # `a knight or knave`, and a role of nobody
                return None
            pending, plural, last = [], False, role
        elif word in _DENIALS or (pending and word not in _LINKS):
            return None
        plural = plural or (word == "are" and bool(pending))
    return claims


def propositional_logic(answer: str, entry: Entry, config: Config) -> float:
    """A formula that follows from the premises and is no mere restatement of them.

    Not right are, though the library pays for them: a tautology; a premise, apart from order, repetition and double
    negation; premises joined by and/or (or an arrow, which is an or) alone; a formula with a part that says what a
    whole premise says, for `(premise) ∨ X` follows from anything; what is equivalent to a premise but longer. A premise
    that is a single variable, or one negated, may be a part. A single variable is right where it is no premise. The
    library's stored example is right in any case.

    The question asks for "a correct conclusion", not for the strongest: from `Q` the library itself concludes `Q ∨ P`,
    as it does for more than half of its questions, and for one in seven nothing else that is short will do. So an
    or of two variables is right for three questions in five. The task is open: other rows would be another task.
    """
    metadata = entry["metadata"]
    variables = metadata["variables"]
    table = formulas.columns(variables)
    conclusion = formulas.parse(answer.strip().lstrip("∴⊢ "), variables)
    if conclusion is None:
        return 0.0
    premises, said = _premises(metadata, table)
    every = (1 << (1 << len(variables))) - 1
    given = every
    for column in said:
        given &= column
    *parts, value = formulas.truths(conclusion, table)
    if value == every or given & ~value:
        return 0.0
    if conclusion == formulas.parse(metadata["example_answer"], variables):
        return 1.0
    if _joined(formulas.normal(conclusion), {formulas.normal(premise) for premise in premises}):
        return 0.0
    literals = {*table.values(), *(every ^ column for column in table.values())}
    compound = set(said) - literals
    if not compound.isdisjoint(parts):
        return 0.0
    sizes = [
        formulas.leaves(premise)
        for premise, premise_value in zip(premises, said, strict=True)
        if premise_value == value
    ]
    return float(not sizes or formulas.leaves(conclusion) <= max(sizes))


def contradictory(entry: Entry) -> bool:
    """The premises cannot all hold, so that any conclusion follows from them: one question in five of the library's."""
    table = formulas.columns(entry["metadata"]["variables"])
    return not functools.reduce(operator.and_, _premises(entry["metadata"], table)[1])


def _premises(metadata: Mapping[str, Any], table: Mapping[str, int]) -> tuple[list[Formula], list[int]]:
    """The premises, and the column of each in the truth table."""
    found = [_premise(text, metadata["variables"]) for text in metadata["premises"]]
    return found, [formulas.truths(premise, table)[-1] for premise in found]


def _premise(text: str, variables: list[str]) -> Formula:
    premise = formulas.parse(text, variables, _MAX_PREMISE_TOKENS)
    if premise is None:
        raise ValueError(f"premise {text!r} is no formula in the variables {variables}")
    return premise


def _joined(form: Formula, known: set[Formula]) -> bool:
    """It is one of the known formulas, or built of them by and/or alone; `A → B` is `¬A ∨ B`."""
    if form in known:
        return True
    if form[0] == "implies":
        return _joined(formulas.normal(("not", form[1])), known) and _joined(form[2], known)
    return form[0] in ("and", "or") and all(_joined(part, known) for part in form[1])


GRADERS: dict[str, Grader] = {
    "aiw": common.exact_number,
    "circuit_logic": common.exact_number,
    "knights_knaves": knights_knaves,
    "propositional_logic": propositional_logic,
    "self_reference": common.exact_number,
    "syllogism": common.word,
    "zebra_puzzles": common.word,
}
