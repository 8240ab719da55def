"""The problem of each task.

Rotations and mirror images of a grid are different problems, because their answers are different grids or paths.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rg_env.core.data.problem_keys.forms import Bag, Entry, Key, Name, equation, expression, fields, numbered, of, parts
from rg_env.core.grading.graders import logic
from rg_env.core.grading.graders.gold import CARDS, STATEMENT

_LINE_OF_SUM = re.compile(r"^(.*)= *\?$", re.MULTILINE)
_COUNT = re.compile(r"(?<!\d)(\d+) (brothers|sisters|male|female)")
_DICE = re.compile(r"(?<!\d)\d+d\d+")
_RESULT = re.compile(r"^(.+) → (\w+)$", re.MULTILINE)
_TEST_CASE = re.compile(r"New test case:\n(.*)")
_COUPLE = re.compile(r"(?<!\S)(\S+) is married to (\S+)\.(?: They have (?:a child|children) called ([^.]+)\.)?")
_CHILDREN = re.compile(r", | and ")
_PATH = re.compile(r"^(\|\S+ \d+(?:\|\d+ \d+)*)/(\d+) (\d+) = *$", re.MULTILINE)
_CATEGORY = re.compile(r"^ - (.*): (.*)$", re.MULTILINE)
_CHILD = re.compile(r"(?:child is named|mother of) (?=\w)")
_CLUE = re.compile(r"^\d+\. (.*)$", re.MULTILINE)
_WANTED = re.compile(r"^What is .*$", re.MULTILINE)
_LITERAL = re.compile(r"([A-Za-z]\w*)('?)")
_ORDERED = re.compile(r"directly left|to the left|to the right|is not in the \w+|is in the \w+")
_MUTUAL = re.compile(r"next to each other|one house between|two houses between")
_ROW = re.compile(r"^ *\[+([01](?: [01])*)\]+$", re.MULTILINE)
_STICKERS = re.compile(r"^ *((?:[WYROGB](?: +|$))+)$", re.MULTILINE)
_EXAMPLE = re.compile(r"^Input \d+: (.*)\nOutput \d+: (.*)$", re.MULTILINE)
_INPUT = re.compile(r"^Input: (.*)$", re.MULTILINE)
_CODE = re.compile(r"copy spans of code directly\.\s*(.*)", re.DOTALL)
_SENTENCE = re.compile(r"(?<![^.?])[^.?]+[.?]")
_PROGRAM = re.compile(r"following program:\s*(?=\S)([AB# ]+)")
_OTHER_LETTER = str.maketrans("AB", "BA")


def _operation(metadata: Any) -> Any:
    numbers = metadata["num1"], metadata["num2"]
    return (metadata["operation"], Bag(numbers) if metadata["operation"] in "+*" else numbers)


def _decimal_arithmetic(entry: Entry) -> Any:
    return (entry["metadata"]["decimal_places"], *map(expression, parts(_LINE_OF_SUM, entry["question"])))


def _aiw(entry: Entry) -> Any:
    counts = parts(_COUNT, entry["question"])
    kind = entry["metadata"]["task_type"]
    return (kind, counts if kind == "colleagues" else Bag(counts))


def _gsm_symbolic(metadata: Any) -> Any:
    """The variable names of a template identify it; text values are names of people and things."""
    variables = metadata["variables"]
    numbers = [(name, _numbers(value)) for name, value in variables.items()]
    return (Bag(variables), Bag((name, value) for name, value in numbers if value), metadata["answer_value"])


def _numbers(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int | float)]


def _calendar_arithmetic(metadata: Any) -> Any:
    hidden = ("source_dataset", "source_index", "difficulty", "is_leap")
    return Bag((name, value) for name, value in metadata.items() if name not in hidden)


def _number_filtering(metadata: Any) -> Any:
    """Keeping the larger numbers is the same as removing the smaller ones."""
    smaller = metadata["operation"] in ("keep_smaller", "remove_larger")
    return (Bag(map(float, metadata["original_numbers"])), float(metadata["filter_value"]), smaller)


def _triangle(metadata: Any) -> Any:
    """The angle is the one at B; otherwise the corners are interchangeable."""
    ends = Bag([metadata["A"], metadata["C"]])
    triangle = (ends, metadata["B"]) if metadata["task_type"] == "angle_measure" else Bag([*ends, metadata["B"]])
    return (metadata["task_type"], triangle)


def _expression(field: str) -> Any:
    """An expression's form, ignoring variable names."""

    def form(metadata: Any) -> Any:
        return expression(metadata[field], metadata.get("variables") or metadata.get("variable", ""))

    return of(form)


def _acre(entry: Entry) -> Any:
    seen = [(Bag(map(Name, things.split(", "))), light) for things, light in parts(_RESULT, entry["question"])]
    (tested,) = parts(_TEST_CASE, entry["question"])
    return (Bag(seen), Bag(map(Name, tested.split(", "))))


def _circuit_logic(entry: Entry) -> Any:
    """An input is identified by its value and its gates; unconnected inputs do not matter."""
    metadata = entry["metadata"]
    gates, used = [], set()
    for term in metadata["term_strings"]:
        literals = _LITERAL.findall(term)
        used |= {name for name, _ in literals}
        kind = "".join(sorted(set(_LITERAL.sub("", term))))
        gates.append((kind, Bag((Name(name), negated) for name, negated in literals)))
    values = Bag((Name(name), metadata["assignments"][name]) for name in used)
    return (metadata["final_gate"], Bag(gates), values)


def _course_schedule(entry: Entry) -> Any:
    metadata = entry["metadata"]
    pairs = Bag((Name(course), Name(before)) for course, before in metadata["prerequisites"])
    return (len(metadata["courses"]), pairs)


def _cryptarithm(entry: Entry) -> Any:
    metadata = entry["metadata"]
    words = Bag(tuple(map(Name, word)) for word in metadata["words_letters"])
    return (words, tuple(map(Name, metadata["result_letters"])), metadata["allow_leading_zero"])


def _family_relationships(entry: Entry) -> Any:
    metadata = entry["metadata"]
    couples = parts(_COUPLE, entry["question"])
    families = [(Bag(couple), Bag(_CHILDREN.split(children))) for *couple, children in couples]
    return (Bag(families), metadata["person1"], metadata["person2"])


def _graph_color(entry: Entry) -> Any:
    puzzle = entry["metadata"]["puzzle"]
    edges = Bag(Bag(Name(vertex) for vertex in edge) for edge in puzzle["edges"])
    return (len(puzzle["vertices"]), puzzle["num_colors"], edges)


def _knights_knaves(entry: Entry) -> Any:
    claims = enumerate(entry["metadata"]["statements"])
    return Bag((Name(who), _claim(claim)) for who, claim in claims)


def _claim(claim: Any) -> Any:
    kind, *said = claim
    if kind in ("telling-truth", "lying"):
        return (kind, Name(said[0]))
    inner = map(_claim, said)
    return (kind, tuple(inner) if kind == "->" else Bag(inner))


def _path_star(entry: Entry) -> Any:
    ((edges, start, goal),) = parts(_PATH, entry["question"])
    return (Bag(edges.strip("|").split("|")), start, goal)


def _propositional_logic(entry: Entry) -> Any:
    metadata = entry["metadata"]
    variables = metadata["variables"]
    read = [logic.parse(text, variables, max_tokens=20_000) for text in metadata["premises"]]
    return Bag(_formula(formula) for formula in read)


def _formula(formula: Any) -> Any:
    kind, *inner = formula
    if kind == "var":
        return Name(inner[0])
    shown = map(_formula, inner)
    return (kind, tuple(shown) if kind in ("implies", "not") else Bag(shown))


def _syllogism(entry: Entry) -> Any:
    """`Some A are B` and `No A are B` are symmetric."""
    metadata = entry["metadata"]
    first, second, claim = (_quantified(metadata[name]) for name in ("premise1", "premise2", "conclusion"))
    return (Bag([first, second]), claim)


def _quantified(text: str) -> Any:
    ((quantifier, subject, negated, predicate),) = STATEMENT.findall(text)
    either_way = quantifier in ("Some", "No") and not negated
    return (quantifier, negated, Bag([subject, predicate]) if either_way else (subject, predicate))


def _zebra_puzzles(entry: Entry) -> Any:
    """Values of a category exclude each other; their names do not matter. A child may have a person's name."""
    question = _CHILD.sub("child-", entry["question"])
    categories = []
    for line, values in parts(_CATEGORY, question):
        child = "child-" if "child" in line else ""
        categories.append([f"{child}{value}" for value in values.split(", ")])
    known = sorted((value for values in categories for value in values), key=lambda value: (-len(value), value))
    pattern = re.compile("|".join(map(re.escape, known)))
    clues = [_clue(text, pattern) for text in parts(_CLUE, question)]
    return (Bag(Bag(map(Name, values)) for values in categories), Bag(clues), parts(_WANTED, question))


def _clue(text: str, values: re.Pattern[str]) -> Any:
    found = [Name(value) for value in values.findall(text.casefold())]
    if relation := _MUTUAL.search(text):
        return (relation[0], Bag(found))
    if relation := _ORDERED.search(text):
        return (relation[0], *found)
    return Bag(found)


def _arc_1d(entry: Entry) -> Any:
    metadata = entry["metadata"]
    shown = Bag((each["input"], each["output"]) for each in metadata["train_examples"])
    return (shown, metadata["test_example"]["input"])


def _binary_alternation(entry: Entry) -> Any:
    """The number of swaps is the same with the signs exchanged, and for the reversed string."""
    string = entry["metadata"]["string"]
    exchanged = string.translate(str.maketrans("01", "10"))
    return min(string, exchanged, string[::-1], exchanged[::-1])


def _boxnet(entry: Entry) -> Any:
    """A color is identified by where its boxes and its targets are."""
    metadata = entry["metadata"]
    places: dict[str, list[tuple[str, str]]] = {}
    for square, things in metadata["initial_state"].items():
        for thing in things:
            kind, _, color = thing.partition("_")
            places.setdefault(color, []).append((kind, square))
    return (metadata["row_num"], metadata["column_num"], Bag(map(Bag, places.values())))


def _game_of_life(entry: Entry) -> Any:
    question = entry["question"]
    board = question[question.rindex("[[") :].rstrip(". \n")  # the last one: an empty board precedes it as an example
    return (board.split(), entry["metadata"]["simulation_steps"])


def _game_of_life_halting(entry: Entry) -> Any:
    """The board wraps around, so the position of a pattern does not matter."""
    rows = [[cell == "1" for cell in row.split()] for row in parts(_ROW, entry["question"])]
    return (len(rows), len(rows[0]), _shifted(rows), entry["metadata"]["simulation_steps"])


def _shifted(rows: Sequence[Sequence[bool]]) -> list[list[int]]:
    """The living cells of a board that wraps around, relative to one of them; independent of the position."""
    height, width = len(rows), len(rows[0])
    cells = [(y, x) for y, row in enumerate(rows) for x, alive in enumerate(row) if alive]

    def seen_from(y: int, x: int) -> list[list[int]]:
        return sorted([(down - y) % height, (right - x) % width] for down, right in cells)

    def around(y: int, x: int) -> list[bool]:
        near = range(-2, 3)
        return [rows[(y + down) % height][(x + right) % width] for down in near for right in near]

    lowest = min((around(y, x) for y, x in cells), default=[])  # only these few cells are tried
    return min((seen_from(y, x) for y, x in cells if around(y, x) == lowest), default=[])


def _list_functions(entry: Entry) -> Any:
    return (Bag(parts(_EXAMPLE, entry["question"])), parts(_INPUT, entry["question"])[-1])


def _mahjong_puzzle(entry: Entry) -> Any:
    rounds = [(each["add"], each["remove"]) for each in entry["metadata"]["rounds"]]
    return (Bag(parts(CARDS, entry["question"])[0]), rounds)


def _manipulate_matrix(entry: Entry) -> Any:
    metadata = entry["metadata"]
    steps = [{key: value for key, value in step.items() if key != "instruction"} for step in metadata["operations"]]
    return (metadata["matrix"], steps)


def _maze(entry: Entry) -> Any:
    """The signs for walls and passages do not matter; the way back has the same length."""
    metadata = entry["metadata"]
    signs = {metadata["wall"]: "#", metadata["path"]: ".", metadata["start"]: "@", metadata["goal"]: "@"}
    return [[signs.get(sign, sign) for sign in row] for row in metadata["grid"]]


def _rectangle_count(entry: Entry) -> Any:
    """The position on the canvas does not matter."""
    return [line.rstrip() for line in textwrap.dedent(entry["metadata"]["puzzle"]).strip("\n").splitlines()]


def _rush_hour(entry: Entry) -> Any:
    """A is the car to free; the names of the others do not matter."""
    board = entry["metadata"]["board_config"]
    others = iter(numbered(sign for sign in board if sign.isupper() and sign != "A"))
    return [next(others) if sign.isupper() and sign != "A" else sign for sign in board]


def _sudoku(entry: Entry) -> Any:
    """Digits are only names."""
    cells = [cell for row in entry["metadata"]["puzzle"] for cell in row]
    digits = iter(numbered(str(cell) for cell in cells if cell))
    return [next(digits) + 1 if cell else 0 for cell in cells]


def _ab(entry: Entry) -> Any:
    """The rules treat both letters alike."""
    (program,) = parts(_PROGRAM, entry["question"])
    return min(program.strip(), program.strip().translate(_OTHER_LETTER))


def _ransom_note(entry: Entry) -> Any:
    """The required and available count of each letter, ignoring which letter it is."""
    wanted, there = (Counter(entry["metadata"][name]) for name in ("ransom_note", "magazine"))
    return Bag((wanted[letter], there[letter]) for letter in {*wanted, *there})


def _codeio(entry: Entry) -> Any:
    """The same pair answers a question for the input and one for the output."""
    return (*parts(_CODE, entry["question"]), *fields("input_data", "output_data")(entry))


def _rubiks_cube(entry: Entry) -> Any:
    return (entry["metadata"]["cube_size"], [row.split() for row in parts(_STICKERS, entry["question"])])


def _quantum_lock(metadata: Any) -> Any:
    buttons = Bag((each["type"], each["value"], each["active_state"]) for each in metadata["buttons"])
    return (buttons, *(metadata[name] for name in ("initial_state", "initial_value", "target_value")))


_TERMS = "the expression, with the terms of sums and the factors of products in any order"
_UNKNOWN = f"{_TERMS}, ignoring the variable name"
_ANY_ORDER = Key("the numbers in any order", fields("numbers*"))
_NUMBER = Key("the number", fields("number"))
_SIGNED_TERMS = Key("the terms with their signs, in any order", _expression("expression"))
_INTEGRAND = Key(f"the integrand: {_UNKNOWN}", _expression("integrand"))
_GRID = Key("the grid", fields("matrix"))
_MATRIX = Key("the matrix", fields("matrix"))
_DIGITS = Key("the grid, up to a renaming of its digits", _sudoku)

KEYS: dict[str, Key] = {
    "ab": Key("the program, up to swapping the letters", _ab),
    "acre": Key("the results in any order and the test case, ignoring the names of things", _acre),
    "advanced_geometry": Key("the corners in any order and the quantity asked for, ignoring wording", of(_triangle)),
    "aiw": Key("the kind of circle and its numbers, ignoring names and wording", _aiw),
    "arc_1d": Key("the examples in any order, and the input", _arc_1d),
    "arc_agi": Key("the ARC task, ignoring rotation, reflection, colors and order", fields("task_id")),
    "base_conversion": Key("the number and both bases", fields("source_repr", "source_base", "target_base")),
    "basic_arithmetic": Key(_TERMS, _expression("expression")),
    "bf": Key("the program, ignoring wording", fields("bf_program")),
    "binary_alternation": Key("the string, up to reversal and swapping 0 and 1", _binary_alternation),
    "binary_matrix": _MATRIX,
    "bitwise_arithmetic": Key(f"{_TERMS}; the same for and, or and xor", _expression("problem")),
    "boxnet": Key("the squares of boxes and targets, ignoring colors", _boxnet),
    "caesar_cipher": Key("the text, ignoring the shift", of(lambda data: data["clear_text"].casefold())),
    "calendar_arithmetic": Key("dates, numbers and the quantity asked for, ignoring wording", of(_calendar_arithmetic)),
    "chain_sum": _SIGNED_TERMS,
    "circuit_logic": Key("the gates and the values of their inputs in any order, ignoring names", _circuit_logic),
    "codeio": Key("the code with its input and output, whichever is requested", _codeio),
    "coin_flip": Key(
        "the numbers of flips and heads, ignoring wording", fields("num_trials", "k_heads", "problem_type")
    ),
    "color_cube_rotation": Key(
        "the rotations and the side asked for, ignoring colors", fields("rotations", "target_side")
    ),
    "complex_arithmetic": Key(
        "the operation and the numbers, which can be in any order for sums and products", of(_operation)
    ),
    "count_bits": _NUMBER,
    "count_primes": Key("both ends of the range", fields("start", "end")),
    "countdown": Key("the numbers in any order, and the target", fields("numbers*", "target")),
    "course_schedule": Key("the prerequisites in any order, ignoring course numbers", _course_schedule),
    "cryptarithm": Key("the sum in any order, ignoring its letters", _cryptarithm),
    "decimal_arithmetic": Key(f"{_TERMS}, and the number of decimal places", _decimal_arithmetic),
    "decimal_chain_sum": _SIGNED_TERMS,
    "dice": Key(
        "the dice in any order, and the target",
        of(lambda data: (Bag(_DICE.findall(data["puzzle"]["dice_str"])), data["puzzle"]["target"])),
    ),
    "emoji_mystery": Key("the sentence, ignoring the emoji", lambda entry: entry["answer"]),
    "family_relationships": Key("the families in any order, and both people in the question", _family_relationships),
    "figlet_font": Key("the word, ignoring font and spacing", lambda entry: entry["answer"].casefold()),
    "fraction_simplification": Key("the fraction, ignoring notation", fields("numerator", "denominator")),
    "futoshiki": Key("the grid, and the constraints in any order", fields("puzzle", "constraints*")),
    "game_of_life": Key("the board and the number of steps", _game_of_life),
    "game_of_life_halting": Key(
        "the board, ignoring the position of its patterns, and the number of steps", _game_of_life_halting
    ),
    "gcd": _ANY_ORDER,
    "graph_color": Key("the graph, ignoring vertex numbers", _graph_color),
    "group_anagrams": Key("the words in any order", fields("words*")),
    "gsm_symbolic": Key(
        "the story's numbers and their meaning, ignoring the names of people and things", of(_gsm_symbolic)
    ),
    "intermediate_integration": _INTEGRAND,
    "isomorphic_strings": Key(
        "the pattern of repeated letters in both strings, in any order",
        of(lambda data: Bag(map(numbered, data["words"]))),
    ),
    "jugs": Key("the jugs in any order, and the target", fields("puzzle.jug_capacities*", "puzzle.target")),
    "kakurasu": Key("the sums of rows and columns", fields("row_sums", "col_sums")),
    "knight_swap": Key("the squares with their pieces, and the player to move", fields("pieces*", "start_turn")),
    "knights_knaves": Key("the claims, ignoring names, roles, order and wording", _knights_knaves),
    "largest_island": Key("the grid", fields("grid")),
    "lcm": _ANY_ORDER,
    "leg_counting": Key("the animals with their numbers, in any order", of(lambda data: Bag(data["animals"].items()))),
    "letter_counting": Key("the letter and the words in any order", fields("target_letter", "span*")),
    "letter_jumble": Key(
        "the letters of each word in any order",
        of(lambda data: tuple(Bag(word.casefold()) for word in data["original_words"])),
    ),
    "list_functions": Key("the examples in any order, and the input", _list_functions),
    "mahjong_puzzle": Key("the cards in hand in any order, and the rounds", _mahjong_puzzle),
    "manipulate_matrix": Key("the matrix and the operations, ignoring wording", _manipulate_matrix),
    "maze": Key("the grid, ignoring its symbols and the direction", _maze),
    "mini_sudoku": _DIGITS,
    "modulo_grid": Key("the complete grid, ignoring the position of the gaps", lambda entry: entry["answer"].split()),
    "n_queens": Key("the board", fields("puzzle")),
    "needle_haystack": Key(
        "the statements in any order, and the question",
        lambda entry: Bag(each.strip() for each in parts(_SENTENCE, entry["question"])),
    ),
    "number_filtering": Key("the numbers in any order, the bound, and the side that is kept", of(_number_filtering)),
    "number_format": Key(
        "the numbers in any order and notation, and which one is requested", fields("candidates*", "size")
    ),
    "number_sequence": Key("the numbers shown", fields("sequence")),
    "number_sorting": Key(
        "the numbers in any order, and the direction",
        of(lambda data: (Bag(map(float, data["original_numbers"])), data["direction"])),
    ),
    "palindrome_generation": Key("the letters in any order", fields("letters*")),
    "palindrome_partitioning": Key(
        "the pattern of repeated letters in the string", of(lambda data: numbered(data["string"]))
    ),
    "path_star": Key("the edges in any order, start and goal", _path_star),
    "polynomial_equations": Key(_UNKNOWN, _expression("polynomial_expr")),
    "polynomial_multiplication": Key(f"{_TERMS}, ignoring variable names", _expression("polynomial_expr")),
    "pool_matrix": Key("the matrix, the kind of pooling and its size", fields("matrix", "pool_type", "pool_size")),
    "power_function": Key("base and exponent", of(lambda data: (repr(data["base"]), data["exponent"]))),
    "prime_factorization": _NUMBER,
    "products": Key("the factors in any order", _expression("expression")),
    "propositional_logic": Key("the premises in any order, ignoring variable names", _propositional_logic),
    "puzzle24": _ANY_ORDER,
    "quantum_lock": Key("the start, the target, and the buttons in any order", of(_quantum_lock)),
    "ransom_note": Key("the required and available count of each letter, ignoring which letter it is", _ransom_note),
    "rearc": Key("the task and the input, ignoring the examples", fields("task_id", "input")),
    "rectangle_count": Key("the picture, ignoring its position", _rectangle_count),
    "rotate_matrix": Key(
        "the matrix and the angle, ignoring full turns", of(lambda data: (data["matrix"], data["num_rotations"] % 4))
    ),
    "rotten_oranges": _GRID,
    "rubiks_cube": Key("the state of the cube, ignoring wording", _rubiks_cube),
    "rush_hour": Key("the board, ignoring the names of the cars", _rush_hour),
    "sentence_reordering": Key("the words in any order", lambda entry: Bag(entry["answer"].casefold().split())),
    "shortest_path": _GRID,
    "simple_equations": Key(
        f"the equation: {_UNKNOWN}; the sides in any order",
        of(lambda data: equation(data["equation"], [data["variable"]])),
    ),
    "simple_geometry": Key("the known angles in any order, ignoring wording", fields("n_sides", "known_angles*")),
    "simple_integration": _INTEGRAND,
    "sokoban": Key("the board", of(lambda data: data["gamestr"].split("\n"))),
    "spell_backward": Key("the word", fields("word")),
    "spiral_matrix": _MATRIX,
    "string_insertion": Key("the string", fields("string")),
    "string_manipulation": Key("the string and the rules, in order", fields("string", "selected_rules")),
    "string_splitting": Key("the initial machines", fields("initial_machines")),
    "string_synthesis": Key("the initial blocks", fields("initial_blocks")),
    "sudoku": _DIGITS,
    "survo": Key("the matrix, and the numbers to fill in, in any order", fields("puzzle", "candidate_numbers*")),
    "syllogism": Key("the premises in any order, and the conclusion", _syllogism),
    "time_intervals": Key("both times, ignoring notation", fields("start_time", "end_time")),
    "tower_of_hanoi": Key(
        "the number of disks and pegs, and the start and target pegs",
        fields("num_disks", "num_pegs", "start_peg", "target_peg"),
    ),
    "tsumego": Key("the board", fields("board")),
    "word_ladder": Key(
        "both words, in any order, because a ladder works in both directions",
        of(lambda data: Bag(data[name] for name in ("start_word", "end_word"))),
    ),
    "word_sequence_reversal": Key("the words, in order", fields("words")),
    "word_sorting": Key("the words in any order, and the direction", fields("transformed_words*", "direction")),
    "zebra_puzzles": Key("the clues in any order, ignoring names and wording", _zebra_puzzles),
}
