"""Which task uses which grader: each module has its own part of the table, `GRADERS`."""

from rg_env.core.grading.graders import (
    algebra,
    algorithmic,
    arc,
    arithmetic,
    code,
    cognition,
    games,
    geometry,
    graphs,
    logic,
    words,
)
from rg_env.core.grading.graders.common import Grader

GRADERS: dict[str, Grader] = (
    algebra.GRADERS
    | algorithmic.GRADERS
    | arc.GRADERS
    | arithmetic.GRADERS
    | games.GRADERS
    | code.GRADERS
    | cognition.GRADERS
    | games.GRADERS
    | geometry.GRADERS
    | graphs.GRADERS
    | code.GRADERS
    | logic.GRADERS
    | algorithmic.GRADERS
    | games.GRADERS
    | games.GRADERS
    | arithmetic.GRADERS
    | words.GRADERS
)
