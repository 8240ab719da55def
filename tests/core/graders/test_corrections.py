"""Wrong answers of the library: the right one is the gold answer and is paid, the stored one is not."""

from collections import Counter
from itertools import product
from typing import Any

import pytest

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.gold import corrected, syllogism_follows


def _mahjong(stored: str, *rounds: tuple[str, str], cards: str = "") -> dict[str, Any]:
    """Rounds as (card added, hand after the round)."""
    metadata = {"rounds": [{"add": add, "remove": "?", "cards": hand, "result": "?"} for add, hand in rounds]}
    return {"question": f"Now, given the initial cards {cards}, what", "answer": stored, "metadata": metadata}


def _syllogism(first: str, second: str, conclusion: str, stored: str = "No") -> dict[str, Any]:
    metadata = {"premise1": first, "premise2": second, "conclusion": conclusion}
    return {"question": "", "answer": stored, "metadata": metadata}


def _moods(names: str) -> set[str]:
    return set(names.split())


@pytest.mark.parametrize(
    ("hand", "card", "right"),
    [
        ("KKXYZ", "K", "Peng"),
        ("KKKXZ", "K", "Peng"),
        ("KKLMXZ", "K", "Peng"),  # and a sequence: Peng takes precedence
        ("KLMXZ", "K", "Chi"),
        ("KLXZ", "K", "Pass"),
        ("AABBCD", "E", "Chi"),
        ("BCCD", "B", "Chi"),  # the library looks for neighbors in the sorted hand, where BCCD hides BCD
        ("LNRT", "M", "Chi"),
        ("LMRT", "N", "Chi"),
        ("LORT", "M", "Pass"),
        ("YZ", "A", "Pass"),  # a sequence has an end
        ("AB", "Z", "Pass"),
    ],
)
def test_mahjong_follows_the_rules_of_its_question(hand: str, card: str, right: str) -> None:
    """In a first round and in a later one, whatever is stored."""
    for stored in ("Peng", "Chi", "Pass"):
        for entry in (_mahjong(stored, (card, "?"), cards=hand), _mahjong(stored, ("Q", hand), (card, "?"))):
            assert gold_answer("mahjong_puzzle", entry) == right
            paid = {answer for answer in ("Peng", "Chi", "Pass") if grade("mahjong_puzzle", {}, entry, answer)}
            assert paid == {right}


def test_syllogisms_are_the_fifteen_valid_moods_and_nine_that_need_a_member() -> None:
    """Of the 256 moods in four figures, as logic books list them; another nine are valid for Aristotle alone."""
    figures = [("MP", "SM"), ("PM", "SM"), ("MP", "MS"), ("PM", "MS")]
    kinds = {"A": "All {} are {}", "E": "No {} are {}", "I": "Some {} are {}", "O": "Some {} are not {}"}
    found: dict[bool | None, set[str]] = {True: set(), False: set(), None: set()}
    for number, (major, minor) in enumerate(figures, start=1):
        for mood in product("AEIO", repeat=3):
            texts = [kinds[kind].format(*terms) for kind, terms in zip(mood, (major, minor, "SP"), strict=True)]
            found[syllogism_follows(_syllogism(*texts))].add("".join(mood) + str(number))
    assert found[True] == _moods("AAA1 EAE1 AII1 EIO1 EAE2 AEE2 EIO2 AOO2 IAI3 AII3 OAO3 EIO3 AEE4 IAI4 EIO4")
    assert found[None] == _moods("AAI1 EAO1 AEO2 EAO2 AAI3 EAO3 AAI4 AEO4 EAO4")


@pytest.mark.parametrize(
    ("texts", "right"),
    [
        (("All elephants are fish", "Some fish are chefs", "Some elephants are chefs"), "No"),
        (("Some butterflies are birds", "All birds are writers", "Some butterflies are writers"), "Yes"),
        (("No bees are ants", "All ants are cats", "No ants are bees"), "Yes"),
        (("Some bees are not ants", "All ants are cats", "Some ants are not bees"), "No"),
    ],
)
def test_syllogisms_pay_what_follows(texts: tuple[str, str, str], right: str) -> None:
    """Also from one premise alone, whatever is stored."""
    for stored in ("Yes", "No"):
        entry = _syllogism(*texts, stored=stored)
        assert gold_answer("syllogism", entry) == right
        assert Counter(grade("syllogism", {}, entry, answer) for answer in ("Yes", "No"))[1.0] == 1
        assert grade("syllogism", {}, entry, right) == 1.0


def test_existential_import_is_left_as_stored() -> None:
    """Such a question is no row; where one was built before, its stored answer is the right one."""
    entry = _syllogism("All bees are ants", "All ants are cats", "Some ants are bees", stored="Yes")
    assert syllogism_follows(entry) is None
    assert gold_answer("syllogism", entry) == "Yes"


@pytest.mark.parametrize(
    ("stored", "person", "right", "wrong"),
    [
        ("mother-in-law", "Mary", "daughter-in-law", ["mother-in-law", "son-in-law", "daughter"]),
        ("father-in-law", "James", "Son in law", ["father-in-law", "mother-in-law"]),
        ("nephew", "Mary", "niece", ["nephew", "uncle"]),
        ("niece", "Mary", "niece", ["nephew"]),
        ("niece", "Nobody", "niece", ["nephew"]),  # of unknown sex
        ("mother", "Mary", "mother", ["daughter", "mother father", ""]),
    ],
)
def test_family_relationships_are_those_of_the_first_person(
    stored: str, person: str, right: str, wrong: list[str]
) -> None:
    """The question is what the first person is to the second; the library stores the second one's word."""
    entry = {"question": "", "answer": stored, "metadata": {"person1": person}}
    assert gold_answer("family_relationships", entry) == right.lower().replace(" ", "-")
    assert grade("family_relationships", {}, entry, right) == 1.0
    assert not any(grade("family_relationships", {}, entry, answer) for answer in wrong)


def test_family_relationships_reads_the_names_of_the_config() -> None:
    """Who is a man is known from the config's names, where it has some."""
    config = {"male_names": ["Mary"], "female_names": ["James"]}
    entry = {"question": "", "answer": "mother-in-law", "metadata": {"person1": "Mary"}}
    assert gold_answer("family_relationships", entry, config) == "son-in-law"
    assert grade("family_relationships", config, entry, "son-in-law") == 1.0


def test_matilda_has_the_women_of_both_circles() -> None:
    """But herself: 2 around Barbara and Barbara, less Matilda, and 3 around Michael, less Matilda."""
    entry = {
        "question": "Barbara has 1 male colleagues and she also has 2 female colleagues. [...] Michael has 6 male "
        "colleagues and 3 female colleagues in total. [...] How many female colleagues does Matilda have?",
        "answer": "3",
        "metadata": {},
    }
    assert gold_answer("aiw", entry) == "4"
    assert [grade("aiw", {}, entry, answer) for answer in ("3", "4", "5")] == [0.0, 1.0, 0.0]
    friends = {"question": "Sarah has 4 male friends and she also has 1 female friends.", "answer": "2", "metadata": {}}
    assert gold_answer("aiw", friends) == "2"


def test_knights_that_can_be_swapped_are_not_impossible() -> None:
    """The library stores "No" for some of them; a puzzle on three squares is one that cannot be done."""
    ring = dict.fromkeys(["A1", "B3", "C1", "A2", "C3", "B1", "A3", "C2"])
    entry = {
        "question": "",
        "answer": "No",
        "metadata": {"pieces": {**ring, "A1": "w", "C3": "B"}, "start_turn": "w", "is_possible": False},
    }
    gold = gold_answer("knight_swap", entry)
    assert gold is not None
    assert gold.startswith('["w,A1,')
    assert grade("knight_swap", {}, entry, gold) == 1.0
    assert grade("knight_swap", {}, entry, "No") == 0.0
    stuck = {**entry, "metadata": {"pieces": {"A1": "w", "B3": "B", "C1": None}, "start_turn": "w"}}
    assert gold_answer("knight_swap", stuck) == "No"


def test_tsumego_is_the_move_that_captures_most() -> None:
    """Stored is another one, or one of several."""
    board = [list(row) for row in ("XO..X", ".X...", "X....", ".XX..", "XOO.X")]
    metadata = {"board": board}
    for stored, right in (("D1", "D1"), ("C5", "D1"), ("A1", "D1")):
        assert gold_answer("tsumego", {"question": "", "answer": stored, "metadata": metadata}) == right


def test_quotients_are_not_rounded_down() -> None:
    """The exact value as a fraction."""
    entry = {"question": "", "answer": "3", "metadata": {"expression": "7 / 2"}}
    assert gold_answer("basic_arithmetic", entry) == "7/2"
    assert [grade("basic_arithmetic", {}, entry, answer) for answer in ("3", "3.5", "14/4")] == [0.0, 1.0, 1.0]


def test_right_entries_are_left_alone() -> None:
    """The very entry comes back, so that nothing is copied for each answer."""
    entry = _mahjong("Pass", ("K", "?"), cards="ABC")
    assert corrected("mahjong_puzzle", entry) is entry
    assert corrected("gcd", {}) == {}
