"""Problem keys: irrelevant changes leave a key unchanged, relevant ones change it.

Entries come from the library. Changes are written by hand for each task and share no code with the keys.
"""

import itertools
import json
import os
import random
import re
import textwrap
from collections.abc import Callable
from functools import reduce
from operator import getitem
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import pytest
from audit.rows import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.data.canonical import Bag, Name, canonical, equation, expression
from rg_env.core.data.dataset import build_splits
from rg_env.core.data.problem_keys import DIGITS, KEPT, KEYS, WHOLE, problem_key
from rg_env.core.data.splits import question_hash
from rg_env.core.grading.scoring import score
from rg_env.core.tasks.task_table import load_table, shipped_table, working_levels
from rg_env.errors import TooFewQuestionsError

Entry = dict[str, Any]
Change = Callable[[Entry, random.Random], Any]


def _shuffled(*path: str) -> Change:
    """A change that shuffles the list at this path in the metadata."""
    return lambda entry, rng: rng.shuffle(reduce(getitem, path, entry["metadata"]))


def _other(path: str, value: Callable[[Any], Any]) -> Change:
    """A change that replaces a field of the metadata."""
    return lambda entry, rng: entry["metadata"].update({path: value(entry["metadata"][path])})


def _reworded(before: str, after: str) -> Change:
    def change(entry: Entry, rng: random.Random) -> None:
        assert re.search(before, entry["question"])
        entry["question"] = re.sub(before, after, entry["question"])

    return change


def _relettered(*names: str) -> Change:
    """A change that replaces letters in these fields (texts or lists of texts) in the same way in all of them."""

    def change(entry: Entry, rng: random.Random) -> None:
        new = "".join(rng.sample(ascii_lowercase, 26))
        table = str.maketrans(ascii_lowercase + ascii_uppercase, new + new.upper())
        for name in names:
            text = json.dumps(entry["metadata"][name], ensure_ascii=False)
            entry["metadata"][name] = json.loads(text.translate(table))

    return change


def _both(one: Change, other: Change) -> Change:
    return lambda entry, rng: (one(entry, rng), other(entry, rng))


def _renumbered(pairs: Any, count: int, rng: random.Random) -> list[list[int]]:
    """The pairs of numbers below `count`, renumbered and in another order."""
    numbers = rng.sample(range(count), count)
    return rng.sample([[numbers[a], numbers[b]] for a, b in pairs], len(pairs))


def _vertices(entry: Entry, rng: random.Random) -> None:
    puzzle = entry["metadata"]["puzzle"]
    puzzle["edges"] = [rng.sample(pair, 2) for pair in _renumbered(puzzle["edges"], len(puzzle["vertices"]), rng)]


def _courses(entry: Entry, rng: random.Random) -> None:
    metadata = entry["metadata"]
    metadata["prerequisites"] = _renumbered(metadata["prerequisites"], len(metadata["courses"]), rng)


def _inhabitants(entry: Entry, rng: random.Random) -> None:
    """Reorder the inhabitants, swap the sides of all claims but implications, and remove the names and words for
    roles."""
    metadata = entry["metadata"]
    count = len(metadata["statements"])
    places = rng.sample(range(count), count)

    def renumbered(claim: Any) -> Any:
        if claim[0] in ("telling-truth", "lying"):
            return [claim[0], places[claim[1]]]
        inner = [renumbered(each) for each in claim[1:]]
        return [claim[0], *(inner if claim[0] == "->" else reversed(inner))]

    claims: list[Any] = [None] * count
    for who, claim in enumerate(metadata["statements"]):
        claims[places[who]] = renumbered(claim)
    metadata["statements"], metadata["names"] = claims, [f"N{i}" for i in range(count)]
    metadata["knight_knave_terms"] = {}


def _premises(entry: Entry, rng: random.Random) -> None:
    metadata = entry["metadata"]
    new = dict(zip(metadata["variables"], rng.sample(metadata["variables"], len(metadata["variables"])), strict=True))
    metadata["premises"] = [re.sub(r"[A-Z]", lambda match: new[match[0]], premise) for premise in metadata["premises"]]
    rng.shuffle(metadata["premises"])


def _variable(field: str) -> Change:
    def change(entry: Entry, rng: random.Random) -> None:
        metadata = entry["metadata"]
        old, new = metadata["variable"], "w" if metadata["variable"] != "w" else "u"
        metadata[field] = re.sub(rf"\b{old}\b", new, metadata[field])
        metadata["variable"] = new

    return change


def _digits(entry: Entry, rng: random.Random) -> None:
    count = len(entry["metadata"]["puzzle"])
    new = [0, *rng.sample(range(1, count + 1), count)]
    entry["metadata"]["puzzle"] = [[new[cell] for cell in row] for row in entry["metadata"]["puzzle"]]


def _shifted(entry: Entry, rng: random.Random) -> None:
    """Shift the board around its edges."""
    rows = re.findall(r"\[+([01 ]+)\]+", entry["question"])
    down, right = rng.randrange(len(rows)), rng.randrange(len(rows))
    cells = [row.split() for row in rows]
    cells = [row[right:] + row[:right] for row in cells[down:] + cells[:down]]
    board = "\n ".join("[" + " ".join(row) + "]" for row in cells)
    entry["question"] = f"How does this board go on?\n\n[{board}]"


def _clues(entry: Entry, rng: random.Random) -> None:
    """Shuffle the clues, and exchange the names of the people."""
    *head, numbered, wanted = entry["question"].split("\n\n")
    clues = [re.sub(r"^\d+\. ", "", line) for line in numbered.splitlines()]
    rng.shuffle(clues)
    numbered = "\n".join(f"{number}. {clue}" for number, clue in enumerate(clues, 1))
    people = re.search(r"unique name: (.*)", head[0])
    assert people
    old = people[1].split(", ")
    new = dict(zip(old, old[1:] + old[:1], strict=True))

    def swapped(match: re.Match[str]) -> str:
        name = new[match[0].lower()]
        return name.capitalize() if match[0][0].isupper() else name

    names = re.compile(
        "|".join(rf"(?<!named )(?<!mother of )\b{name}\b" for name in old), re.IGNORECASE
    )  # children have names of their own
    entry["question"] = "\n\n".join([*head, names.sub(swapped, numbered), wanted])


def _colors(entry: Entry, rng: random.Random) -> None:
    state = entry["metadata"]["initial_state"]
    text = json.dumps(state)
    for color in ("red", "blue", "green", "purple", "orange"):
        text = text.replace(f"_{color}", f"_dark{color}")
    entry["metadata"]["initial_state"] = {square: things[::-1] for square, things in json.loads(text).items()}


def _way_back(entry: Entry, rng: random.Random) -> None:
    metadata = entry["metadata"]
    signs = dict(zip(["wall", "path", "start", "goal"], rng.sample("abcdefgh", 4), strict=True))
    table = {metadata[name]: sign for name, sign in signs.items()}
    metadata["grid"] = ["".join(table[sign] for sign in row) for row in metadata["grid"]]
    metadata.update(signs, start=signs["goal"], goal=signs["start"])


UNORDERED = {
    "numbers": ["countdown", "gcd", "lcm", "puzzle24"],
    "original_numbers": ["number_filtering", "number_sorting"],
    "train_examples": ["arc_1d"],
    "words": ["group_anagrams"],
    "span": ["letter_counting"],
    "candidates": ["number_format"],
    "letters": ["palindrome_generation"],
    "buttons": ["quantum_lock"],
    "known_angles": ["simple_geometry"],
    "candidate_numbers": ["survo"],
    "transformed_words": ["word_sorting"],
}


EQUATIONS = {"intermediate_integration": "integrand", "polynomial_equations": "polynomial_expr"}
EQUATIONS |= {"simple_equations": "equation", "simple_integration": "integrand"}

SAME: dict[str, Change] = {
    **{task: _shuffled(field) for field, tasks in UNORDERED.items() for task in tasks},
    **{task: _variable(field) for task, field in EQUATIONS.items()},
    **dict.fromkeys(("sudoku", "mini_sudoku"), _digits),
    "acre": _reworded(r"\b(metal|rubber)\b", r"old \1"),
    "arc_agi": _other("input", lambda grid: grid[::-1]),
    "binary_alternation": _other("string", lambda text: text[::-1]),
    "boxnet": _colors,
    "caesar_cipher": _other("cipher_text", str.swapcase),
    "complex_arithmetic": _reworded(r"complex", "difficult"),
    "course_schedule": _courses,
    "cryptarithm": _both(_relettered("words_letters", "result_letters"), _shuffled("words_letters")),
    "game_of_life_halting": _shifted,
    "graph_color": _vertices,
    "isomorphic_strings": _relettered("words"),
    "jugs": _shuffled("puzzle", "jug_capacities"),
    "knights_knaves": _inhabitants,
    "leg_counting": _other("animals", lambda animals: dict(reversed(animals.items()))),
    "maze": _way_back,
    "palindrome_partitioning": _relettered("string"),
    "propositional_logic": _premises,
    "ransom_note": _relettered("ransom_note", "magazine"),
    "rectangle_count": _other("puzzle", lambda text: "\n \n" + textwrap.indent(text, "    ")),
    "rubiks_cube": _reworded(r"^.*\n", "A cube:\n"),
    "syllogism": lambda entry, rng: entry["metadata"].update(
        premise1=entry["metadata"]["premise2"], premise2=entry["metadata"]["premise1"]
    ),
    "time_intervals": _reworded(r"^\w+", "Say"),
    "word_ladder": lambda entry, rng: entry["metadata"].update(
        start_word=entry["metadata"]["end_word"], end_word=entry["metadata"]["start_word"]
    ),
    "zebra_puzzles": _clues,
}
"""Changes that do not change the problem."""

NUMBERS = {"gcd": "numbers", "kakurasu": "row_sums", "puzzle24": "numbers", "simple_geometry": "known_angles"}

OTHER: dict[str, Change] = {
    **{task: _other(field, lambda numbers: [numbers[0] + 1, *numbers[1:]]) for task, field in NUMBERS.items()},
    "chain_sum": _other("expression", lambda text: f"{text} + 1"),
    "countdown": _other("target", lambda target: target + 1),
    "course_schedule": _other("prerequisites", lambda pairs: pairs[:-1]),
    "cryptarithm": _other("result_letters", lambda word: word[::-1]),
    "graph_color": lambda entry, rng: entry["metadata"]["puzzle"].update(num_colors=2),
    "intermediate_integration": _other("integrand", lambda text: f"2*({text})"),
    "knights_knaves": lambda entry, rng: entry["metadata"]["statements"].append(["lying", 0]),
    "leg_counting": lambda entry, rng: entry["metadata"]["animals"].update(dragon=1),
    "mini_sudoku": lambda entry, rng: entry["metadata"]["puzzle"].__setitem__(0, [0, 0, 0, 0]),
    "number_sorting": _other("direction", lambda way: "up" if way == "descending" else "down"),
    "palindrome_generation": lambda entry, rng: entry["metadata"]["letters"].append("?"),
    "propositional_logic": lambda entry, rng: entry["metadata"]["premises"].append("(P → Q)"),
    "quantum_lock": _other("target_value", lambda value: value + 1),
    "ransom_note": _other("ransom_note", lambda text: text + text[-1]),
    "rectangle_count": _other("puzzle", lambda text: "# #\n" + text),
    "rubiks_cube": _reworded(r"W  ", "Y  "),
    "shortest_path": _other("matrix", lambda grid: grid[::-1]),
    "simple_equations": _other("equation", lambda text: text.replace("=", "+ 1 =")),
    "syllogism": _other("conclusion", lambda text: f"All {text.split()[1]} are heroes"),
    "word_sequence_reversal": _other("words", lambda words: [*words, "end"]),
}
"""Changes that change the problem."""


def test_every_task_has_a_key_or_a_reason() -> None:
    """Each of the 105 tasks is in exactly one of `KEYS` and `WHOLE`."""
    assert set(KEYS) | set(WHOLE) == set(shipped_table())
    assert not set(KEYS) & set(WHOLE)
    assert set(KEPT) <= set(KEYS)
    assert all(key.asks for key in KEYS.values())


@pytest.mark.parametrize("task", sorted(SAME))
def test_irrelevant_changes_keep_the_key(task: str) -> None:
    """Order, names, wording or layout are changed in twelve entries."""
    rng = random.Random(task)
    for item in draws().items(task, 12, seed=8):
        entry, changed = json.loads(item.entry), json.loads(item.entry)
        SAME[task](changed, rng)
        assert problem_key(task, changed) == problem_key(task, entry) == item.problem


@pytest.mark.parametrize("task", sorted(OTHER))
def test_relevant_changes_change_the_key(task: str) -> None:
    """A number, side or sign is changed in twelve entries."""
    rng = random.Random(task)
    for item in draws().items(task, 12, seed=8):
        changed = json.loads(item.entry)
        OTHER[task](changed, rng)
        assert problem_key(task, changed) != item.problem


def test_a_users_task_uses_its_question() -> None:
    """The key is the hash of the question, which ignores surrounding whitespace."""
    key = problem_key("my_task", {"question": "How many? ", "answer": "3", "metadata": {}})
    assert key == question_hash("How many?")[:DIGITS]


FORMS = st.recursive(
    st.sampled_from([Name("a"), Name("b"), Name("c"), Name("d"), 1, "x"]),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=3).map(Bag),
    max_leaves=12,
)


def _disguised(form: Any, names: dict[str, str], rng: random.Random) -> Any:
    if isinstance(form, Name):
        return Name(names[form])
    if isinstance(form, Bag):
        parts = [_disguised(part, names, rng) for part in form]
        rng.shuffle(parts)
        return Bag(parts)
    if isinstance(form, tuple):
        return tuple(_disguised(part, names, rng) for part in form)
    return form


@settings(max_examples=200, deadline=None)
@given(FORMS, st.permutations("abcd"), st.randoms(use_true_random=False))
def test_forms_ignore_names_and_order_in_bags(form: Any, names: list[str], rng: random.Random) -> None:
    assert canonical(_disguised(form, dict(zip("abcd", names, strict=True)), rng)) == canonical(form)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(((Name("a"), Name("a")), (Name("a"), Name("b"))), ((1, 2), (2, 1)), (Bag([1, 1]), Bag([1]))),
        (Bag([(Name("a"), Name("b")), (Name("b"), Name("c"))]), Bag([(Name("a"), Name("b")), (Name("c"), Name("b"))])),
        ((Bag([(Name("a"), 1), (Name("b"), 2)]), Name("a")), (Bag([(Name("a"), 1), (Name("b"), 2)]), Name("b"))),
        ("n", Name("n")),
    ],
)
def test_forms_distinguish(one: Any, other: Any) -> None:
    """Repeated and shared names, order outside of bags, and multiplicity matter; a name is not a text."""
    assert canonical(one) != canonical(other)


def test_graphs_are_distinguished_up_to_vertex_numbers() -> None:
    """The 64 graphs on four vertices have eleven forms, one for each isomorphism class."""
    pairs = list(itertools.combinations("abcd", 2))
    graphs = [
        [pair for pair, there in zip(pairs, choice, strict=True) if there]
        for choice in itertools.product([0, 1], repeat=6)
    ]
    assert len({canonical(Bag(Bag(map(Name, pair)) for pair in graph)) for graph in graphs}) == 11


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *(("1 + 4 - 5", "4 - 5 + 1", True), ("1 + 4 - 5", "1 - 4 + 5", False)),
        *(("-( -( 6 + 9 ) ) * 2 - -6", "6 + 2 * ( 9 + 6 )", True), ("2*x*(x - 1)", "(-1 + y)*y*2", True)),
        *(("2*x/3", "3*x/2", False), ("2*x**3", "3*x**2", False), ("-3*x**3*cos(x)", "cos(z)*(-3)*z**3", True)),
        *(("x*y**2 + x", "y*x**2 + y", True), ("x*y**2 + x", "x*y**2 + y", False), ("8 - (5 - 2)", "8 - 5 + 2", True)),
        *(("8 - (5 - 2)", "8 - 5 - 2", False), ("0x5 << 0x3", "0x3 << 0x5", False), ("0x5 & 0x3", "0x3 & 0x5", True)),
        *(("6 / 3 / 2", "6 / (3 / 2)", False), ("6 / 3 / 2", "6 / (2 * 3)", True)),
    ],
)
def test_expressions_have_terms_and_factors_in_any_order(one: str, other: str, same: bool) -> None:
    """Variables may have any name, and signs belong to their terms. A different calculation is a different problem."""
    variables = ["x", "y", "z"]
    assert (canonical(expression(one, variables)) == canonical(expression(other, variables))) == same


def test_the_sides_of_an_equation_are_unordered() -> None:
    assert canonical(equation("2*x - 1 = 5", "x")) == canonical(equation("5 = -1 + 2*y", "y"))
    assert canonical(equation("2*x - 1 = 5", "x")) != canonical(equation("2*x - 5 = 1", "x"))


CONTENT: dict[str, Callable[[Any], Any]] = {
    "lcm": lambda data: sorted(data["numbers"]),
    "palindrome_generation": lambda data: sorted(data["letters"]),
    "products": lambda data: sorted(data["expression"].split(" * ")),
    "word_sorting": lambda data: sorted(data["original_words"]),
}
"""The problems of some tasks, read from the metadata without using the keys."""


@pytest.mark.parametrize("task", CONTENT)
def test_no_problem_is_in_both_splits(task: str) -> None:
    """If rows were split by question, many evaluation problems would be in training."""
    rows = build_splits(task, 600, 100, 5, 9)[:2]
    train, evaluation = (
        [json.dumps(CONTENT[task](json.loads(row["info"]["entry"])["metadata"])) for row in each] for each in rows
    )
    assert not set(train) & set(evaluation)


def test_a_problem_that_two_tasks_share_has_one_split() -> None:
    """`6 - 9 =` and `Calculate 6 - 9.` are the same problem."""
    options = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
    sums = {"name": "chain_sum", "config": options}
    arithmetic = {
        "name": "basic_arithmetic",
        "config": {**options, "allow_parentheses": False, "operators": ["+", "-"]},
    }
    train, evaluation = build_splits([sums, arithmetic], 1500, 300, 0, 0)[:2]
    expressions = [{re.sub(r"[^-+\d]", "", row["question"]) for row in rows} for rows in (train, evaluation)]
    assert len(expressions[1]) > 100
    assert not expressions[0] & expressions[1]


HIGHEST = {"arc_1d": 2, "jugs": 1}
"""Highest levels tested; higher ones include draws that take minutes."""
SOME_WITHOUT_GOLD = {"intermediate_integration"}
TOO_FEW = {("coin_flip", 0), ("tower_of_hanoi", 0)}
"""Levels with so few problems that a split may be too small."""


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(load_table()))
def test_every_task_has_disjoint_rows_with_keys_and_gold_answers(task: str) -> None:
    """Keys in rows are those of their entries, and are hashes of questions only for tasks in `WHOLE`. The splits share
    no keys and no questions. Every gold answer is correct when scored, and with default options each row has one.

    Tests the two lowest levels, or all levels with RG_ENV_MANY set.
    """
    levels = [level for level in working_levels(task) if level <= HIGHEST.get(task, level)]
    levels = levels if "RG_ENV_MANY" in os.environ else levels[:2]
    for level in [None, *levels]:
        spec = {"name": task} if level is None else {"name": task, "level": level}
        try:
            train, evaluation, _ = build_splits(spec, 6, 2, 3, 3, on_few="error")
        except TooFewQuestionsError:
            assert (task, level) in TOO_FEW
            continue
        assert (len(train), len(evaluation)) == (6, 2)
        for row in [*train, *evaluation]:
            entry = json.loads(row["info"]["entry"])
            assert problem_key(task, entry) == row["info"]["problem"]
            assert (row["info"]["problem"] == question_hash(row["question"])[:DIGITS]) == (task in WHOLE)
            if row["answer"] or (level is None and task not in SOME_WITHOUT_GOLD):
                result = score(f"so <answer>{row['answer']}</answer>", row["info"])
                assert (result.status, result.task) == ("correct", task), result
        for value in (lambda row: row["info"]["problem"], lambda row: row["question"]):
            assert not set(map(value, train)) & set(map(value, evaluation))
