"""Graders of the graphs tasks."""

from collections.abc import Iterable, Mapping
from typing import Any

from rg_env.core.graders import common
from rg_env.core.graders.types import Config, Entry, Grader

_SEPARATORS = str.maketrans(dict.fromkeys("→⇒>,;|[](){}'\"", " "))
_STEPS = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}
_COLORS = {"red": "green", "green": "red"}
# Reasoning Gym's default names: its metadata does not say who is a man and who a woman.
_MALE_NAMES = (
    "James John Robert Michael William David Richard Joseph Thomas Charles Peter Daniel Matthew Christopher Andrew "
    "George Edward Benjamin Henry Samuel Alexander Oliver Jack Harry Jacob Noah Ethan Lucas Mason Logan Sebastian "
    "Theodore Owen Liam Aiden Kai Jayden Zion Phoenix Atlas Axel Ryder Finn"
)
_FEMALE_NAMES = (
    "Mary Patricia Jennifer Linda Elizabeth Barbara Susan Jessica Sarah Karen Emma Lisa Anna Margaret Victoria "
    "Charlotte Sophia Isabella Olivia Ava Mia Emily Abigail Amelia Eleanor Grace Alice Lucy Chloe Sophie Lily Hannah "
    "Zoe Luna Nova Aria Willow Aurora Sage River Winter Sky Rain"
)
_NAMES = (("male_names", _MALE_NAMES), ("female_names", _FEMALE_NAMES))


def _steps(answer: str) -> list[str]:
    """The parts of a sequence, in lower case, separated by spaces, commas, arrows (`→`, `->`) or bars."""
    return answer.replace("->", " ").translate(_SEPARATORS).casefold().split()


def path_star(answer: str, entry: Entry, config: Config) -> float:
    """The path: it is the only one, for branches of a star do not meet."""
    return float(_steps(answer) == str(entry["answer"]).split())


def shortest_path(answer: str, entry: Entry, config: Config) -> float:
    """Any shortest path through open cells, or `infeasible` where there is none. Half, or less, for a longer path."""
    shortest = entry["metadata"]["solution"]
    path = _steps(answer)
    if not shortest:
        return float(path == ["infeasible"])
    matrix = entry["metadata"]["matrix"]
    if not path or not _reaches_goal(matrix, path):
        return 0.0
    return 1.0 if len(path) == len(shortest) else len(shortest) / len(path) / 2


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
    """Any sequence of buttons that reaches the target in as few presses as possible. Half, or less, for a longer one.

    A button is pressed only while the light has its colour. The library lets others be pressed, without any effect,
    but its question leaves open what they do to the light.
    """
    metadata = entry["metadata"]
    shortest = len(metadata["solution_path"])
    buttons = {button["name"].casefold(): button for button in metadata["buttons"]}
    presses = list("".join(_steps(answer)))  # names are single letters: `ABA` is as clear as `A → B → A`
    if not shortest <= len(presses) <= 4 * shortest or not _opens_lock(metadata, buttons, presses):
        return 0.0
    return 1.0 if len(presses) == shortest else shortest / len(presses) / 2


def _opens_lock(metadata: Mapping[str, Any], buttons: Mapping[str, Mapping[str, Any]], presses: Iterable[str]) -> bool:
    value: int = metadata["initial_value"]
    color: str = metadata["initial_state"]
    for name in presses:
        button = buttons.get(name)
        if button is None or button["active_state"] not in ("any", color):
            return False
        if button["type"] == "add":
            value += button["value"]
        elif button["type"] == "subtract":
            value -= button["value"]
        else:
            value *= button["value"]
        color = _COLORS[color]
    return bool(value == metadata["target_value"])


def family_relationships(answer: str, entry: Entry, config: Config) -> float:
    """The stored relationship, in any letter case and with or without hyphens.

    The question is what the first person is to the second. For in-laws, nieces and nephews the library stores a word
    for the second person instead (`mother-in-law` for a daughter-in-law); there, the word that is right is right too.
    """
    words = answer.casefold().replace("-", " ").replace("‑", " ").split()
    stored = str(entry["answer"])
    rights = [stored]
    name = entry["metadata"]["person1"]
    male, female = (name in config.get(key, default.split()) for key, default in _NAMES)
    if male != female and stored in ("mother-in-law", "father-in-law"):
        rights.append("son-in-law" if male else "daughter-in-law")
    elif male != female and stored in ("niece", "nephew"):
        rights.append("nephew" if male else "niece")
    return float(any(words == right.replace("-", " ").split() for right in rights))


GRADERS: dict[str, Grader] = {
    "course_schedule": common.word,
    "family_relationships": family_relationships,
    "largest_island": common.exact_number,
    "path_star": path_star,
    "quantum_lock": quantum_lock,
    "shortest_path": shortest_path,
}
