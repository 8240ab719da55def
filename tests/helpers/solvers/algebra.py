"""Solvers of tasks about polynomials, using sympy."""

import re

import sympy


def _read(expression: str) -> tuple[sympy.Expr, sympy.Symbol]:
    """Return the expression and its variable."""
    names = re.findall(r"[a-zA-Z]", expression) or ["x"]
    symbols = {name: sympy.Symbol(name) for name in names}
    return sympy.sympify(expression, locals=symbols, rational=True), symbols[names[0]]


def polynomial_multiplication(question: str) -> str:
    return str(sympy.expand(_read(re.findall(r": (.*)$", question, re.MULTILINE)[0])[0]))


def simple_integration(question: str) -> str:
    integrand, variable = _read(re.findall(r"∫ (.*) d[a-zA-Z]\b", question)[0])
    return f"{sympy.integrate(integrand, variable)} + C"


def simple_equations(question: str) -> str:
    left, right = re.findall(r"(?:Solve for \w|satisfies|equation): (.*=.*)$", question)[0].split("=")
    expression, variable = _read(f"{left} - ({right})")
    return str(sympy.solve(expression, variable)[0])


def polynomial_equations(question: str) -> str:
    equation = re.findall(r"(?:.*: )?([^:\n]*\d[^:\n=]*= 0)$", question, re.MULTILINE)[0]
    expression, variable = _read(equation.removesuffix("= 0"))
    roots = sorted(set(sympy.real_roots(sympy.Poly(expression, variable)))) if expression.has(variable) else []
    return ", ".join(f"{float(root):.4f}" for root in roots) or '""'
