"""Graders for the algebra tasks, and a parser for expanded polynomials."""

import importlib
import re
from collections.abc import Callable, Collection
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise

from rg_env.core.grading.graders import forms
from rg_env.core.grading.graders.calculus import Integrand, is_antiderivative
from rg_env.core.grading.graders.common import Config, Entry
from rg_env.core.grading.graders.expressions import MAX_CHARS, Node, exact, parse
from rg_env.core.grading.graders.forms import Unreadable

Complex = tuple[Fraction, Fraction]
"""Real and imaginary parts."""
Monomial = tuple[tuple[str, int], ...]
"""Variables in alphabetical order, each with its exponent. For example, `x*y**2` is `(("x", 1), ("y", 2))`."""

_PLACES = 4
"""Number of decimal places that polynomial_equations requires."""
_NO_ROOTS = {"", '""', "''", "none", "no real solutions", "no real solution", "no real values", "no real roots"}
_MAX_CHARS = 2_000
_EXACT_FLOATS = 2**53
_FLOAT_ERROR = Fraction(12, 10**17)
"""Maximum relative error of a stored float: half a unit in the last place."""
# Letters that may name a constant of integration. Letters for Euler's number, the imaginary unit, functions and
# variables are excluded.
_LETTERS = "ABCDKLMNPQRSabcdklmnpqrs"
_CONSTANT = re.compile(
    rf"\\(?:text|mathrm|textrm|textit)\s*\{{\s*(?:const(?:ant)?\.?|[{_LETTERS}])\s*\}}"
    r"|(?<![A-Za-z\\])(?:"
    r"[Cc]onst(?:\.|ant(?: of integration)?)?(?![A-Za-z])"
    rf"|[{_LETTERS}](?:_?\d{{1,2}}|_\{{\s*\w{{1,2}}\s*\}}|_[A-Za-z])?(?![A-Za-z0-9_({{\[])"
    r")"
)
_WHERE = re.compile(r" \$?[A-Za-z]\$? is (?:an?|the) (?:arbitrary )?constant(?: of integration)?\)?\.?")
_REPEATED = re.compile(r"constant[A-Z] +constant[A-Z]")
"""Matches adjacent constants, such as `C C`, which are rejected rather than treated as a product."""
_MAX_CONSTANTS = 8
_DECIMAL = r"(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,3})?"
_IMAGINARY = rf"(?:{_DECIMAL}\*?)?[ij]"
_COMPLEX = re.compile(
    rf"(?:(?P<real>[+-]?{_DECIMAL})(?P<imaginary>[+-]{_IMAGINARY})?"
    rf"|(?P<first>[+-]?{_IMAGINARY})(?P<second>[+-]{_DECIMAL})?)"
)
_SPLIT_NUMBER = re.compile(r"\d\s+\d")


def _complex(text: str) -> Complex:
    """Parse a complex value, such as `3 - 2i`, `-2.0i + 3`, `(3-2j)`, `7` or `-i`. Calculations are rejected."""
    text = forms.plain_thousands(forms.plain_digits(text.strip())).lower().replace("\\,", "")
    if len(text) > _MAX_CHARS or _SPLIT_NUMBER.search(text):
        raise Unreadable
    text = "".join(text.split()).replace("+-", "-")
    text = re.sub(r"\+\((-[\d.]+)\)(?=\*?[ij]$)", r"\1", text)  # `3 + (-2)i`
    while text[:1] == "(" and text[-1:] == ")":
        text = text[1:-1]
    match = forms.matched(_COMPLEX, text)
    coefficient = (match["imaginary"] or match["first"] or "0i")[:-1].removesuffix("*")
    imaginary = forms.number(coefficient + "1" if coefficient in ("", "+", "-") else coefficient)
    return forms.number(match["real"] or match["second"] or "0"), imaginary


def _computed(a: Complex, b: Complex, operation: str) -> Complex:
    if operation in "+-":
        sign = 1 if operation == "+" else -1
        return a[0] + sign * b[0], a[1] + sign * b[1]
    if operation == "/":
        norm = b[0] * b[0] + b[1] * b[1]
        b = b[0] / norm, -b[1] / norm
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def complex_arithmetic(answer: str, entry: Entry, config: Config) -> float:
    """Accept the operation's result as `a + bi`, with the real and imaginary parts in either order. If the stored
    result is an inexact float, which can happen with large bounds, the exact result is also accepted."""
    value, metadata = _complex(answer), entry["metadata"]
    if all(part == int(part) and abs(part) <= _EXACT_FLOATS for part in metadata["result"]):
        return value == tuple(metadata["result"])
    numbers = (metadata[name] for name in ("num1", "num2", "result"))
    a, b, stored = ((Fraction(real), Fraction(imaginary)) for real, imaginary in numbers)
    return _close(value, stored) or _close(value, _computed(a, b, metadata["operation"]))


def _close(value: Complex, right: Complex) -> bool:
    """Whether the values are equal, up to the rounding of whole numbers that floats cannot represent exactly."""
    return all(
        mine == theirs or (abs(theirs) > _EXACT_FLOATS and abs(mine - theirs) <= _FLOAT_ERROR * abs(theirs))
        for mine, theirs in zip(value, right, strict=True)
    )


def antiderivative(answer: str, entry: Entry, config: Config) -> float:
    """Accept any antiderivative of the integrand, with or without constants of integration under any common name.

    A leading `F(x) =` is ignored. The variable's letter case is also ignored, because questions write `dx` even if the
    variable is `X`.
    """
    variable, source = str(entry["metadata"]["variable"]), str(entry["metadata"]["integrand"])
    integrand = _integrand(source, variable)
    formula, _, explained = answer.rpartition("where")
    if formula and _WHERE.fullmatch(explained):
        answer = formula.rstrip(" ,;(")
    answer = answer[: MAX_CHARS + 1]  # longer answers are rejected
    if left := re.match(r"\s*(?:[FGIfgy]\s*(?:\(\s*[xX]\s*\)\s*)?|(?:∫|\\int)[^=]*)=", answer[:_MAX_CHARS]):
        answer = answer[left.end() :]
    either_case = variable, variable.swapcase()
    text, constants = _with_constants_named(answer, either_case)
    if len(constants) > _MAX_CONSTANTS or _REPEATED.search(text):
        return 0.0
    try:
        node = parse(text, (variable, *constants))
    except Unreadable:
        node = parse(text, (variable.swapcase(), *constants))
    return is_antiderivative(node, integrand, either_case, constants, f"{source}\n{answer}")


@lru_cache(maxsize=256)
def _integrand(source: str, variable: str) -> Integrand:
    return Integrand.of(parse(source, (variable,), bounded=False))


def _with_constants_named(text: str, variables: Collection[str]) -> tuple[str, list[str]]:
    """Return the text with each constant of integration replaced by a plain name, and a list of these names.

    Only a separate word counts as a constant, as in `2*C`, `+ C_1`, `+ c_{0}`, `+ D` or `+ const`. The `C` in `xC` or
    `C(x)` does not count, nor does a letter in a longer word.
    """
    found: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        written = match[0]
        if written in variables:
            return written
        return f" {found.setdefault(written, 'constant' + chr(ord('A') + len(found)))} "

    return _CONSTANT.sub(name, text.translate(forms.SUBSCRIPTS)), list(found.values())


def parse_expanded(text: str, variables: Collection[str]) -> dict[Monomial, Fraction]:
    """Parse an expanded polynomial with like terms collected. Each term may contain at most one number and each
    variable at most once, and no two terms may have the same variables and powers. The order of terms and factors does
    not matter."""
    polynomial = parse(forms.ungrouped(text), variables, bounded=False)
    found: dict[Monomial, Fraction] = {}
    for term in _parts(polynomial, "sum"):
        first, *others = _parts(term[1] if term[0] == "negative" else term, "product")
        numbers: list[str] = []
        powers: dict[str, int] = {}
        for factor in (first[1] if first[0] == "negative" else first, *others):
            match factor:
                case ("number", digits) if not numbers:
                    numbers.append(digits)
                case ("name", name) if name not in powers:
                    powers[name] = 1
                case ("power", ("name", name), ("number", digits)) if (
                    name not in powers and len(digits) <= 4 and digits.isdecimal()
                ):
                    powers[name] = int(digits)
                case _:
                    raise Unreadable
        monomial = tuple(sorted(power for power in powers.items() if power[1]))
        if monomial in found:
            raise Unreadable
        found[monomial] = Fraction(*numbers or (1,)) * (-1) ** ((term[0] == "negative") + (first[0] == "negative"))
    return {monomial: value for monomial, value in found.items() if value}


def _parts(node: Node, kind: str) -> tuple[Node, ...]:
    """Return the parts of a sum or product node, or the node itself as the only part if it is of another kind."""
    return node[1:] if node[0] == kind else (node,)


def polynomial_equations(answer: str, entry: Entry, config: Config) -> float:
    """Accept the list of all distinct real roots, in any order, correct to at least four decimal places.

    Both truncated and rounded values are accepted because the question is ambiguous. The grader counts the roots itself
    because the library misses some roots of polynomials of degree 4.
    """
    metadata = entry["metadata"]
    variable = str(metadata["variable"])
    sequence = _sturm_sequence(str(metadata["polynomial_expr"]), variable)
    values = _values(answer, variable)
    if not sequence:  # the equation is 0 = 0, so every number is a root
        return values == sorted(Fraction(str(root)) for root in metadata["real_solutions"])
    bound = Fraction(1 + sum(map(abs, sequence[0])))
    n_roots = partial(_count_roots, sequence)
    return len(values) == n_roots(-bound, bound) and _all_matched(values, n_roots)


@lru_cache(maxsize=256)
def _sturm_sequence(source: str, variable: str) -> list[list[int]]:
    """Return the Sturm sequence of the polynomial's square-free part, or an empty list for the zero polynomial. Each
    polynomial is a list of whole coefficients, starting with that of the highest power."""
    polynomial = parse_expanded(source, (variable,))
    if not polynomial:
        return []
    sympy = importlib.import_module("sympy")  # imported here because the import takes a quarter of a second
    degrees = {(sum(power for _, power in monomial),): sympy.Rational(value) for monomial, value in polynomial.items()}
    sequence = sympy.Poly.from_dict(degrees, sympy.Symbol(variable), domain="QQ").sturm()
    return [list(map(int, each.clear_denoms()[1].all_coeffs())) for each in sequence]


def _count_roots(sequence: list[list[int]], low: Fraction, high: Fraction) -> int:
    """Count the distinct roots in the closed interval by Sturm's theorem."""
    at_low, at_high = _values_at(sequence, low), _values_at(sequence, high)
    return _sign_changes(at_low) - _sign_changes(at_high) + (at_low[0] == 0)


def _values_at(sequence: list[list[int]], point: Fraction) -> list[int]:
    """Evaluate each polynomial, multiplied by a positive number so that the value is whole."""
    above, below = point.as_integer_ratio()
    values = []
    for polynomial in sequence:
        value, scale = 0, 1
        for coefficient in polynomial:
            value = value * above + coefficient * scale
            scale *= below
        values.append(value)
    return values


def _sign_changes(values: list[int]) -> int:
    return sum((one < 0) != (other < 0) for one, other in pairwise(filter(None, values)))


def _values(answer: str, variable: str) -> list[Fraction]:
    """Return the sorted numbers in a list such as `-0.5, 1/3`, `x = 1 or x = 2` or `[1, 2]`. The result is empty if the
    answer states that there are no roots."""
    text = re.sub(r"\\text ?\{([^{}]*)\}|\\q?quad(?![a-z])|\\[,; ]|\$", r" \1 ", answer.translate(forms.SUBSCRIPTS))
    text = re.sub(rf"^\s*{re.escape(variable)}\s*(?:∈|\\in\b)", "", text).strip().strip("[](){}\\").strip()
    if text.rstrip(".").lower() in _NO_ROOTS:
        return []
    if len(text) > _MAX_CHARS:
        raise Unreadable
    values = []
    for part in re.split(r"[,;\n]|\band\b|\bor\b", text):
        name, equals, number = part.rpartition("=")
        if equals and not re.fullmatch(rf"{re.escape(variable)}(?:_?\{{?\d\}}?)?", name.strip()):
            raise Unreadable
        values.append(forms.rational(number.strip().strip("'\"")))
    return sorted(values)


def _all_matched(values: list[Fraction], n_roots: Callable[[Fraction, Fraction], int]) -> bool:
    """Whether the sorted `values` can be matched with distinct roots that round or truncate to them.

    `n_roots` counts the distinct roots in a closed interval.
    """
    unit = Fraction(1, 10**_PLACES)
    start = end = values[0] if values else unit
    members = 0
    for value in values:
        # A positive value truncated to four places is up to one unit below its root. A negative truncated value is up
        # to one unit below or above its root, and a rounded value is up to half a unit away from its root.
        cut = (value / unit).denominator == 1
        low = value - (unit if cut and value < 0 else unit / 2)
        high = value + (unit if cut and value else unit / 2)
        if not members or low > end:
            start, end, members = low, high, 0
        end = max(end, high)
        members += 1
        if not n_roots(low, high) or n_roots(start, end) < members:
            return False
    return True


def polynomial_multiplication(answer: str, entry: Entry, config: Config) -> float:
    """Accept the expanded product with like terms collected. An unexpanded product is wrong."""
    variables = tuple(map(str, entry["metadata"]["variables"]))
    if len(answer) > 2 * len(entry["answer"]) + _MAX_CHARS:
        return 0.0
    return parse_expanded(answer, variables) == parse_expanded(str(entry["answer"]), variables)


def simple_equations(answer: str, entry: Entry, config: Config) -> float:
    """Accept a number that solves the equation, with or without a leading `x =`."""
    variable = str(entry["metadata"]["variable"])
    left, right = (parse(side, (variable,), bounded=False) for side in entry["metadata"]["equation"].split("="))
    name, equals, number = re.sub(r"\bis\b", "=", answer).rpartition("=")
    if equals and not re.fullmatch(rf"(?i:(?:the )?value of )?{re.escape(variable)}|", name.strip()):
        return 0.0
    value = {variable: forms.rational(forms.unwrap(number))}
    return exact(left, value) == exact(right, value)
