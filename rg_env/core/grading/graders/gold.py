"""The answer that an entry itself holds, in the form that scores 1.0."""

import json
from collections.abc import Mapping
from typing import Any

from rg_env.core.grading.graders.common import Config
from rg_env.core.grading.graders.corrections import NO_OPTIONS, corrected
from rg_env.core.grading.graders.logic import Premises
from rg_env.core.grading.parsing import formulas
from rg_env.core.grading.solvers import boxnet, rush_hour

SOLVED = ("rush_hour", "boxnet")
"""Tasks whose gold answers are found by a solver, which trusts its entry."""
STORED_ELSEWHERE = (*SOLVED, "graph_color", "propositional_logic", "rubiks_cube")
"""Tasks whose entries have no `answer`."""


def gold_answer(task: str, entry: Mapping[str, Any], config: Config = NO_OPTIONS) -> str | None:
    """The right answer to `entry` of a task with these options, or None where the library stores none.

    Where the library stores a wrong one, it is the one by the rules of the question: see `graders.corrections`.
    graph_color and rubiks_cube keep an example of a right answer in their metadata instead. rush_hour and boxnet have
    none at all, and are solved here, which takes tens of milliseconds for a rush_hour. The example of
    propositional_logic often restates a premise, or is a variable that does not follow: then the answer is our own.
    """
    metadata = entry["metadata"]
    if task == "graph_color":
        return json.dumps(metadata["possible_answer"])
    if task == "rubiks_cube":
        return metadata["example_correct_answer"] or None  # only 3x3 cubes have one
    if task == "rush_hour":
        return rush_hour.solve(entry)
    if task == "boxnet":
        return boxnet.solve(entry)
    if task == "propositional_logic":
        return _conclusion(metadata)
    answer = corrected(task, entry, config)["answer"]
    if task == "jugs" and "No solution" in answer:
        return None  # its solver looks at three jugs only
    if task in ("simple_integration", "intermediate_integration") and "Integral(" in answer:
        return None  # the library could not solve it, and stores the question
    return None if answer is None else str(answer)


def _conclusion(metadata: Mapping[str, Any]) -> str | None:
    premises = Premises(metadata)
    shortest = premises.conclusion()
    example: str = metadata["example_answer"]
    formula = formulas.parse(example, premises.variables)
    if shortest and formula and premises.lead_to(formula):
        return example
    return shortest
