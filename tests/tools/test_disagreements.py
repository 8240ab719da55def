"""Kinds of disagreement with the library's graders: each takes what it is for, and excuses nothing else."""

from typing import Any

import pytest
from disagreements import DISAGREEMENTS, explanation


def entry(answer: str, **metadata: Any) -> dict[str, Any]:
    return {"question": "?", "answer": answer, "metadata": metadata}


SORTED = entry("['1.5', '7.0']", sorted_numbers=["1.5", "7.0"], original_numbers=["7.0", "1.5"])
LOGIC = entry("", variables=["P", "Q", "R"], premises=["P", "(P → Q)"], example_answer="(Q ∨ R)")
DAYS = entry("41 days", task_type="date", expected_format="D days", start_time="2024-01-01", end_time="2024-02-11")
NIGHT = entry(
    "00:30:00.894",
    task_type="time_ms",
    start_time="2024-01-01 23:45:00.105000",
    end_time="2024-01-01 00:15:01",
)
PLAN = entry("", initial_state={"0.5_0.5": ["box_red"], "1.5_0.5": ["target_red"]})
BOARD = entry("", board_config="o" * 12 + "AAoBoo" + "oooBoo" + "o" * 12)
CARDS = {
    **entry("Pass"),
    "question": "the initial cards BCCDX, what\nRound 1: Add a K card and remove a K card.\n"
    "Round 2: Add a B card and remove a C card.\n",
}
LOCK = entry(
    "B → A",
    initial_state="red",
    buttons=[{"name": "A", "active_state": "green"}, {"name": "B", "active_state": "any"}],
)
FIGURE = entry("Yes", premise1="All bees are ants", premise2="Some ants are not cats")
CASES: list[tuple[str, dict[str, Any], str, bool, str | None]] = [
    ("advanced_geometry", entry("25.18°", task_type="angle_measure"), "25.1°8", False, "degree sign"),
    ("advanced_geometry", entry("25.18°", task_type="angle_measure"), "26.1°8", False, None),
    ("advanced_geometry", entry("25.18°", task_type="angle_measure"), "25.184", False, "third decimal"),
    ("advanced_geometry", entry("25.18°", task_type="angle_measure"), "26.18", False, None),
    ("advanced_geometry", entry("(4.000, -5.000)", task_type="orthocenter"), "04.0(0, -5.000)", False, "brackets"),
    ("advanced_geometry", entry("(4.000, -5.000)", task_type="orthocenter"), "(4.000, -6.000)", False, None),
    ("boxnet", PLAN, '[{"Agent[0.5, 0.5]": "move(box_red, square[2.5, 0.5])"}]', False, "impossible"),
    ("boxnet", PLAN, '[{"agentt": "move(box_red, target_red)"}]', False, "impossible"),
    (
        "boxnet",
        PLAN,
        '[{"Agent[0.5, 0.5]": "move(box_red, square[1.5, 0.5])"}, {"Agent[1.5, 0.5]": "move(box_red, target_red)"}]',
        False,
        None,
    ),
    ("codeio", entry('{"a": 1.5000000001}'), '{"a": 1.5000000002}', True, "last digits"),
    ("codeio", entry('{"a": 1.5}'), '{"a": 1.6}', True, None),
    ("codeio", entry('{"b": 1.5}'), '{"a": 1.5}', True, None),
    ("coin_flip", entry("0.0625"), "0.062", False, "prefix"),
    ("coin_flip", entry("0.0001"), "0.0002", False, "small"),
    ("coin_flip", entry("0.0625"), "0.063", False, None),
    ("coin_flip", entry("0.0625"), "0.0626", False, "digits"),
    ("coin_flip", entry("1/16"), "word", False, None),
    ("complex_arithmetic", entry("1.0 - 2.0i", result=[1.0, -2.0]), "1.0000005 - 2.0i", False, "near"),
    ("complex_arithmetic", entry("1.0 - 2.0i", result=[1.0, -2.0]), "1.001 - 2.0i", False, None),
    ("complex_arithmetic", entry("1.0 - 2.0i", result=[1.0, -2.0]), "-2.0i + 1.0", True, "order"),
    ("complex_arithmetic", entry("1.0 - 2.0i", result=[1.0, -2.0]), "2.0i + 1.0", True, None),
    ("decimal_arithmetic", entry("1.23456"), "1.23466", False, "digits"),
    ("decimal_arithmetic", entry("1.23456"), "1.33456", False, None),
    ("jugs", entry('["fill A"]'), '["fill A, "empty B"]', True, "not JSON"),
    ("jugs", entry('["fill A"]'), "I would fill A", True, None),
    ("knights_knaves", entry("Ann is a knight."), "Ann is a knight. knave,", False, "second role"),
    ("knights_knaves", entry("Ann is a knight."), "Ann is a knight", False, None),
    ("letter_jumble", entry("one two"), "One two two", False, "more words"),
    ("letter_jumble", entry("one two"), "two one two", False, None),
    ("number_sorting", SORTED, "['1.5', '7.9']", False, "near"),
    ("number_sorting", SORTED, "['1.5', '8.1']", False, None),
    ("number_sorting", SORTED, "['1.5']", False, None),
    ("number_sorting", SORTED, "['1.5', '7.9']", True, None),
    ("propositional_logic", LOGIC, "(P ∨ P) (P", False, "no formula"),
    ("propositional_logic", LOGIC, "P ∧ (P → Q)", False, "restated"),
    ("propositional_logic", LOGIC, "(P → Q) ∨ R", False, "restated"),
    ("propositional_logic", LOGIC, "Q", True, "variable"),
    ("propositional_logic", LOGIC, "R", True, None),
    ("propositional_logic", LOGIC, "Q ∧ (R ∨ ¬R)", False, None),
    ("propositional_logic", LOGIC, "P", True, None),
    ("puzzle24", entry("6*4*1*1", numbers=[6, 4, 1, 1]), "6*4", False, "numbers"),
    ("puzzle24", entry("6*4*1*1", numbers=[6, 4, 1, 1]), "4*1*6*1", False, None),
    ("rush_hour", BOARD, "A+4", False, "blocked"),
    ("rush_hour", BOARD, "B+2 A+4", False, None),
    ("sentence_reordering", entry("' exclaims every one."), "exclaims every one.", True, "quote"),
    ("sentence_reordering", entry("the end of the day"), "the day of the end", True, "doubled word"),
    ("sentence_reordering", entry("the end of the day"), "the day of an end", True, None),
    ("time_intervals", DAYS, "41 yads", False, "more than days"),
    ("time_intervals", DAYS, "42 days days", False, None),
    ("time_intervals", entry("01:26:59", task_type="time_seconds"), "1:026:59", False, "no clock"),
    ("time_intervals", entry("01:26:59", task_type="time_seconds"), "01:26:58", False, None),
    ("time_intervals", NIGHT, "00:30:00.895", True, "elapsed"),
    ("time_intervals", NIGHT, "00:30:00.896", True, None),
    ("family_relationships", entry("mother-in-law", person1="Mary"), "mother-in-law", False, "stored"),
    ("family_relationships", entry("niece", person1="Mary"), "niece", False, None),
    ("mahjong_puzzle", CARDS, "Chi", True, "rules"),
    ("mahjong_puzzle", CARDS, "Pass", False, "stored"),
    ("mahjong_puzzle", CARDS, "Pass", True, None),
    ("mahjong_puzzle", CARDS, "Peng", False, None),
    ("quantum_lock", LOCK, "A → A", True, "toggles"),
    ("quantum_lock", LOCK, "A → A", False, "no press"),
    ("quantum_lock", LOCK, "B → A", False, None),
    ("syllogism", FIGURE, "No", True, "middle term"),
    ("syllogism", FIGURE, "Yes", False, "stored"),
    ("syllogism", FIGURE, "Yes", True, None),
    ("syllogism", entry("Yes", premise1="All bees are ants", premise2="All ants are cats"), "No", True, None),
    ("tower_of_hanoi", entry("", solution_length=1), "move disk 1 from Peg 1 to Peg 2", True, "letter case"),
    ("tower_of_hanoi", entry("", solution_length=1), "Move disk 1 from Peg 1 to Peg 2", True, None),
]


@pytest.mark.parametrize(("task", "item", "answer", "right", "kind"), CASES)
def test_a_kind_fits_what_it_is_for(
    task: str, item: dict[str, Any], answer: str, right: bool, kind: str | None
) -> None:
    """And an answer that is otherwise wrong, or right, is unexplained."""
    assert explanation(task, item, answer, right) == kind


def test_every_kind_has_a_reason() -> None:
    """In one sentence, under a short name."""
    for kinds in DISAGREEMENTS.values():
        for name, kind in kinds.items():
            assert len(name) <= 20
            assert kind.why.count(". ") == 0
            assert kind.why.endswith(".")
