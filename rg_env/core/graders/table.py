"""Which task uses which grader: each module has its own part of the table, `GRADERS`."""

from rg_env.core.graders import (
    algebra,
    algorithmic,
    arc,
    arithmetic,
    board_games,
    code,
    cognition,
    games,
    geometry,
    graphs,
    induction,
    logic,
    matrices,
    move_games,
    number_games,
    probability,
    words,
)
from rg_env.core.graders.types import Grader

GRADERS: dict[str, Grader] = (
    algebra.GRADERS
    | algorithmic.GRADERS
    | arc.GRADERS
    | arithmetic.GRADERS
    | board_games.GRADERS
    | code.GRADERS
    | cognition.GRADERS
    | games.GRADERS
    | geometry.GRADERS
    | graphs.GRADERS
    | induction.GRADERS
    | logic.GRADERS
    | matrices.GRADERS
    | move_games.GRADERS
    | number_games.GRADERS
    | probability.GRADERS
    | words.GRADERS
)
