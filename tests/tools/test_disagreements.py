"""Kinds of disagreement with the library's graders: each takes what it is for, and excuses nothing else."""

from typing import Any

import pytest
from disagreements import explanation


def entry(answer: str, **metadata: Any) -> dict[str, Any]:
    return {"question": "?", "answer": answer, "metadata": metadata}


SORTED = entry("['1.5', '7.0']", sorted_numbers=["1.5", "7.0"], original_numbers=["7.0", "1.5"])
LOGIC = entry("", variables=["P", "Q", "R"], premises=["P", "(P → Q)"], example_answer="(Q ∨ R)")
DAYS = entry("41 days", task_type="date", expected_format="D days", start_time="2024-01-01", end_time="2024-02-11")
NIGHT = entry(
    "00:30:00.894", task_type="time_ms", start_time="2024-01-01 23:45:00.105000", end_time="2024-01-01 00:15:01"
)
PLAN = entry("", initial_state={"0.5_0.5": ["box_red"], "1.5_0.5": ["target_red"]})
BOARD = entry("", board_config="o" * 12 + "AAoBoo" + "oooBoo" + "o" * 12)
CARDS = {
    **entry("Pass"),
    "question": "the initial cards BCCDX, what\nRound 1: Add a K card and remove a K card.\n"
    "Round 2: Add a B card and remove a C card.\n",
}
LOCK = entry(
    "B → A", initial_state="red", buttons=[{"name": "A", "active_state": "green"}, {"name": "B", "active_state": "any"}]
)
FIGURE = entry("Yes", premise1="All bees are ants", premise2="Some ants are not cats")
ANGLE = entry("25.18°", task_type="angle_measure")
POINT = entry("(4.000, -5.000)", task_type="orthocenter")
COMPLEX = entry("1.0 - 2.0i", result=[1.0, -2.0])
SECONDS = entry("01:26:59", task_type="time_seconds")
VALID = entry("Yes", premise1="All bees are ants", premise2="All ants are cats")
TOWER = entry("", solution_length=1)
TO_RIGHT = '[{"Agent[0.5, 0.5]": "move(box_red, square[1.5, 0.5])"}, {"Agent[1.5, 0.5]": "move(box_red, target_red)"}]'
CASES: list[tuple[str, dict[str, Any], bool, dict[str, str | None]]] = [
    ("advanced_geometry", ANGLE, False, {"25.1°8": "degree sign", "26.1°8": None, "25.184": "third decimal"}),
    ("advanced_geometry", ANGLE, False, {"26.18": None}),
    ("advanced_geometry", POINT, False, {"04.0(0, -5.000)": "brackets", "(4.000, -6.000)": None}),
    ("boxnet", PLAN, False, {'[{"Agent[0.5, 0.5]": "move(box_red, square[2.5, 0.5])"}]': "impossible", TO_RIGHT: None}),
    ("boxnet", PLAN, False, {'[{"agentt": "move(box_red, target_red)"}]': "impossible"}),
    ("codeio", entry('{"a": 1.5000000001}'), True, {'{"a": 1.5000000002}': "last digits"}),
    ("codeio", entry('{"a": 1.5}'), True, {'{"a": 1.6}': None, '{"b": 1.5}': None}),
    ("coin_flip", entry("0.0625"), False, {"0.062": "prefix", "0.063": None, "0.0626": "digits"}),
    ("coin_flip", entry("0.0001"), False, {"0.0002": "small"}),
    ("coin_flip", entry("1/16"), False, {"word": None}),
    ("complex_arithmetic", COMPLEX, False, {"1.0000005 - 2.0i": "near", "1.001 - 2.0i": None}),
    ("complex_arithmetic", COMPLEX, True, {"-2.0i + 1.0": "order", "2.0i + 1.0": None}),
    ("decimal_arithmetic", entry("1.23456"), False, {"1.23466": "digits", "1.33456": None}),
    ("jugs", entry('["fill A"]'), True, {'["fill A, "empty B"]': "not JSON", "I would fill A": None}),
    ("knights_knaves", entry("Ann is a knight."), False, {"Ann is a knight. knave,": "second role"}),
    ("knights_knaves", entry("Ann is a knight."), False, {"Ann is a knight": None}),
    ("letter_jumble", entry("one two"), False, {"One two two": "more words", "two one two": None}),
    ("number_sorting", SORTED, False, {"['1.5', '7.9']": "near", "['1.5', '8.1']": None, "['1.5']": None}),
    ("number_sorting", SORTED, True, {"['1.5', '7.9']": None}),
    ("propositional_logic", LOGIC, False, {"(P ∨ P) (P": "no formula", "P ∧ (P → Q)": "restated"}),
    ("propositional_logic", LOGIC, False, {"(P → Q) ∨ R": "restated"}),
    ("propositional_logic", LOGIC, False, {"Q ∧ (R ∨ ¬R)": None}),
    ("propositional_logic", LOGIC, True, {"Q": "variable", "R": None, "P": None}),
    ("puzzle24", entry("6*4*1*1", numbers=[6, 4, 1, 1]), False, {"6*4": "numbers", "4*1*6*1": None}),
    ("rush_hour", BOARD, False, {"A+4": "blocked", "B+2 A+4": None}),
    ("sentence_reordering", entry("' exclaims every one."), True, {"exclaims every one.": "quote"}),
    ("sentence_reordering", entry("the end of the day"), True, {"the day of the end": "doubled word"}),
    ("sentence_reordering", entry("the end of the day"), True, {"the day of an end": None}),
    ("time_intervals", DAYS, False, {"41 yads": "more than days", "42 days days": None}),
    ("time_intervals", SECONDS, False, {"1:026:59": "no clock", "01:26:58": None}),
    ("time_intervals", NIGHT, True, {"00:30:00.895": "elapsed", "00:30:00.896": None}),
    ("family_relationships", entry("mother-in-law", person1="Mary"), False, {"mother-in-law": "stored"}),
    ("family_relationships", entry("niece", person1="Mary"), False, {"niece": None}),
    ("mahjong_puzzle", CARDS, True, {"Chi": "rules", "Pass": None}),
    ("mahjong_puzzle", CARDS, False, {"Pass": "stored", "Peng": None}),
    ("quantum_lock", LOCK, True, {"A → A": "toggles"}),
    ("quantum_lock", LOCK, False, {"A → A": "no press", "B → A": None}),
    ("syllogism", FIGURE, True, {"No": "middle term", "Yes": None}),
    ("syllogism", FIGURE, False, {"Yes": "stored"}),
    ("syllogism", VALID, True, {"No": None}),
    ("tower_of_hanoi", TOWER, True, {"move disk 1 from Peg 1 to Peg 2": "letter case"}),
    ("tower_of_hanoi", TOWER, True, {"Move disk 1 from Peg 1 to Peg 2": None}),
]


@pytest.mark.parametrize(("task", "item", "right", "kinds"), CASES)
def test_a_kind_fits_what_it_is_for(task: str, item: dict[str, Any], right: bool, kinds: dict[str, str | None]) -> None:
    """And an answer that is otherwise wrong, or right, is unexplained."""
    assert {answer: explanation(task, item, answer, right) for answer in kinds} == kinds
