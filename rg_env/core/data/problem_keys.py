"""Problem keys: hashes of a question's content, ignoring irrelevant order, names, wording and layout.

    problem_key("lcm", entry)       # the same for "LCM of 84, 87" and "LCM of 87, 84"

By default, the key determines the split (`core.data.splits`), so a problem is never in both splits, regardless of
wording. `KEYS` defines what counts as the same problem in each task. `WHOLE` lists tasks that use the whole question as
the key, as the user's own tasks do. `KEPT` lists tasks whose keys include details that could be ignored. Both give
reasons.

A function named after a task returns an entry's problem as a form (`core.data.canonical`). The first paragraph of the
function's docstring describes the problem for users. `problem_keys.json` describes the tasks whose problem consists of
plain metadata fields ("fields", in the syntax of `_fields`) or of one expression ("expressions").

Keys do not detect deeper equivalences, such as equal integrands in different forms, mirrored boards, or number
sequences with the same rule. Except in arc_agi, rotations and mirror images of a grid are different problems because
their answers are different grids or paths.
"""

import hashlib
import inspect
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rg_env.core.data.canonical import Bag, Name, canonical, equation, expression
from rg_env.core.data.splits import question_hash
from rg_env.core.grading.graders import logic
from rg_env.core.grading.graders.common import Entry
from rg_env.core.grading.graders.gold import CARDS, STATEMENT
from rg_env.core.tasks.task_table import shipped_table

_TABLES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
ALIKE: dict[str, str] = _TABLES["alike"]
"""Tasks, each with another task that can pose the same problems. The two share keys, so each problem is in only one
split, even in a mixture of both tasks."""
WHOLE: dict[str, str] = _TABLES["whole"]
"""Tasks that use the whole question as the key, each with the reason."""
KEPT: dict[str, str] = _TABLES["kept"]
"""For each task whose key includes details that it could ignore, those details and the reason for including them."""
DIGITS = 32
"""Length of a key in hexadecimal digits (128 bits in total)."""


class Key(NamedTuple):
    """Definition of what counts as the same problem in a task."""

    asks: str
    """Description of the problem."""
    form: Callable[[Entry], Any]
    """Function that returns the problem as a form for `canonical`."""


def described(task: str) -> str:
    """Return a description of what a task's problem key covers."""
    if task not in KEYS:
        return f"the whole question ({WHOLE.get(task, 'your own task')})"
    kept = f" (with {KEPT[task]})" if task in KEPT else ""
    return f"{KEYS[task].asks}{kept}"


def problem_key(task: str, entry: Entry) -> str:
    """Return the problem key of a library entry (after a round trip through JSON).

    The key does not depend on the machine, the hash seed, the config or the level.
    """
    try:
        form = KEYS[task].form(entry)
    except (KeyError, IndexError, TypeError, ValueError):
        # The task has no form, or the entry is from a later release of reasoning-gym.
        return question_hash(entry["question"])[:DIGITS]
    text = f"{ALIKE.get(task, task)}:{canonical(form)}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def parts(pattern: str, text: str) -> list[Any]:
    """Return all matches of `pattern`, or the entire text if nothing matches, so that problems in an unknown format
    stay distinct."""
    return re.findall(pattern, text, re.MULTILINE) or [text.strip()]


def numbered(text: Iterable[str]) -> list[int]:
    """Return each character's rank by first occurrence, so that texts with different alphabets can be equal."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(sign, len(numbers)) for sign in text]


def _fields(entry: Entry, paths: str) -> tuple[Any, ...]:
    """Return the values of the metadata fields listed in `paths` (separated by spaces), in that order.

    A dot selects a nested field (`puzzle.target`). A trailing `*` means that the order within the field does not matter
    (`numbers*`).
    """
    found = []
    for path in paths.split():
        value = entry["metadata"]
        for name in path.removesuffix("*").split("."):
            value = value[name]
        items = value.items() if isinstance(value, Mapping) else value
        found.append(Bag(items) if path.endswith("*") else value)
    return tuple(found)


def _expression(entry: Entry, field: str) -> Any:
    """Return an expression's form, ignoring variable names."""
    metadata = entry["metadata"]
    return expression(metadata[field], metadata.get("variables") or metadata.get("variable", ""))


# Arithmetic and algebra


def advanced_geometry(entry: Entry) -> Any:
    """The corners in any order (except B, if its angle is requested) and the quantity asked for, ignoring wording."""
    # If the question is about an angle, it is the angle at B. Otherwise, the corners are interchangeable.
    metadata = entry["metadata"]
    ends = Bag([metadata["A"], metadata["C"]])
    triangle = (ends, metadata["B"]) if metadata["task_type"] == "angle_measure" else Bag([*ends, metadata["B"]])
    return (metadata["task_type"], triangle)


def calendar_arithmetic(entry: Entry) -> Any:
    """The dates, the numbers and the quantity asked for, ignoring wording."""
    hidden = ("source_dataset", "source_index", "difficulty", "is_leap")
    return Bag((name, value) for name, value in entry["metadata"].items() if name not in hidden)


def complex_arithmetic(entry: Entry) -> Any:
    """The operation and the numbers (in any order for sums and products)."""
    operation, *numbers = _fields(entry, "operation num1 num2")
    return (operation, Bag(numbers) if operation in "+*" else tuple(numbers))


def decimal_arithmetic(entry: Entry) -> Any:
    """The expression (with the terms of sums and the factors of products in any order) and the number of decimal
    places."""
    return (entry["metadata"]["decimal_places"], *map(expression, parts(r"^(.*)= *\?$", entry["question"])))


def dice(entry: Entry) -> Any:
    """The dice in any order, and the target."""
    puzzle = entry["metadata"]["puzzle"]
    return (Bag(re.findall(r"(?<!\d)\d+d\d+", puzzle["dice_str"])), puzzle["target"])


def gsm_symbolic(entry: Entry) -> Any:
    """The story's numbers and their meaning, ignoring the names of people and things."""
    # A template is identified by the names of its variables. Text values are names of people and things.
    variables, answer = _fields(entry, "variables answer_value")
    listed = {name: value if isinstance(value, list) else [value] for name, value in variables.items()}
    numbers = {name: [each for each in values if isinstance(each, int | float)] for name, values in listed.items()}
    return (Bag(variables), Bag(each for each in numbers.items() if each[1]), answer)


def number_filtering(entry: Entry) -> Any:
    """The numbers in any order, the bound, and the side that is kept."""
    numbers, bound, operation = _fields(entry, "original_numbers filter_value operation")
    return (Bag(map(float, numbers)), float(bound), operation in ("keep_smaller", "remove_larger"))


def number_sorting(entry: Entry) -> Any:
    """The numbers in any order, and the direction."""
    return (Bag(map(float, entry["metadata"]["original_numbers"])), entry["metadata"]["direction"])


def power_function(entry: Entry) -> Any:
    """The base and the exponent."""
    return (repr(entry["metadata"]["base"]), entry["metadata"]["exponent"])


def simple_equations(entry: Entry) -> Any:
    """The equation, with its sides, terms and factors in any order, ignoring the variable name."""
    return equation(entry["metadata"]["equation"], [entry["metadata"]["variable"]])


# Logic and graphs

_LITERAL = re.compile(r"([A-Za-z]\w*)('?)")


def acre(entry: Entry) -> Any:
    """The results in any order, and the test case, ignoring the names of the objects."""
    results = parts(r"^(.+) → (\w+)$", entry["question"])
    (tested,) = parts(r"New test case:\n(.*)", entry["question"])
    seen = Bag((Bag(map(Name, things.split(", "))), light) for things, light in results)
    return (seen, Bag(map(Name, tested.split(", "))))


def aiw(entry: Entry) -> Any:
    """The kind of relationship and the numbers, ignoring names and wording."""
    counts = parts(r"(?<!\d)(\d+) (brothers|sisters|male|female)", entry["question"])
    kind = entry["metadata"]["task_type"]
    return (kind, counts if kind == "colleagues" else Bag(counts))


def circuit_logic(entry: Entry) -> Any:
    """The gates and their input values in any order, ignoring names."""
    # An input is identified by its value and its gates. Unconnected inputs do not matter.
    metadata = entry["metadata"]
    gates, used = [], set()
    for term in metadata["term_strings"]:
        literals = _LITERAL.findall(term)
        used |= {name for name, _ in literals}
        kind = "".join(sorted(set(_LITERAL.sub("", term))))
        gates.append((kind, Bag((Name(name), negated) for name, negated in literals)))
    values = Bag((Name(name), metadata["assignments"][name]) for name in used)
    return (metadata["final_gate"], Bag(gates), values)


def course_schedule(entry: Entry) -> Any:
    """The prerequisites in any order, ignoring course numbers."""
    courses, prerequisites = _fields(entry, "courses prerequisites")
    return (len(courses), Bag((Name(course), Name(before)) for course, before in prerequisites))


def cryptarithm(entry: Entry) -> Any:
    """The addends in any order, and their sum, ignoring the choice of letters."""
    words, result, leading_zero = _fields(entry, "words_letters result_letters allow_leading_zero")
    return (Bag(tuple(map(Name, word)) for word in words), tuple(map(Name, result)), leading_zero)


def family_relationships(entry: Entry) -> Any:
    """The families in any order, and both people in the question."""
    couples = parts(
        r"(?<!\S)(\S+) is married to (\S+)\.(?: They have (?:a child|children) called ([^.]+)\.)?", entry["question"]
    )
    families = [(Bag(couple), Bag(re.split(", | and ", children))) for *couple, children in couples]
    return (Bag(families), *_fields(entry, "person1 person2"))


def graph_color(entry: Entry) -> Any:
    """The graph and the number of colors, ignoring vertex numbers."""
    puzzle = entry["metadata"]["puzzle"]
    edges = Bag(Bag(Name(vertex) for vertex in edge) for edge in puzzle["edges"])
    return (len(puzzle["vertices"]), puzzle["num_colors"], edges)


def knights_knaves(entry: Entry) -> Any:
    """The claims, ignoring names, roles, order and wording."""
    return Bag((Name(who), _claim(claim)) for who, claim in enumerate(entry["metadata"]["statements"]))


def _claim(claim: Any) -> Any:
    kind, *said = claim
    if kind in ("telling-truth", "lying"):
        return (kind, Name(said[0]))
    inner = map(_claim, said)
    return (kind, tuple(inner) if kind == "->" else Bag(inner))


def path_star(entry: Entry) -> Any:
    """The start, the goal, and the edges in any order."""
    ((edges, start, goal),) = parts(r"^(\|\S+ \d+(?:\|\d+ \d+)*)/(\d+) (\d+) = *$", entry["question"])
    return (Bag(edges.strip("|").split("|")), start, goal)


def propositional_logic(entry: Entry) -> Any:
    """The premises in any order, ignoring variable names."""
    variables, premises = _fields(entry, "variables premises")
    return Bag(_formula(logic.parse(text, variables, logic.MAX_PREMISE_TOKENS)) for text in premises)


def _formula(formula: Any) -> Any:
    kind, *inner = formula
    if kind == "var":
        return Name(inner[0])
    shown = map(_formula, inner)
    return (kind, tuple(shown) if kind in ("implies", "not") else Bag(shown))


def quantum_lock(entry: Entry) -> Any:
    """The start, the target, and the buttons in any order."""
    buttons = entry["metadata"]["buttons"]
    shown = Bag((each["type"], each["value"], each["active_state"]) for each in buttons)
    return (shown, *_fields(entry, "initial_state initial_value target_value"))


def syllogism(entry: Entry) -> Any:
    """The premises in any order, and the conclusion."""
    first, second, claim = map(_quantified, _fields(entry, "premise1 premise2 conclusion"))
    return (Bag([first, second]), claim)


def _quantified(text: str) -> Any:
    ((quantifier, subject, negated, predicate),) = STATEMENT.findall(text)
    either_way = quantifier in ("Some", "No") and not negated  # `Some A are B` means the same as `Some B are A`
    return (quantifier, negated, Bag([subject, predicate]) if either_way else (subject, predicate))


def zebra_puzzles(entry: Entry) -> Any:
    """The clues in any order, ignoring names and wording."""
    # A child may have the same name as one of the people, so children's names get a prefix.
    question = re.sub(r"(?:child is named|mother of) (?=\w)", "child-", entry["question"])
    categories = []
    for line, values in parts("^ - (.*): (.*)$", question):
        child = "child-" if "child" in line else ""
        categories.append([f"{child}{value}" for value in values.split(", ")])
    known = sorted((value for values in categories for value in values), key=lambda value: (-len(value), value))
    pattern = re.compile("|".join(map(re.escape, known)))
    clues = Bag(_clue(text, pattern) for text in parts(r"^\d+\. (.*)$", question))
    return (Bag(Bag(map(Name, values)) for values in categories), clues, parts("^What is .*$", question))


def _clue(text: str, values: re.Pattern[str]) -> Any:
    found = [Name(value) for value in values.findall(text.casefold())]
    if relation := re.search("next to each other|one house between|two houses between", text):
        return (relation[0], Bag(found))
    if relation := re.search(r"directly left|to the left|to the right|is not in the \w+|is in the \w+", text):
        return (relation[0], *found)
    return Bag(found)


# Grids, games and induction


def arc_1d(entry: Entry) -> Any:
    """The examples in any order, and the input."""
    examples, test = _fields(entry, "train_examples test_example")
    return (Bag((each["input"], each["output"]) for each in examples), test["input"])


def boxnet(entry: Entry) -> Any:
    """The squares of the boxes and targets, up to a renaming of the colors."""
    rows, columns, squares = _fields(entry, "row_num column_num initial_state")
    places: dict[str, list[tuple[str, str]]] = {}
    for square, things in squares.items():
        for thing in things:
            kind, _, color = thing.partition("_")
            places.setdefault(color, []).append((kind, square))
    return (rows, columns, Bag(map(Bag, places.values())))


def game_of_life(entry: Entry) -> Any:
    """The board and the number of steps."""
    question = entry["question"]
    # Use the last board because the first board is an empty example.
    board = question[question.rindex("[[") :].rstrip(". \n")
    return (board.split(), entry["metadata"]["simulation_steps"])


def game_of_life_halting(entry: Entry) -> Any:
    """The board, ignoring the position of its patterns, and the number of steps."""
    lines = parts(r"^ *\[+([01](?: [01])*)\]+$", entry["question"])
    rows = [[cell == "1" for cell in line.split()] for line in lines]
    return (len(rows), len(rows[0]), _shifted(rows), entry["metadata"]["simulation_steps"])


def _shifted(rows: Sequence[Sequence[bool]]) -> list[list[int]]:
    """Return the positions of the live cells on a board that wraps around, relative to a live cell chosen by its
    neighborhood."""
    height, width = len(rows), len(rows[0])
    cells = [(y, x) for y, row in enumerate(rows) for x, alive in enumerate(row) if alive]

    def seen_from(y: int, x: int) -> list[list[int]]:
        return sorted([(down - y) % height, (right - x) % width] for down, right in cells)

    def around(y: int, x: int) -> list[bool]:
        near = range(-2, 3)
        return [rows[(y + down) % height][(x + right) % width] for down in near for right in near]

    lowest = min((around(y, x) for y, x in cells), default=[])  # only cells with this neighborhood are candidates
    return min((seen_from(y, x) for y, x in cells if around(y, x) == lowest), default=[])


def list_functions(entry: Entry) -> Any:
    """The examples in any order, and the input."""
    examples = parts(r"^Input \d+: (.*)\nOutput \d+: (.*)$", entry["question"])
    return (Bag(examples), parts("^Input: (.*)$", entry["question"])[-1])


def mahjong_puzzle(entry: Entry) -> Any:
    """The cards in hand in any order, and the rounds."""
    rounds = [(each["add"], each["remove"]) for each in entry["metadata"]["rounds"]]
    return (Bag(parts(CARDS.pattern, entry["question"])[0]), rounds)


def manipulate_matrix(entry: Entry) -> Any:
    """The matrix and the operations, ignoring wording."""
    matrix, operations = _fields(entry, "matrix operations")
    return (matrix, [{key: value for key, value in step.items() if key != "instruction"} for step in operations])


def maze(entry: Entry) -> Any:
    """The grid, ignoring which symbols it uses and which end is the start."""
    wall, path, start, goal, grid = _fields(entry, "wall path start goal grid")
    signs = {wall: "#", path: ".", start: "@", goal: "@"}
    return [[signs.get(sign, sign) for sign in row] for row in grid]


def modulo_grid(entry: Entry) -> Any:
    """The complete grid, ignoring the position of the gaps."""
    return entry["answer"].split()


def rectangle_count(entry: Entry) -> Any:
    """The picture, ignoring its position."""
    return [line.rstrip() for line in textwrap.dedent(entry["metadata"]["puzzle"]).strip("\n").splitlines()]


def rotate_matrix(entry: Entry) -> Any:
    """The matrix and the angle, ignoring full turns."""
    return (entry["metadata"]["matrix"], entry["metadata"]["num_rotations"] % 4)


def rubiks_cube(entry: Entry) -> Any:
    """The state of the cube, ignoring wording."""
    rows = parts(r"^ *((?:[WYROGB](?: +|$))+)$", entry["question"])
    return (entry["metadata"]["cube_size"], [row.split() for row in rows])


def rush_hour(entry: Entry) -> Any:
    """The board, ignoring the names of all cars except A, the car to free."""
    board = entry["metadata"]["board_config"]
    others = iter(numbered(sign for sign in board if sign.isupper() and sign != "A"))
    return [next(others) if sign.isupper() and sign != "A" else sign for sign in board]


def sokoban(entry: Entry) -> Any:
    """The board."""
    return entry["metadata"]["gamestr"].split("\n")


def sudoku(entry: Entry) -> Any:
    """The grid, up to a renaming of its digits."""
    cells = [cell for row in entry["metadata"]["puzzle"] for cell in row]
    digits = iter(numbered(str(cell) for cell in cells if cell))
    return [next(digits) + 1 if cell else 0 for cell in cells]


mini_sudoku = sudoku


# Strings, words and code


def ab(entry: Entry) -> Any:
    """The program, up to swapping the letters A and B."""
    (program,) = parts(r"following program:\s*(?=\S)([AB# ]+)", entry["question"])
    return min(program.strip(), program.strip().translate(str.maketrans("AB", "BA")))


def binary_alternation(entry: Entry) -> Any:
    """The string, up to reversing it and swapping 0 and 1."""
    # Neither reversing the string nor swapping 0 and 1 changes the number of swaps in the answer.
    string = entry["metadata"]["string"]
    exchanged = string.translate(str.maketrans("01", "10"))
    return min(string, exchanged, string[::-1], exchanged[::-1])


def caesar_cipher(entry: Entry) -> Any:
    """The text, ignoring the shift."""
    return entry["metadata"]["clear_text"].casefold()


def codeio(entry: Entry) -> Any:
    """The code with its input and output, regardless of which is requested."""
    code = parts(r"(?s)copy spans of code directly\.\s*(.*)", entry["question"])
    return (*code, *_fields(entry, "input_data output_data"))


def emoji_mystery(entry: Entry) -> Any:
    """The sentence, ignoring the emoji."""
    return entry["answer"]


def figlet_font(entry: Entry) -> Any:
    """The word, ignoring font and spacing."""
    return entry["answer"].casefold()


def isomorphic_strings(entry: Entry) -> Any:
    """The pattern of repeated letters in each string, with the strings in either order."""
    return Bag(map(numbered, entry["metadata"]["words"]))


def leg_counting(entry: Entry) -> Any:
    """The number of each animal, in any order."""
    return Bag(entry["metadata"]["animals"].items())


def letter_jumble(entry: Entry) -> Any:
    """The letters of each word in any order."""
    return tuple(Bag(word.casefold()) for word in entry["metadata"]["original_words"])


def needle_haystack(entry: Entry) -> Any:
    """The statements in any order, and the question."""
    return Bag(each.strip() for each in parts(r"(?<![^.?])[^.?]+[.?]", entry["question"]))


def palindrome_partitioning(entry: Entry) -> Any:
    """The pattern of repeated letters in the string."""
    return numbered(entry["metadata"]["string"])


def ransom_note(entry: Entry) -> Any:
    """The required and available counts of each letter, ignoring which letter it is."""
    wanted, there = (Counter(text) for text in _fields(entry, "ransom_note magazine"))
    return Bag((wanted[letter], there[letter]) for letter in {*wanted, *there})


def sentence_reordering(entry: Entry) -> Any:
    """The words in any order."""
    return Bag(entry["answer"].casefold().split())


def word_ladder(entry: Entry) -> Any:
    """The two words in either order, because a ladder works in both directions."""
    return Bag(_fields(entry, "start_word end_word"))


def _key(form: Callable[[Entry], Any]) -> Key:
    """Return a key that uses `form`, with the first paragraph of `form`'s docstring as its description."""
    asks = " ".join((inspect.getdoc(form) or "").partition("\n\n")[0].split()).rstrip(".")
    return Key(asks[:1].lower() + asks[1:], form)


KEYS: dict[str, Key] = {
    **{task: Key(asks, partial(_expression, field=field)) for task, (asks, field) in _TABLES["expressions"].items()},
    **{task: Key(asks, partial(_fields, paths=paths)) for task, (asks, paths) in _TABLES["fields"].items()},
    **{task: _key(form) for task, form in globals().items() if task in shipped_table()},
}
