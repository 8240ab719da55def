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

_FAMILIES = (
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
GRADERS: dict[str, Grader] = {task: grader for family in _FAMILIES for task, grader in family.GRADERS.items()}
DISAGREEMENTS: dict[str, str] = {task: why for family in _FAMILIES for task, why in family.DISAGREEMENTS.items()}
"""Tasks where the library's grader differs on honest answers, and why ours is right."""
