"""countdown, puzzle24, polynomial_equations and intermediate_integration: sympy only for what becomes a question."""

import math
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from types import SimpleNamespace
from typing import Any


class _Expression:
    """A random expression of the number puzzles, whose value is an integer after every step. sympy builds only the
    expressions that become questions, because it takes 99% of the time."""

    def __init__(self, config: Any, rng: random.Random, names: str, num_terms: int) -> None:
        self._names = names
        self._steps: list[str] = []
        numbers = [rng.randint(config.min_value, config.max_value) for _ in range(num_terms)]
        value = numbers[0]
        for i in range(1, num_terms):
            step = rng.choice(config.operators)
            if step not in ("+", "-", "*"):
                remaining = numbers[i:]
                rng.shuffle(remaining)
                divisor = next((number for number in remaining if value % number == 0), 0)
                numbers[i] = divisor or numbers[i]
                step = "/" if divisor else "-"
            match step:
                case "+":
                    value += numbers[i]
                case "-":
                    value -= numbers[i]
                case "*":
                    value *= numbers[i]
                case _:
                    value //= numbers[i]
            self._steps.append(step)
        self.numbers = numbers
        self.value = value

    def __str__(self) -> str:
        from sympy import symbols

        terms = symbols(f"{self._names}:{len(self.numbers)}")
        built = terms[0]
        for step, term in zip(self._steps, terms[1:], strict=True):
            match step:
                case "+":
                    built = built + term
                case "-":
                    built = built - term
                case "*":
                    built = built * term
                case _:
                    built = built / term
        text = str(built)
        for number in reversed(range(len(terms))):  # longer names first
            text = text.replace(str(terms[number]), str(self.numbers[number]))
        return text


def puzzle24(module: Any) -> None:
    class Found:
        """The expression, which the library prints, and evaluates with `subs`."""

        def __init__(self, expression: _Expression) -> None:
            self._expression = expression

        def subs(self, values: object) -> int:
            return self._expression.value

        def __str__(self) -> str:
            return str(self._expression)

    def candidate(self: Any, rng: random.Random, num_terms: int) -> tuple[Found, list[int], tuple[()]]:
        expression = _Expression(self.config, rng, "x", num_terms)
        return Found(expression), expression.numbers, ()

    module.Puzzle24Dataset._generate_candidate_expression = candidate


def countdown(module: Any) -> None:
    attempts = 100

    def generate(self: Any, rng: random.Random) -> tuple[str, list[int], int]:
        num_terms = rng.randint(self.config.min_numbers, self.config.max_numbers)
        for _ in range(attempts):
            found = _Expression(self.config, rng, "x_0", num_terms)
            if self.config.min_target <= found.value <= self.config.max_target:
                return str(found), found.numbers, found.value
        raise ValueError(f"Failed to generate valid expression after {attempts} attempts")

    module.CountdownDataset._generate_expression = generate


def polynomial_equations(module: Any) -> None:
    solve = module.solve

    class Polynomial:
        """Integer coefficients by exponent. sympy builds only the polynomials that become questions."""

        def __init__(self, variable: str, coefficients: Mapping[int, int]) -> None:
            self.variable = variable
            self.coefficients = {exponent: each for exponent, each in coefficients.items() if each}

        def built(self) -> Any:
            from sympy import Add, Symbol

            x = Symbol(self.variable)
            return Add(*(each * x**exponent for exponent, each in self.coefficients.items()))

        def __str__(self) -> str:
            return str(self.built())

    def polynomial(self: Any, rng: random.Random, variable: str, degree: int, num_terms: int) -> Polynomial:
        exponents = [degree, *(rng.randint(0, degree) for _ in range(num_terms - 1))]
        coefficients = dict.fromkeys(exponents, 0)
        for exponent in exponents:
            each = rng.randint(self.config.min_value, self.config.max_value)
            coefficients[exponent] += -each if "-" in self.config.operators and rng.random() < 0.5 else each
        return Polynomial(variable, coefficients)

    def solutions(found: Polynomial, variable: str, **options: Any) -> list[Any]:
        lowest, highest = (pick(found.coefficients, default=0) for pick in (min, max))
        if highest - lowest > 3:
            return list(solve(found.built(), variable, **options))
        roots = _real_roots([found.coefficients.get(each, 0) for each in range(lowest, highest + 1)])
        zero = {0.0} if lowest else set()
        return [SimpleNamespace(is_real=True, evalf=lambda root=root: root) for root in {*zero, *roots}]

    module.PolynomialEquationsDataset._generate_polynomial_expr = polynomial
    module.expand = lambda found: found
    module.Eq = lambda found, zero: found
    module.solve = solutions


def _real_roots(coefficients: Sequence[int]) -> list[float]:
    """Return the roots that sympy recognizes as real, of a polynomial of at most the third degree whose first and last
    coefficients are not 0. The three real roots of an irreducible cubic are not among them."""
    match coefficients:
        case [b, a]:
            return [float(Fraction(-b, a))]
        case [c, b, a]:
            if (square := b * b - 4 * a * c) < 0:
                return []
            if math.isqrt(square) ** 2 == square:
                return [float(Fraction(-b + sign * math.isqrt(square), 2 * a)) for sign in (1, -1)]
            with localcontext(prec=50):
                return [float((-b + sign * Decimal(square).sqrt()) / (2 * a)) for sign in (1, -1)]
        case [d, c, b, a]:
            for denominator in _divisors(a):
                for numerator in _divisors(d):
                    for root in (Fraction(numerator, denominator), Fraction(-numerator, denominator)):
                        if ((a * root + b) * root + c) * root + d == 0:
                            rest = [a * root * root + b * root + c, a * root + b, Fraction(a)]
                            scale = math.lcm(*(each.denominator for each in rest))
                            return [float(root), *_real_roots([int(each * scale) for each in rest])]
            if 18 * a * b * c * d - 4 * b**3 * d + b * b * c * c - 4 * a * c**3 - 27 * a * a * d * d > 0:
                return []
            low, high = -(bound := 1 + max(map(abs, coefficients)) / abs(a)), bound
            for _ in range(100):
                middle = (low + high) / 2
                if (((a * middle + b) * middle + c) * middle + d > 0) == (a > 0):
                    high = middle
                else:
                    low = middle
            near = Fraction(middle)
            value, slope = ((a * near + b) * near + c) * near + d, (3 * a * near + 2 * b) * near + c
            return [float(near - value / slope)]
    return []


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, abs(number) + 1) if number % each == 0]


def intermediate_integration(module: Any) -> None:
    import sympy
    from sympy.core.function import AppliedUndef

    integrals: dict[Any, Any] = {}

    def integrate(integrand: Any, x: Any) -> Any:
        factor, rest = integrand.as_coeff_Mul()
        if rest.atoms(AppliedUndef):  # for example, sympy.Function("sin"), which sympy does not know
            return factor * sympy.Integral(rest, x)
        if (found := _by_substitution(sympy, integrand, x)) is not None:
            return found
        if sympy.sin in (functions := {each.func for each in rest.args}) and sympy.cos in functions:
            factor, rest = 1, integrand  # whether the integral is a sine or a cosine depends on the factor, too
        if rest not in integrals:
            integrals[rest] = sympy.integrate(rest, x)
        integral = integrals[rest]
        # sympy integrates a polynomial times an exponential function as a whole, so the factor ends up in the sum.
        sums = [each for each in integral.args if each.is_Add] if integral.is_Mul else []
        return integral.xreplace({sums[0]: factor * sums[0]}) if sums else factor * integral

    module.sympy = SimpleNamespace(**{**vars(sympy), "integrate": integrate})


def _by_substitution(sympy: Any, integrand: Any, x: Any) -> Any:
    """Return the integral of cos(u) sin(u)^n, sin(u) cos(u)^n (n > 1) or u' exp(u), times a number, as sympy writes it,
    or None for other integrands."""
    factor, rest = integrand.as_coeff_Mul()
    parts = [each.as_base_exp() for each in sympy.Mul.make_args(rest)]
    exponents = [inner for base, inner in parts if base is sympy.S.Exp1]
    if len(exponents) == 1 and exponents[0] != x and x in exponents[0].free_symbols:
        (u,) = exponents
        ratio = sympy.cancel(integrand / sympy.exp(u) / u.diff(x))
        return ratio * sympy.exp(u) if ratio.is_number else None
    powers = {base.func: exponent for base, exponent in parts if base.func in (sympy.sin, sympy.cos)}
    arguments = {base.args[0] for base, _ in parts if base.args}
    if len(parts) != 2 or len(powers) != 2 or len(arguments) != 1:
        return None
    (u,) = arguments
    by = factor / u.diff(x)
    if powers[sympy.cos] == powers[sympy.sin]:
        return None
    if powers[sympy.cos] == 1:
        return by * sympy.sin(u) ** (powers[sympy.sin] + 1) / (powers[sympy.sin] + 1)
    if powers[sympy.sin] == 1:
        return -by * sympy.cos(u) ** (powers[sympy.cos] + 1) / (powers[sympy.cos] + 1)
    return None
