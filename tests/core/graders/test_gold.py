"""Entries whose stored answer is wrong: the right answer becomes the gold answer and scores; the stored one does
not."""

from itertools import product
from typing import Any

import pytest
from grader_cases import entry

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.gold import corrected, syllogism_follows

RING = dict.fromkeys(["A1", "B3", "C1", "A2", "C3", "B1", "A3", "C2"])
BOARD = [list(row) for row in ("XO..X", ".X...", "X....", ".XX..", "XOO.X")]
CIRCLES = (
    "Barbara has 1 male colleagues and she also has 2 female colleagues. [...] Michael has 6 male "
    "colleagues and 3 female colleagues in total. [...] How many female colleagues does Matilda have?"
)
FRIENDS = "Sarah has 4 male friends and she also has 1 female friends."


def mahjong(*rounds: tuple[str, str], cards: str = "") -> dict[str, Any]:
    """An entry of mahjong_puzzle with rounds of (card added, hand after the round)."""
    shown = [{"add": add, "remove": "?", "cards": hand, "result": "?"} for add, hand in rounds]
    return entry("", f"Now, given the initial cards {cards}, what", rounds=shown)


def syllogism(first: str, second: str, conclusion: str) -> dict[str, Any]:
    return entry("No", premise1=first, premise2=second, conclusion=conclusion)


@pytest.mark.parametrize(
    ("task", "item", "stored", "right", "wrong"),
    [
        *(
            ("mahjong_puzzle", item, stored, right, {"Peng", "Chi", "Pass"} - {right})
            for stored in ("Peng", "Chi", "Pass")
            for hand, card, right in (
                # Peng takes precedence over a sequence; in BCCD, the second C hides BCD from the library's search
                *(("KKXYZ", "K", "Peng"), ("KKKXZ", "K", "Peng"), ("KKLMXZ", "K", "Peng"), ("KLMXZ", "K", "Chi")),
                *(("KLXZ", "K", "Pass"), ("AABBCD", "E", "Chi"), ("BCCD", "B", "Chi"), ("LNRT", "M", "Chi")),
                *(("LMRT", "N", "Chi"), ("LORT", "M", "Pass"), ("YZ", "A", "Pass"), ("AB", "Z", "Pass")),
            )
            for item in (mahjong((card, "?"), cards=hand), mahjong(("Q", hand), (card, "?")))
        ),
        *(
            ("syllogism", syllogism(*texts), stored, right, {"Yes", "No"} - {right})
            for stored in ("Yes", "No")
            for *texts, right in (
                ("All elephants are fish", "Some fish are chefs", "Some elephants are chefs", "No"),
                ("Some butterflies are birds", "All birds are writers", "Some butterflies are writers", "Yes"),
                ("No bees are ants", "All ants are cats", "No ants are bees", "Yes"),  # follows from one premise alone
                ("Some bees are not ants", "All ants are cats", "Some ants are not bees", "No"),
            )
        ),
        *(
            ("family_relationships", entry("", person1=person), stored, right, wrong)
            for stored, person, right, wrong in (
                ("mother-in-law", "Mary", "daughter-in-law", ["mother-in-law", "son-in-law", "daughter"]),
                ("father-in-law", "James", "son-in-law", ["father-in-law", "mother-in-law"]),
                ("nephew", "Mary", "niece", ["nephew", "uncle"]),
                ("niece", "Mary", "niece", ["nephew"]),
                ("niece", "Nobody", "niece", ["nephew"]),  # a name of unknown sex
                ("mother", "Mary", "mother", ["daughter", "mother father"]),
            )
        ),
        ("aiw", entry("", CIRCLES), "3", "4", ["3", "5"]),  # the women of both circles except Matilda herself
        ("aiw", entry("", FRIENDS), "2", "2", ["1"]),
        ("basic_arithmetic", entry("", expression="7 / 2"), "3", "7/2", ["3"]),
        ("knight_swap", entry("", pieces={"A1": "w", "B3": "B", "C1": None}, start_turn="w"), "No", "No", ["[]"]),
        *(("tsumego", entry("", board=BOARD), stored, "D1", ["C5", "A1"]) for stored in ("D1", "C5", "A1")),
    ],
)
def test_the_right_answer_scores_whatever_is_stored(
    task: str, item: dict[str, Any], stored: str, right: str, wrong: list[str]
) -> None:
    """The rules in the question decide which answer is right. An entry with a right stored answer is returned as it
    is."""
    item = {**item, "answer": stored}
    assert gold_answer(task, item) == right
    assert grade(task, {}, item, right) == 1.0
    assert not any(grade(task, {}, item, answer, partial_credit=True) for answer in wrong)
    assert (corrected(task, item) is item) == (stored == right)


def test_syllogisms_are_the_fifteen_valid_moods_and_nine_that_need_a_member() -> None:
    """Of the 256 moods in four figures, 15 are valid. Nine more are valid only in Aristotelian logic, and keep their
    stored answer."""
    figures = [("MP", "SM"), ("PM", "SM"), ("MP", "MS"), ("PM", "MS")]
    kinds = {"A": "All {} are {}", "E": "No {} are {}", "I": "Some {} are {}", "O": "Some {} are not {}"}
    found: dict[bool | None, set[str]] = {True: set(), False: set(), None: set()}
    for number, (major, minor) in enumerate(figures, start=1):
        for mood in product("AEIO", repeat=3):
            texts = [kinds[kind].format(*terms) for kind, terms in zip(mood, (major, minor, "SP"), strict=True)]
            found[syllogism_follows(syllogism(*texts))].add("".join(mood) + str(number))
    valid = "AAA1 EAE1 AII1 EIO1 EAE2 AEE2 EIO2 AOO2 IAI3 AII3 OAO3 EIO3 AEE4 IAI4 EIO4"
    assert found[True] == set(valid.split())
    assert found[None] == set("AAI1 EAO1 AEO2 EAO2 AAI3 EAO3 AAI4 AEO4 EAO4".split())  # noqa: SIM905
    stored = {**syllogism("All bees are ants", "All ants are cats", "Some ants are bees"), "answer": "Yes"}
    assert gold_answer("syllogism", stored) == "Yes"


def test_family_relationships_reads_the_names_of_the_config() -> None:
    """The lists of names in the config, if any, determine a person's sex."""
    config = {"male_names": ["Mary"], "female_names": ["James"]}
    item = entry("mother-in-law", person1="Mary")
    assert gold_answer("family_relationships", item, config) == "son-in-law"
    assert grade("family_relationships", config, item, "Son in law") == 1.0


def test_knights_that_can_be_swapped_are_not_impossible() -> None:
    """For some puzzles that have a solution, the library stores "No"; their gold answer is a solution instead."""
    item = entry("No", pieces={**RING, "A1": "w", "C3": "B"}, start_turn="w", is_possible=False)
    gold = gold_answer("knight_swap", item)
    assert gold is not None
    assert gold.startswith('["w,A1,')
    assert grade("knight_swap", {}, item, gold) == 1.0
    assert grade("knight_swap", {}, item, "No") == 0.0


def test_gold_answers_that_are_in_the_metadata() -> None:
    """graph_color and rubiks_cube store their gold answers, if any, in the metadata; a number becomes text."""
    assert gold_answer("graph_color", entry(None, possible_answer={0: 1})) == '{"0": 1}'
    assert gold_answer("rubiks_cube", entry(None, example_correct_answer="")) is None
    assert gold_answer("maze", {"answer": 3, "metadata": {}}) == "3"
