"""Solvers of tasks on polynomials, by lists of coefficients with the constant first."""

import re
from fractions import Fraction
from itertools import pairwise

Polynomial = list[Fraction]


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    found = [Fraction(0)] * (len(one) + len(other) - 1)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            found[i + j] += a * b
    return found


def _sum(one: Polynomial, other: Polynomial) -> Polynomial:
    size = max(len(one), len(other))
    return [(one[i] if i < len(one) else 0) + (other[i] if i < len(other) else 0) for i in range(size)]


def _terms(text: str) -> Polynomial:
    """A sum of `a*x**n/b`, without brackets."""
    found: Polynomial = [Fraction(0)]
    for sign, term in re.findall(r"([+-]?)\s*([^+\s-]+)", text):
        coefficient, power = Fraction(-1 if sign == "-" else 1), 0
        for mark, factor in re.findall(r"(^|/|\*)(?!\*)(\d+|[a-zA-Z](?:\*\*\d+)?)", term):
            if factor[0].isdigit():
                coefficient = coefficient / int(factor) if mark == "/" else coefficient * int(factor)
            else:
                power += int(factor[3:] or 1)
        found = _sum(found, [Fraction(0)] * power + [coefficient])
    return found


def _factors(text: str) -> Polynomial:
    """A product of bracketed sums and of terms."""
    found: Polynomial = [Fraction(1)]
    bare = re.sub(r"\([^()]*\)", "", text).strip("* ")
    for group in re.findall(r"\(([^()]*)\)", text):
        found = _product(found, _terms(group))
    return _product(found, _terms(re.sub(r"\*(?=\*\(|$)", "", bare))) if bare.strip("* ") else found


def _text(polynomial: Polynomial, variable: str) -> str:
    terms = [f"{a}*{variable}**{n}" for n, a in enumerate(polynomial) if a]
    return " + ".join(terms) or "0"


def polynomial_multiplication(question: str) -> str:
    expression = re.findall(r"^(?:Simplify this expression|Calculate the following): (.*)$", question, re.MULTILINE)[0]
    variable = re.findall(r"[a-zA-Z]", expression)
    found = _factors(expression) if "(" in expression else _terms(expression)
    return _text(found, variable[0] if variable else "x")


def simple_integration(question: str) -> str:
    integrand = re.findall(r"∫ (.*) d[a-zA-Z]\b", question)[0]
    variable = re.findall(r" d([a-zA-Z])$", question, re.MULTILINE)[0]
    terms = [f"{a / (n + 1)}*{variable}**{n + 1}" for n, a in enumerate(_terms(integrand)) if a]
    return " + ".join([*(re.sub(r"(-?\d+)/(\d+)", r"(\1/\2)", term) for term in terms), "C"])


def simple_equations(question: str) -> str:
    equation = re.findall(r"(?:Solve for \w|satisfies|equation): (.*=.*)$", question)[0]
    left, right = (_terms(side) for side in equation.split("="))
    constant, *slope = _sum(left, [-a for a in right])
    return str(-constant / slope[0]) if slope and slope[0] else "0"


def _value(polynomial: Polynomial, x: Fraction) -> Fraction:
    found = Fraction(0)
    for a in reversed(polynomial):
        found = found * x + a
    return found


def _real_roots(polynomial: Polynomial) -> list[Fraction]:
    """Between the roots of the derivative the polynomial is monotone: bisect there."""
    while polynomial and not polynomial[-1]:
        polynomial = polynomial[:-1]
    if len(polynomial) < 2:
        return []
    if len(polynomial) == 2:
        return [-polynomial[0] / polynomial[1]]
    bound = 1 + max(abs(a / polynomial[-1]) for a in polynomial[:-1])
    turns = _real_roots([n * a for n, a in enumerate(polynomial)][1:])
    points = [-bound, *turns, bound]
    found = [turn for turn in turns if abs(_value(polynomial, turn)) < Fraction(1, 10**15)]
    for low, high in pairwise(points):
        if low in found or high in found or _value(polynomial, low) * _value(polynomial, high) > 0:
            continue
        for _ in range(70):
            middle = (low + high) / 2
            low, high = (middle, high) if _value(polynomial, low) * _value(polynomial, middle) > 0 else (low, middle)
            low, high = (Fraction(round(x * 2**80), 2**80) for x in (low, high))
        found.append(low)
    return sorted(found)


def polynomial_equations(question: str) -> str:
    equation = re.findall(r"(?:.*: )?([^:\n]*\d[^:\n=]*= 0)$", question, re.MULTILINE)[0]
    roots = [round(float(root), 4) + 0.0 for root in _real_roots(_terms(equation.removesuffix("= 0").strip()))]
    return ", ".join(f"{root:.4f}" for root in dict.fromkeys(roots)) or '""'
