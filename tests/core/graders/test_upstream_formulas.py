"""The formulas of `grading="upstream"` that use SymPy, compared with the library's own graders."""

import time
from typing import Any

import pytest

from rg_env.core.grading import upstream
from rg_env.core.tasks import library

ANSWERS = {
    "simple_integration": {
        "variable": "x",
        "integrand": "6*x**2 + 1",
        "answers": [
            "2*x**3 + x + C", "2*x**3 + x", "C + x*(2*x**2 + 1)", "2.0*x**3 + x", "(4/2)*x**3 + x + c0",
            "2*x^3 + x",
            "2x**3 + x", "2*x**3 + x + C = 0", "∫", "x**3", "2*x**3 + X",
            "2*x³ + x", "", "2*x**3 + x +", "True", "x(2)",
            "2*x**3 + x; 1", "[2*x**3 + x]", "2*x**3 + x + f(2)", "2*x**3 + x + pi + E", "S", "x if x else x", "'x'",
        ],
    },
    "intermediate_integration": {
        "variable": "x",
        "integrand": "cos(x)*exp(x)",
        "answers": [
            "exp(x)*(sin(x) + cos(x))/2 + C", "E**x*(sin(x) + cos(x))/2", "e**x*(sin(x) + cos(x))/2",
            "sqrt(2)*exp(x)*sin(x + pi/4)/2", "exp(x)*sin(x)", "Sin(x)", "cos^2(x)",
            "exp(x)*(sin(x)+cos(x))/2 + log(2)",
            "exp(x)*(sin(x)+cos(x))/2 + abs(C)", "ln(x)", "arctan(x)", "exp(x, x)", "sin", "oo", "I*x",
        ],
    },
    "polynomial_multiplication": {
        "gold": "4*x**2 + 4*x*y",
        "answers": [
            "4*x**2 + 4*x*y", "4*x*y + 4*x**2", "4*(x**2 + x*y)", "4*x*(x + y)", "4x**2 + 4xy", "4*x**2 + 4*y*x",
            "4*x**2 + 2*x*y + 2*x*y", "4.0*x**2 + 4*x*y", "4*x**2 + 4*x*Y", "(8/2)*x**2 + 4*x*y", "4*x**2", "S*x",
        ],
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("task", ANSWERS)
def test_scores_equal_the_librarys(task: str) -> None:
    """Harmless answers get the library's score, and both right and wrong ones are among them."""
    library.factory()
    case: dict[str, Any] = ANSWERS[task]
    metadata = {"variable": case.get("variable"), "integrand": case.get("integrand")}
    entry = {"question": "", "answer": case.get("gold", ""), "metadata": metadata}
    scores = {text: upstream.library_grade(task, {}, entry, text) for text in case["answers"]}
    assert {text: upstream.grade(task, {}, entry, text) for text in scores} == scores
    assert set(scores.values()) == {0.0, 1.0}


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os')._exit(1)",
        "(lambda: 1)()",
        "x.func",
        "Symbol('x')",
        "sympify('1')",
        "eval('1')",
        "[x for x in (1,)]",
        "(" * 5_000,
        "x\0",
    ],
)
def test_code_is_not_executed(answer: str) -> None:
    start = time.process_time()
    entry = {"question": "", "answer": "x", "metadata": {"variable": "x", "integrand": "1"}}
    assert upstream.grade("simple_integration", {}, entry, answer) == 0.0
    assert upstream.grade("polynomial_multiplication", {}, entry, answer) == 0.0
    assert time.process_time() - start < 5
