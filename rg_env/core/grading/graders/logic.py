"""Graders for the logic tasks, a parser for propositional formulas, and a check of whether a conclusion follows.

A formula is a tuple: `("var", name)`, `("not", f)`, or `(operator, left, right)` with the operator `and`, `or`,
`implies` or `iff`. As in the library, negation binds most tightly, followed by `and`, `or`, `implies` and `iff`.
Chained implications associate to the right, as usual. Parsing is bounded: a formula always has at most `MAX_LEVELS`
levels and, by default, at most `MAX_ANSWER_TOKENS` tokens.

A conclusion follows from all premises together, and goes beyond what single premises imply. A formula's meaning is
represented by its column in the truth table (`columns`). A *clause* is a disjunction of variables and negated
variables, such as `¬P ∨ Q`. The *parts* of a formula are its prime implicates: the clauses that follow from the formula
and do not contain a shorter clause that also follows. Together, the parts are equivalent to the formula (W. V. Quine,
The problem of simplifying truth functions, 1952).

A formula is a *conclusion* if the premises together imply it, it is neither always true nor always false, and

- no part of it is implied by a single premise, or
- one of the clauses that result from multiplying it out is not implied by any single premise.

For example, `P` and `P → Q` together imply `Q`, `Q ∨ R` and `P ∧ Q`, which are conclusions. They also imply formulas
that are not conclusions. Each of `P`, `P ∨ R`, `¬P ∨ Q` and `(P → Q) ∨ R` is implied by one premise. The conjunction of
the premises, in whatever form, is not a conclusion, even if it is equivalent to one (`P ∧ (P → Q)` to `P ∧ Q`): it can
be written down without any inference. Multiplying out (by distribution and De Morgan's laws, but without resolution)
separates the two, because it turns a combination of premises into clauses that single premises imply.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from itertools import combinations
from operator import and_, or_
from typing import Any

from rg_env.core.grading.graders.common import Config, Entry
from rg_env.core.grading.graders.forms import Unreadable

Formula = tuple[Any, ...]
MAX_ANSWER_TOKENS = 400
MAX_LEVELS = 40
MAX_VARIABLES = 16
_WORDS = {
    "∧": "and", "&": "and", "&&": "and", "/\\": "and", "and": "and", "land": "and", "wedge": "and",
    "∨": "or", "|": "or", "||": "or", "\\/": "or", "or": "or", "lor": "or", "vee": "or",
    "¬": "not", "~": "not", "!": "not", "not": "not", "neg": "not", "lnot": "not",
    "→": "implies", "⇒": "implies", "⟹": "implies", "⊃": "implies", "->": "implies", "=>": "implies", "-->": "implies",
    "==>": "implies", "implies": "implies", "to": "implies", "rightarrow": "implies",
    "↔": "iff", "⇔": "iff", "⟺": "iff", "≡": "iff", "<->": "iff", "<=>": "iff", "<-->": "iff", "<==>": "iff",
    "iff": "iff", "leftrightarrow": "iff",
    "(": "(", "[": "(", ")": ")", "]": ")",
}  # fmt: skip
_TOKEN = re.compile(r"<-{1,2}>|<={1,2}>|-{1,2}>|={1,2}>|&&|\|\||\\/|/\\|\\?[A-Za-z]+|\S")
_BINDING = {"iff": 1, "implies": 2, "or": 3, "and": 4}


_LINKS = {"is", "a", "an", "the", "are", "both", "and"}
_HARMLESS = _LINKS | {
    *("so", "thus", "hence", "therefore", "while", "whereas", "but", "that", "final", "correct", "answer", "solution"),
    *("conclusion", "we", "conclude"),
}
"""Words that may occur between claims. Any other word, such as a denial or a stranger's name, makes an answer wrong."""
MAX_DEPENDS = 10
"""Maximum number of variables that a formula may depend on for its parts to be examined. No difficulty level in the
library has more variables, and the number of possible parts triples with each additional variable."""
_MAX_STEPS = 3_000
"""Maximum number of pairs of clauses that are considered to multiply out an answer."""
MAX_PREMISE_TOKENS = 20_000  # premises are from the library, and the limit for answers would reject long premises


def knights_knaves(answer: str, entry: Entry, config: Config) -> float:
    """Accept an answer that states the right role of every inhabitant, in any order.

    There is no partial credit because guessing gets about half of the roles right.
    """
    metadata = entry["metadata"]
    terms = metadata["knight_knave_terms"]
    roles = {terms[key] + ending: key == "knight" for key in ("knight", "knave") for ending in ("", "s", "es")}
    right = {name.casefold(): bool(value) for name, value in zip(metadata["names"], metadata["solution"], strict=True)}
    return _claims(answer, set(right), roles) == right


def _claims(answer: str, names: set[str], roles: dict[str, bool]) -> dict[str, bool] | None:
    """Return the role of each name in the text, or None if the text contradicts itself or contains a word that is not
    in `_HARMLESS`. Only words in `_LINKS` may come between a name and its role."""
    claims: dict[str, bool] = {}
    pending: list[str] = []  # names that do not have a role yet
    plural = False
    last: bool | None = None
    for word in re.findall(r"[^\W\d_]+|[¬~?]|!(?=\s*[\w(])", answer.casefold()):
        if word in names:
            pending.append(word)
        elif word in roles:
            role = roles[word]
            for name in pending if plural else pending[-1:]:
                if claims.setdefault(name, role) != role:
                    return None
            if not pending and role != last:  # rejects `a knight or knave`, and a role without a name
                return None
            pending, plural, last = [], False, role
        elif word not in (_LINKS if pending else _HARMLESS):
            return None
        plural = plural or (word == "are" and bool(pending))
    return claims


def family_relationships(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored relationship, ignoring case and hyphens."""
    words = answer.casefold().replace("-", " ").replace("‑", " ").split()
    return words == str(entry["answer"]).replace("-", " ").split()


def propositional_logic(answer: str, entry: Entry, config: Config) -> float:
    """Accept a conclusion as defined in the module docstring: the premises together imply it, and it goes
    beyond what single premises imply.

    The library's grader accepts any formula that follows and is neither a tautology nor a single
    variable. For example, the library's grader accepts the conjunction of the premises and, for two questions in three,
    `P ∨ Q`. Only questions with a conclusion in at most two variables become rows (one draw in five; see
    `library_fixes.left_out`). No variable or negated variable is a right answer to more than one row in six (see
    `core.data.selection`).
    """
    premises = Premises(entry["metadata"])
    return premises.lead_to(parse(answer.strip().lstrip("∴⊢ "), premises.variables))


class Premises:
    """The premises of a propositional_logic question."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Parse the premises. Raises `Unreadable`, a `ValueError`, if a premise cannot be parsed."""
        self.variables: list[str] = sorted(metadata["variables"])
        self._formulas = [parse(text, self.variables, MAX_PREMISE_TOKENS) for text in metadata["premises"]]
        self._table = columns(self.variables)
        self._always = always(self._table)
        self._columns = [truth(premise, self._table) for premise in self._formulas]
        self._together = reduce(and_, self._columns, self._always)

    def lead_to(self, formula: Formula) -> bool:
        """Whether `formula`, which may use only the question's variables, is a conclusion."""
        column = truth(formula, self._table)
        if column in (0, self._always) or self._together & ~column:
            return False
        return self._has_new_clause(formula) or self._has_only_new_parts(formula, column)

    def _has_new_clause(self, formula: Formula) -> bool:
        """Whether multiplying out the formula yields a clause that no single premise implies. The result is False for
        formulas that would take more than `_MAX_STEPS` steps."""
        names = list(self._table)
        literals = [*self._table.values(), *(self._always & ~own for own in self._table.values())]
        n_steps = 0

        def clauses(formula: Formula, positive: bool) -> set[int]:
            """Return the clauses of the formula, or of its negation. Bit i of a clause is 1 if it contains literal
            i."""
            nonlocal n_steps
            kind, *parts = formula
            if kind == "var":
                return {1 << names.index(parts[0]) + (0 if positive else len(names))}
            if kind == "not":
                return clauses(parts[0], not positive)
            if kind == "iff":
                a, b = parts
                alike = ("and", ("implies", a, b), ("implies", b, a))
                return clauses(alike if positive else ("and", ("or", a, b), ("not", ("and", a, b))), True)
            signs = (positive != (kind == "implies"), positive)
            left, right = (clauses(part, sign) for part, sign in zip(parts, signs, strict=True))
            n_steps += len(left) * len(right)
            if n_steps > _MAX_STEPS:
                raise Unreadable
            return left | right if (kind == "and") == positive else {one | other for one in left for other in right}

        try:
            found = clauses(formula, True)
        except Unreadable:
            return False
        return any(
            self._is_new(reduce(or_, (own for i, own in enumerate(literals) if clause >> i & 1))) for clause in found
        )

    def _has_only_new_parts(self, formula: Formula, column: int) -> bool:
        """Whether no single premise implies any part of the formula with this column."""
        depends = [name for name, own in self._table.items() if flipped(column, own) != column]
        if len(depends) > MAX_DEPENDS:
            return False
        others = [name for name in self.variables if name not in depends]
        table = columns([*depends, *others])  # in this order, the part of the table for `depends` alone comes first
        every = always(table)
        rows = always(columns(depends))
        # A clause is false on a cube of the table: the rows in which all its literals are false. The parts of a formula
        # correspond to the largest cubes on which the formula is false. A premise implies a part if the premise is
        # false on the same cube.
        free = [table[name] & rows for name in depends]
        false = _cubes(rows & ~truth(formula, table), free)
        parts = [
            cubes & ~reduce(or_, (false[index | 1 << i] for i in range(len(free)) if not index >> i & 1), 0)
            for index, cubes in enumerate(false)
        ]
        for premise in self._formulas:
            denied = every & ~truth(premise, table)
            for name in others:
                denied &= flipped(denied, table[name])
            if any(map(and_, parts, _cubes(denied & rows, free))):
                return False
        return True

    def literals(self) -> list[str]:
        """Return the variables and negated variables that are conclusions. The list is empty if the premises contradict
        each other."""
        return [text for text, column in self._literals() if self._together and self._is_new(column)]

    def conclusion(self) -> str | None:
        """Return the shortest conclusion that is a literal or a disjunction of two literals. Return None if there is no
        such conclusion, or if the premises contradict each other and thus imply everything."""
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
        """Whether the clause with this column is a conclusion. The only part of a clause is the clause itself."""
        implied = clause != self._always and not self._together & ~clause
        return implied and all(premise & ~clause for premise in self._columns)


def _cubes(column: int, variables: Iterable[int]) -> list[int]:
    """Return, for each set of variables, the rows that stay within `column` for all values of these variables. In a
    set's list index, bit i is 1 if the set contains variable i."""
    found = [column]
    for variable in variables:
        found += [cubes & flipped(cubes, variable) for cubes in found]
    return found


# Formulas


def parse(text: str, variables: Collection[str], max_tokens: int = MAX_ANSWER_TOKENS) -> Formula:
    """Parse a formula that uses only `variables`. Raises `Unreadable` if `text` is not a formula."""
    words = _TOKEN.findall(text)
    if len(words) > max_tokens:
        raise Unreadable
    tokens = []
    for word in words:
        sign = (
            "var" if word in variables else _WORDS.get(word.removeprefix("\\").lower() if word[1:].isalpha() else word)
        )
        if sign is None:
            raise Unreadable
        tokens.append((sign, word))
    tokens = [("end", ""), *reversed(tokens)]  # the next token is the last item
    formula = _binary(tokens, 1, 0)
    if len(tokens) > 1:
        raise Unreadable
    return formula


def _binary(tokens: list[tuple[str, str]], weakest: int, depth: int) -> Formula:
    """Consume the longest formula whose operators bind at least as tightly as `weakest`."""
    left = _unary(tokens, depth)
    while (binding := _BINDING.get(tokens[-1][0], 0)) >= weakest:
        operator, _ = tokens.pop()
        left = (operator, left, _binary(tokens, binding + (operator != "implies"), depth + 1))
    return left


def _unary(tokens: list[tuple[str, str]], depth: int) -> Formula:
    kind, name = tokens.pop()
    if depth > MAX_LEVELS:
        raise Unreadable
    if kind == "var":
        return ("var", name)
    if kind == "not":
        return ("not", _unary(tokens, depth + 1))
    if kind == "(":
        inner = _binary(tokens, 1, depth + 1)
        if tokens.pop()[0] == ")":
            return inner
    raise Unreadable


def columns(variables: Collection[str]) -> dict[str, int]:
    """Return each variable's column in the truth table, where bit i is the variable's value in row i. The first
    variable's column alternates between 0 and 1."""
    if len(variables) > MAX_VARIABLES:
        raise ValueError(f"a truth table can have at most {MAX_VARIABLES} variables, not {len(variables)}")
    every = always(variables)
    widths = {name: 1 << index for index, name in enumerate(variables)}
    # The quotient is 1 in `width` rows, then 0 in the next `width` rows, and so on.
    return {name: every // ((1 << width) + 1) << width for name, width in widths.items()}


def always(variables: Collection[str]) -> int:
    """Return the column of a tautology in the truth table."""
    return (1 << (1 << len(variables))) - 1


def truth(formula: Formula, table: Mapping[str, int]) -> int:
    """Return the formula's column in the truth table, where bit i is 1 if the formula is true in row i."""
    every = always(table)

    def column(formula: Formula) -> int:
        kind, *parts = formula
        if kind == "var":
            return table[parts[0]]
        values = [column(part) for part in parts]
        match kind:
            case "not":
                return every ^ values[0]
            case "and":
                return values[0] & values[1]
            case "or":
                return values[0] | values[1]
            case "implies":
                return (every ^ values[0]) | values[1]
        return every ^ values[0] ^ values[1]

    return column(formula)


def flipped(column: int, variable: int) -> int:
    """Return the column after swapping the rows where a variable is true with the rows where it is false. `variable` is
    the variable's own column."""
    width = (variable & -variable).bit_length() - 1
    return (column & variable) >> width | (column << width & variable)
