"""Graders of the logic tasks."""

import re

from rg_env.core.graders import common, formulas
from rg_env.core.graders.premises import Premises
from rg_env.core.graders.types import Config, Entry, Grader

_WORD = re.compile(r"[^\W\d_]+")
_LINKS = {"is", "a", "an", "the", "are", "both", "and"}
_DENIALS = {"not", "no", "never", "neither", "nor", "or", "either", "if", "unless", "false", "untrue"}


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
    """A conclusion by the rule of `graders.premises`: it follows, and no part of it follows from one premise alone.

    The rule looks at meaning only, so an equivalent formula gets the same verdict, as long as it can be read
    (`formulas.parse`) and names variables of the question. The library pays for whatever follows and is neither a
    tautology nor a single variable: for its own premises joined by and, and for `P ∨ Q` on two questions in three.
    Rows have questions with a conclusion in at most two variables, one draw in five (`core.mends.is_item`), and no
    variable, or negated one, is right on more than one row in six (`core.selection`).
    """
    premises = Premises(entry["metadata"])
    formula = formulas.parse(answer.strip().lstrip("∴⊢ "), premises.variables)
    return float(formula is not None and premises.lead_to(formula))


GRADERS: dict[str, Grader] = {
    "aiw": common.exact_number,
    "circuit_logic": common.exact_number,
    "knights_knaves": knights_knaves,
    "propositional_logic": propositional_logic,
    "self_reference": common.exact_number,
    "syllogism": common.word,
    "zebra_puzzles": common.word,
}
