"""Graders of the geometry tasks."""

import math
from typing import Any

from grader_cases import Row, entry, row, table
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import grade

POINT = entry("(147.857, -41.000)", task_type="orthocenter", ortho=["1035/7", "-41"])
ANGLE = entry("16.91°", task_type="angle_measure", angle_ABC_degrees=16.905984)
SQUARE = entry("90.00°", task_type="angle_measure", angle_ABC_degrees=89.99999999999999)


def radius(value: float) -> dict[str, Any]:
    return entry(f"{value:.3f}", task_type="incircle_radius", incircle_radius_approx=value)


@table(
    row(
        "advanced_geometry",
        POINT,
        "(147.857, -41.000) | (147.857,-41) | 147.857, -41 | (1035/7, −41) | $\\left(\\frac{1035}{7}, -41\\right)$",
        "(147.858, -41) | (147.86, -41) | (-41, 147.857) | 147.857 | (147.857, -41, 0) | (7245/49.0001, -41) | (,)",
    ),
    row(
        "advanced_geometry",
        POINT,
        "(147.857143, -41.0) | [147.857, -41]",
        "(2957.14/20.0001, -41) | (1035/7, -41.0003/1.00001) | () | (nan, nan) | (1035/0, -41)",
    ),
    row(
        "advanced_geometry",
        ANGLE,
        "16.91° | 16.906° | 16.906 | 16.91 degrees | 16.91^\\circ | $16.906^{\\circ}$",
        "16.9° | 17 | 16.909° | 16.905° | -16.91 | ° | 12°49 | nan",
    ),
    row("advanced_geometry", SQUARE, "90 | 90° | 90.000° | 90.00 deg.", "89.9"),
    row(
        "advanced_geometry",
        radius(1.186461853),
        "1.186 | 1.1865 | 1.18646 | 1.1860",
        "1.19 | 1.187 | 1 | inf | √ | √2 | 1.186√1",
    ),
    row("advanced_geometry", radius(1.5), "3/2 | 1.5 | \\frac{3}{2} | 1.500", "1.51"),
    row("advanced_geometry", radius((math.sqrt(5) - 1) / 2), "\\frac{\\sqrt{5} - 1}{2} | (√5-1)/2 | sqrt(5)/2 - 1/2"),
    row(
        "advanced_geometry",
        radius(3 * math.sqrt(2)),
        "3√2 | 3*sqrt(2) | 3 \\cdot \\sqrt{2} | \\sqrt{18} | √(18)",
        "3√3 | √2 | 6/√2 | sqrt(9+9) | 3*√2/0 | (3√2)/0 | 3 or √18",
    ),
    row("simple_geometry", entry("60"), "60 | 60.0 | 60° | 60 degrees | $60^\\circ$", "61 | 60 61 | 180 - 120 | °"),
)
def test_answers_score_what_they_are_worth(row: Row) -> None:
    """Rounded as asked, closer or exact: 1.0. Too coarse, a formula to work out, or wrong: 0.0."""
    row.check()


def test_rounding_does_not_decide_a_surd() -> None:
    """The difference of two large roots, in floats a multiple of 0.125, is not that."""
    text = "777777777√999999999999 - 777777777√999999999998"
    in_floats = 777777777 * math.sqrt(999999999999) - 777777777 * math.sqrt(999999999998)
    exact = 777777777 / (math.sqrt(999999999999) + math.sqrt(999999999998))
    assert abs(in_floats - exact) > 1e-3
    assert grade("advanced_geometry", {}, radius(in_floats), text) == 0.0
    assert grade("advanced_geometry", {}, radius(3 * math.sqrt(2)), f"3√2 + {text} - {text}") == 0.0


@given(st.integers(1, 999), st.integers(1, 999), st.integers(1, 99), st.integers(0, 99))
def test_surds_have_the_value_that_they_write(factor: int, root: int, below: int, more: int) -> None:
    """A sum of a square root and a number, over a number, in plain text and in LaTeX."""
    item = radius((factor * math.sqrt(root) + more) / below)
    for text in (f"({factor}√{root} + {more})/{below}", f"\\frac{{{factor}\\sqrt{{{root}}} + {more}}}{{{below}}}"):
        row("advanced_geometry", item, [text], [f"-{text}"]).check()
