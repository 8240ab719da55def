"""Graders of the graphs tasks."""

from collections.abc import Iterable, Mapping
from typing import Any

from rg_env.core.grading.graders import common, forms
from rg_env.core.grading.graders.common import Config, Entry, Grader

_STEPS = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}
_COLORS = {"red": "green", "green": "red"}


def path_star(answer: str, entry: Entry, config: Config) -> float:
    """The path. It is unique, because branches of a star do not meet."""
    return float(forms.parts(answer.casefold()) == str(entry["answer"]).split())


def shortest_path(answer: str, entry: Entry, config: Config) -> float:
    """Any shortest path through open cells, or `infeasible` if no path exists. A longer path scores half or less."""
    shortest = entry["metadata"]["solution"]
    path = forms.parts(answer.casefold())
    if not shortest:
        return float(path == ["infeasible"])
    matrix = entry["metadata"]["matrix"]
    if not path or not _reaches_goal(matrix, path):
        return 0.0
    return _worth(path, len(shortest))


def _worth(steps: list[str], shortest: int) -> float:
    return 1.0 if len(steps) == shortest else shortest / len(steps) / 2


def _reaches_goal(matrix: list[list[str]], path: Iterable[str]) -> bool:
    row, column = next((r, c) for r, line in enumerate(matrix) for c, cell in enumerate(line) if cell == "*")
    for word in path:
        if word not in _STEPS:
            return False
        down, right = _STEPS[word]
        row, column = row + down, column + right
        if not (0 <= row < len(matrix) and 0 <= column < len(matrix[0])) or matrix[row][column] == "X":
            return False
    return matrix[row][column] == "#"


def quantum_lock(answer: str, entry: Entry, config: Config) -> float:
    """Any sequence of buttons that reaches the target in as few presses as possible. A longer one scores half or
    less.

    Taken literally, the light toggles "whenever you press a button", even a button for the other color, which leaves
    the number unchanged. The library's search never presses such a button, and its grader ignores the press. The
    library's shortest sequence is also right literally. Questions with a literally shorter one (see `is_shortest_lock`)
    have two answers and are left out.
    """
    metadata = entry["metadata"]
    buttons = {button["name"].casefold(): button for button in metadata["buttons"]}
    presses = list(
        "".join(forms.parts(answer.casefold()))
    )  # names are single letters: `ABA` is as clear as `A → B → A`
    shortest = len(metadata["solution_path"])
    if not shortest <= len(presses) <= 4 * shortest or not buttons.keys() >= set(presses):
        return 0.0
    state = metadata["initial_value"], metadata["initial_state"]
    for name in presses:
        state = _pressed(state, buttons[name])
    return _worth(presses, shortest) if state[0] == metadata["target_value"] else 0.0


def _pressed(state: tuple[int, str], button: Mapping[str, Any]) -> tuple[int, str]:
    """The number and light after a press."""
    value, color = state
    if button["active_state"] in ("any", color):
        operand: int = button["value"]
        match button["type"]:
            case "add":
                value += operand
            case "subtract":
                value -= operand
            case _:
                value *= operand
    return value, _COLORS[color]


def is_shortest_lock(entry: Entry) -> bool:
    """Whether no sequence is shorter than the stored one when a press without effect toggles the light."""
    metadata = entry["metadata"]
    target = metadata["target_value"]
    edge = {(metadata["initial_value"], metadata["initial_state"])}
    seen = set(edge)
    for _ in range(len(metadata["solution_path"]) - 1):
        edge = {_pressed(state, button) for state in edge for button in metadata["buttons"]} - seen
        if any(value == target for value, _ in edge):
            return False
        seen |= edge
    return True


def family_relationships(answer: str, entry: Entry, config: Config) -> float:
    """The relationship, in any letter case and with or without hyphens."""
    words = answer.casefold().replace("-", " ").replace("‑", " ").split()
    return float(words == str(entry["answer"]).replace("-", " ").split())


GRADERS: dict[str, Grader] = {
    "course_schedule": common.word,
    "family_relationships": family_relationships,
    "largest_island": common.exact_number,
    "path_star": path_star,
    "quantum_lock": quantum_lock,
    "shortest_path": shortest_path,
}
