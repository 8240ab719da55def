"""Graders of the cognition tasks."""

from rg_env.core.grading.graders import arc, common
from rg_env.core.grading.graders.common import Config, Entry, Grader
from rg_env.core.grading.parsing import forms
from rg_env.core.grading.solvers import rubiks

_QUOTES = "\"'“”‘’"
_EMOJI_STYLE = "\N{VARIATION SELECTOR-16}"


def _bare(text: str) -> str:
    """Letters without letter case, white space, and quotes around them."""
    return "".join(text.split()).strip(_QUOTES).casefold()


def color_cube_rotation(answer: str, entry: Entry, config: Config) -> float:
    """The color in any letter case; grey is gray."""
    return float(_bare(answer).replace("grey", "gray") == _bare(entry["answer"]))


def figlet_font(answer: str, entry: Entry, config: Config) -> float:
    """The word in any letter case, its letters apart or not, as the question may draw them."""
    word = _bare(entry["answer"])
    return float(_bare(answer) == word) if word else float(forms.same_text(answer, entry["answer"]))


def modulo_grid(answer: str, entry: Entry, config: Config) -> float:
    """All signs of the grid, with or without separators."""
    gold = entry["answer"].splitlines()
    rows = arc.rows(answer.replace(_EMOJI_STYLE, ""), sum(map(len, gold)))
    return float(rows is not None and ["".join(row) for row in rows] == gold)


def needle_haystack(answer: str, entry: Entry, config: Config) -> float:
    """A name of which the text says what is asked for; in a long one that may be true of several."""
    asked = entry["metadata"]["question"].removeprefix("Who ").removesuffix("? Reply only with a name.")
    statements = entry["question"].split("\n")[0].split(". ")
    names = {name.removesuffix(f" {asked}") for name in statements if name.endswith(f" {asked}")}
    return float(_bare(answer) in {_bare(name) for name in (*names, entry["answer"])})


def rubiks_cube(answer: str, entry: Entry, config: Config) -> float:
    """Any moves that solve the cube, in Singmaster notation; combined ones (`U2`) too."""
    return float(rubiks.solves(entry["metadata"]["cube_size"], entry["metadata"]["scramble_moves"], answer))


GRADERS: dict[str, Grader] = {
    "color_cube_rotation": color_cube_rotation,
    "figlet_font": figlet_font,
    "modulo_grid": modulo_grid,
    "needle_haystack": needle_haystack,
    "number_sequence": common.exact_number,
    "rectangle_count": common.exact_number,
    "rubiks_cube": rubiks_cube,
}
