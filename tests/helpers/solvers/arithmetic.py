"""Solvers of tasks that ask for the value of an expression."""

import ast
import math
import operator
import re
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: Fraction(a) / b,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}


def value(expression: str) -> Fraction | int:
    """Return the exact value with the usual precedence."""

    def of(node: ast.expr) -> Fraction | int:
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.UnaryOp):
            operand = of(node.operand)
            return -operand if isinstance(node.op, ast.USub) else ~operand
        assert isinstance(node, ast.Constant)
        if isinstance(node.value, float):
            return Fraction(ast.get_source_segment(text, node))
        return node.value

    text = expression.strip()
    return of(ast.parse(text, mode="eval").body)


def _longest(question: str) -> str:
    """Return the longest part of the question that consists of numbers and operators."""
    return max(re.findall(r"[\d.(+-][\d\s.()+*/-]*[\d)]", question), key=len)


def exact(question: str) -> str:
    return str(Fraction(value(_longest(question))))


def decimal_chain_sum(question: str) -> str:
    found = Fraction(value(_longest(question)))
    return str(Decimal(found.numerator) / Decimal(found.denominator))


def decimal_arithmetic(question: str) -> str:
    figures = int(re.findall(r"maximum of (\d+) significant", question)[0])
    found = Fraction(value(question.splitlines()[-1].partition("=")[0]))
    context = Context(prec=figures, rounding=ROUND_HALF_UP)
    return format(context.divide(Decimal(found.numerator), Decimal(found.denominator)), "f")


def bitwise_arithmetic(question: str) -> str:
    return hex(int(value(question.splitlines()[-1])))


def complex_arithmetic(question: str) -> str:
    first, sign, second = re.findall(r"\(([^()]*)\) ([-+×÷]) \(([^()]*)\)", question)[0]
    a, b = (complex(text.replace(" ", "").replace("i", "j")) for text in (first, second))
    found = {"+": a + b, "-": a - b, "×": a * b, "÷": a / b if b else 0}[sign]
    return f"{round(found.real, 6)} + {round(found.imag, 6)}i"


def power_function(question: str) -> str:
    base, exponent = re.findall(r"Compute \(?(-?[\d.]+)\)?\^(-?\d+)", question)[0]
    found = abs(Decimal(base)) ** int(exponent)
    return f"{found if int(exponent) % 2 == 0 or base[0] != '-' else -found:.2e}"


def fraction_simplification(question: str) -> str:
    above, below = map(int, re.findall(r"\d+", re.findall(r"fraction (.*?) to its", question)[0]))
    common = math.gcd(above, below)
    return f"{above // common}/{below // common}"


def dice(question: str) -> str:
    sides = [int(n) for n in re.findall(r"1d(\d+)", question.partition(". What")[0])]
    target = int(re.findall(r"rolling (\d+) or higher", question)[0])
    ways = {0: 1}
    for n in sides:
        ways = {
            total: sum(ways.get(total - face, 0) for face in range(1, n + 1)) for total in range(1, max(ways) + n + 1)
        }
    return str(Fraction(sum(count for total, count in ways.items() if total >= target), math.prod(sides)))


def coin_flip(question: str) -> str:
    kind, heads, flips = re.findall(r"(at least|exactly) (\d+) heads in (\d+)", question)[0]
    k, n = int(heads), int(flips)
    ways = sum(math.comb(n, i) for i in range(k, n + 1)) if kind == "at least" else math.comb(n, k)
    return str(Fraction(ways, 2**n))


basic_arithmetic = chain_sum = products = exact
