"""Graders of the logic tasks, and what the premises of propositional_logic lead to.

A conclusion follows from all premises, and says nothing that one of them says alone. Everything is decided by meaning:
a formula is its column of the truth table (`formulas.columns`), so formulas that are equivalent are the same here. A
*clause* is an or of variables and negated variables, such as `¬P ∨ Q`. The *parts* of a formula are its prime
implicates: the clauses that follow from it while no shorter clause within them does. Together they say what the formula
says (W. V. Quine, The problem of simplifying truth functions, 1952).

A formula is a *conclusion* if the premises together imply it, it is neither always true nor always false, and no part
of it is implied by one premise alone. From `P` and `P → Q` follow `Q`, `Q ∨ R` and `R → Q`, which are conclusions; so
do these, which are not: `P`, `P ∨ R`, `¬P ∨ Q` (implied by one premise), `P ∧ Q` and the premises joined by and (`P` is
a part), `(P → Q) ∨ R` (implied by a premise). The second half of the rule matters: without it, copying the question,
joined by and, would be right wherever anything is.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import combinations
from operator import and_, or_
from typing import Any

from rg_env.core.grading.graders import common
from rg_env.core.grading.graders.common import Config, Entry, Grader
from rg_env.core.grading.parsing import formulas
from rg_env.core.grading.parsing.formulas import Formula

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
    """A conclusion by the rule of the module's head: it follows, and no part of it follows from one premise alone.

    The rule looks at meaning only, so an equivalent formula gets the same verdict, as long as it can be read
    (`formulas.parse`) and names variables of the question. The library pays for whatever follows and is neither a
    tautology nor a single variable: for its own premises joined by and, and for `P ∨ Q` on two questions in three.
    Rows have questions with a conclusion in at most two variables, one draw in five (`library_fixes.is_item`), and no
    variable, or negated one, is right on more than one row in six (`core.data.selection`).
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


MAX_DEPENDS = 10
"""A formula whose truth depends on more variables is not examined, and not a conclusion: no level of the library has
more, and the number of possible parts triples with each."""
_MAX_PREMISE_TOKENS = 20_000  # premises are the library's own: a bound for answers would make a large entry unusable


class Premises:
    """The premises of one question of propositional_logic."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a premise that cannot be read."""
        self.variables: list[str] = sorted(metadata["variables"])
        self._formulas = [self._read(text) for text in metadata["premises"]]
        self._table = formulas.columns(self.variables)
        self._always = formulas.always(self._table)
        self._columns = [formulas.truth(premise, self._table) for premise in self._formulas]
        self._together = reduce(and_, self._columns, self._always)

    def lead_to(self, formula: Formula) -> bool:
        """Whether `formula`, in these variables, is a conclusion."""
        column = formulas.truth(formula, self._table)
        if column in (0, self._always) or self._together & ~column:
            return False
        depends = [name for name, own in self._table.items() if formulas.flipped(column, own) != column]
        if len(depends) > MAX_DEPENDS:
            return False
        others = [name for name in self.variables if name not in depends]
        table = formulas.columns([*depends, *others])  # in this order, rows and columns of `depends` alone come first
        always = formulas.always(table)
        rows = formulas.always(formulas.columns(depends))
        # A clause is false in a cube of the table, where the variables outside of the clause are free. So the parts
        # are the largest cubes in which the formula is false, and a premise implies those where it is false, too.
        free = [table[name] & rows for name in depends]
        false = _cubes(rows & ~formulas.truth(formula, table), free)
        parts = [
            cubes & ~reduce(or_, (false[index | 1 << i] for i in range(len(free)) if not index >> i & 1), 0)
            for index, cubes in enumerate(false)
        ]
        for premise in self._formulas:
            denied = always & ~formulas.truth(premise, table)
            for name in others:
                denied &= formulas.flipped(denied, table[name])
            if any(map(and_, parts, _cubes(denied & rows, free))):
                return False
        return True

    def literals(self) -> list[str]:
        """The variables and negated variables that are conclusions; none if the premises contradict each other."""
        return [text for text, column in self._literals() if self._together and self._is_new(column)]

    def conclusion(self) -> str | None:
        """A conclusion in one literal or an or of two, the shortest; None if there is none, and where the premises
        contradict each other, so that anything follows."""
        if not self._together:
            return None
        literals = list(self._literals())
        found = (text for text, column in literals if self._is_new(column))
        pairs = (f"({a} ∨ {b})" for (a, left), (b, right) in combinations(literals, 2) if self._is_new(left | right))
        return next(found, None) or next(pairs, None)

    def _literals(self) -> Iterator[tuple[str, int]]:
        for name, column in self._table.items():
            yield name, column
            yield f"¬{name}", self._always & ~column

    def _is_new(self, clause: int) -> bool:
        """`lead_to` for the column of a clause, which is its own only part."""
        implied = clause != self._always and not self._together & ~clause
        return implied and all(premise & ~clause for premise in self._columns)

    def _read(self, text: str) -> Formula:
        premise = formulas.parse(text, self.variables, _MAX_PREMISE_TOKENS)
        if premise is None:
            raise ValueError(f"premise {text!r} is not a formula in the variables {self.variables}")
        return premise


def _cubes(column: int, variables: Iterable[int]) -> list[int]:
    """For each set of variables (bit i is variable i): the rows whose cube, with these free, is within `column`."""
    found = [column]
    for variable in variables:
        found += [cubes & formulas.flipped(cubes, variable) for cubes in found]
    return found
