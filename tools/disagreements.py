"""Where the library's grader and ours differ on honest answers, why ours is right, and how to tell which case is which.

The audit gives each disagreement to the first kind of its task that has our verdict and that `fits`; one that fits none
is unexplained, and fails the audit. A `fits` looks at the answer and the entry and never asks a grader: it shows that
the reason holds for this answer, so that a mistake of ours does not hide behind a sentence about the library.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import disagreement_checks as checks

from rg_env.core.grading.graders.common import Entry


@dataclass(frozen=True)
class Kind:
    """One way in which the library's verdict is wrong."""

    why: str
    right: bool
    """Our verdict: the answer is right, or it is not."""
    fits: Callable[[str, Entry], bool]


def why(task: str, kind: str) -> str:
    """Why the library's verdict is wrong in this kind of disagreement."""
    return DISAGREEMENTS[task][kind].why


def explanation(task: str, entry: Entry, answer: str, right: bool) -> str | None:
    """The kind of this disagreement, where we say `right`; None if it is of no kind."""
    for name, kind in DISAGREEMENTS.get(task, {}).items():
        if kind.right is right and kind.fits(answer.strip(), entry):
            return name
    return None


_BRACKETS = "With `array_brackets` the library wants each bracket in its place; the rows are as clear with one missing."
_INTEGRAL = "The library pays an unevaluated `Integral(f, x)`; some of its own answers are one."

DISAGREEMENTS: dict[str, dict[str, Kind]] = {
    "advanced_geometry": {
        "degree sign": Kind("The library drops the degree sign wherever it stands.", False, checks.degree_sign_inside),
        "brackets": Kind("The library drops brackets wherever they stand.", False, checks.bracket_inside),
        "third decimal": Kind(
            "The question asks for three decimals; the library rounds angles to two.",
            False,
            lambda answer, entry: checks.within(answer.replace("°", ""), entry, lambda gold: 0.01),
        ),
    },
    "aiw": {
        "circles": Kind(
            "The library counts Matilda as her own colleague, and not those of the second circle.",
            True,
            checks.by_the_rules("aiw"),
        ),
        "stored": Kind("The stored number is that of one circle and Matilda.", False, checks.stored_wrong("aiw")),
    },
    "arc_agi": {"brackets": Kind(_BRACKETS, True, checks.grid_of_digits)},
    "base_conversion": {
        "zero": Kind(
            "The library stores an empty text for zero in bases other than 2 and 16; right is `0`.",
            True,
            lambda answer, entry: answer == "0" and not entry["answer"],
        )
    },
    "basic_arithmetic": {
        "quotient": Kind(
            "The library takes its rounded-down quotient alone for right, not the value of the expression.",
            True,
            checks.value_of_expression,
        ),
        "stored": Kind(
            "The stored quotient is rounded down on the way.", False, checks.stored_wrong("basic_arithmetic")
        ),
    },
    "boxnet": {
        "impossible": Kind("The library skips actions that are impossible.", False, checks.skipped_action),
        "far": Kind("In the library one box may cross several squares in one step.", False, checks.twice_in_a_step),
    },
    "codeio": {
        "last digits": Kind(
            "The library wants each of the 17 digits of a float, which differ between machines.",
            True,
            checks.floats_alone_differ,
        ),
        "spacing": Kind("The library wants the spacing of the stored text.", True, checks.same_but_for(r"\s+")),
    },
    "coin_flip": {
        "prefix": Kind("The library pays in full for what breaks off: 0.062 for 0.0625.", False, checks.prefix_of_gold),
        "small": Kind(
            "Below 0.002 the library's tolerance of 0.0001 pays what is off by more than 5 %, zero included.",
            False,
            checks.small_probability,
        ),
        "digits": Kind(
            "The library pays what is 0.0001 off, whatever digits are written: 0.0626 for 0.0625.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 1e-4),
        ),
    },
    "complex_arithmetic": {
        "order": Kind("The library does not know `bi + a`.", True, checks.imaginary_first),
        "space": Kind(
            "The library drops spaces, inside a number too: `4.- 0 13i`.",
            False,
            lambda answer, entry: bool(re.search(r"[\d.]\s+-?\d|[-+]\s+\d+\s+\d|\.\s*[-+]\s+\d+\s", answer)),
        ),
        "near": Kind("The library pays nearly all for what is 0.000001 off.", False, checks.near_complex),
        "nan": Kind("The library pays `nan` in full.", False, checks.matches("nan", re.IGNORECASE)),
    },
    "countdown": {
        "notation": Kind(
            "The library misses numbers in other notations: `0x0*(a+b)+0x<target>`.",
            False,
            checks.matches(r"0[xob]|\de|_"),
        )
    },
    "decimal_arithmetic": {
        "digits": Kind(
            "The question asks for 12 significant digits; the library takes what is off by 0.001 or less.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 0.001),
        )
    },
    "emoji_mystery": {"spacing": Kind("The library wants the double spaces of the book's text.", True, checks.spacing)},
    "family_relationships": {
        "other person": Kind(
            "The library stores what the second person is to the first, or the second one's sex.",
            True,
            checks.matches(r"in-law|niece|nephew", re.IGNORECASE),
        ),
        "stored": Kind(
            "The stored word is that for the second person.", False, checks.stored_wrong("family_relationships")
        ),
    },
    "figlet_font": {
        "ten letters": Kind("The library pays 0.1 for each letter in its place.", False, checks.ten_letters)
    },
    "futoshiki": {
        "layout": Kind("The library wants the stored text to the space and the sign.", True, checks.grid_of_digits)
    },
    "game_of_life_halting": {
        "anything": Kind(
            "The library pays any text.", False, lambda answer, entry: answer.casefold() != entry["answer"].casefold()
        )
    },
    "graph_color": {
        "vertices": Kind("The library takes a map that colors other vertices too.", False, checks.unknown_vertex)
    },
    "intermediate_integration": {"Integral": Kind(_INTEGRAL, False, checks.matches("Integral"))},
    "jugs": {
        "not JSON": Kind(
            "The library wants JSON, while moves are as clear with a quote or bracket missing.",
            True,
            checks.moves_without_json,
        )
    },
    "knight_swap": {
        "not shortest": Kind(
            "The question does not ask for the shortest list, and not all puzzles stored as impossible are.",
            True,
            checks.another_plan,
        ),
        "stored": Kind('"No" is stored, and the puzzle has a solution.', False, checks.stored_wrong("knight_swap")),
    },
    "knights_knaves": {
        "second role": Kind("The library overlooks a role after a right sentence.", False, checks.role_of_nobody)
    },
    "letter_jumble": {
        "more words": Kind(
            "The library pays for the right words with more words behind them.", False, checks.more_words
        )
    },
    "list_functions": {
        "spacing": Kind("The library wants the spacing of the stored list.", True, checks.same_but_for(r"[\s,]+"))
    },
    "mahjong_puzzle": {
        "rules": Kind("The library does not play its last round by its own rules.", True, checks.result_of_last_round),
        "stored": Kind(
            "The stored result breaks the rules.",
            False,
            lambda answer, entry: answer == entry["answer"] and not checks.result_of_last_round(answer, entry),
        ),
    },
    "mini_sudoku": {"layout": Kind("The library wants the stored text to the space.", True, checks.grid_of_digits)},
    "n_queens": {"spacing": Kind("The library wants single spaces.", True, checks.matches(r"^[Q_\s\[\],|'\"]+$"))},
    "number_filtering": {
        "spacing": Kind("The library wants no space within the quotes.", True, checks.same_but_for(r"\s+"))
    },
    "number_format": {
        "near": Kind(
            "The library takes what is 0.01 off, another candidate too.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 0.01),
        )
    },
    "number_sorting": {
        "near": Kind(
            "The library takes numbers within 1 of those of the question.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 1.0),
        )
    },
    "polynomial_equations": {
        "rounding": Kind(
            "The question wants four places, rounded down; the library only what is rounded half up.",
            True,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 1e-4),
        ),
        "more roots": Kind("For degree 4 the stored roots are not always all.", True, checks.more_roots),
    },
    "polynomial_multiplication": {
        "terms": Kind("The library pays like terms that are not collected.", False, checks.more_terms)
    },
    "pool_matrix": {
        "near": Kind(
            "The question wants two decimals; the library takes what is off by 1 %.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 1e-2 * abs(gold) + 1e-6),
        )
    },
    "prime_factorization": {
        "form": Kind(
            "The library reads numbers and × alone, no powers.", True, checks.matches(r"^[\d\s×x*^,=(){}²³⁰-⁹]+$")
        )
    },
    "propositional_logic": {
        "no formula": Kind("The library reads broken text, such as `(P ∨ P) (P`.", False, checks.no_formula),
        "restated": Kind(
            "The library pays for what one premise says alone, in whole or in part.", False, checks.restates
        ),
        "variable": Kind("The library calls every single variable trivial, derived or not.", True, checks.a_variable),
    },
    "puzzle24": {
        "numbers": Kind("The library does not check that the given numbers are used.", False, checks.other_numbers)
    },
    "quantum_lock": {
        "toggles": Kind("A press without effect toggles the light; the library skips it.", True, checks.idle_press),
        "no press": Kind("The library takes a press without effect for none.", False, checks.idle_press),
    },
    "rearc": {"brackets": Kind(_BRACKETS, True, checks.grid_of_digits)},
    "rubiks_cube": {
        "dropped": Kind(
            "The library drops moves like `2R` and `U2'` and turns only what is left.",
            False,
            checks.matches(r"\d\w|\d'|''|[^FRULDB\d'\s]"),
        )
    },
    "rush_hour": {
        "blocked": Kind(
            "The library goes as far as a vehicle gets; a move through another is illegal.", False, checks.clipped_move
        )
    },
    "sentence_reordering": {
        "quote": Kind(
            "A quotation mark that lost its pair is no word of the sentence.",
            True,
            checks.same_but_for(r"(?<!\S)['\"](?!\S)|\s"),
        ),
        "doubled word": Kind(
            "For a sentence with a word twice, one in four, the library stores a wrong order.", True, checks.same_words
        ),
    },
    "simple_equations": {
        "always true": Kind(
            "Every number solves `0 = 0`, which the generator makes now and then.",
            True,
            lambda answer, entry: entry["metadata"]["equation"].strip() == "0 = 0",
        )
    },
    "simple_integration": {"Integral": Kind(_INTEGRAL, False, checks.matches("Integral"))},
    "sokoban": {"no move": Kind("The library ignores what is no move.", False, checks.matches(r"[^LRUD\s]"))},
    "survo": {"another grid": Kind("The library takes the stored grid alone.", True, checks.other_numbers_as_many)},
    "syllogism": {
        "middle term": Kind(
            "The library overlooks that the middle term is distributed in neither premise, so that nothing follows.",
            True,
            lambda answer, entry: answer.casefold() == "no" and checks.undistributed_middle(entry),
        ),
        "stored": Kind(
            "The stored conclusion does not follow: the middle term is distributed in neither premise.",
            False,
            lambda answer, entry: answer.casefold() == "yes" and checks.undistributed_middle(entry),
        ),
    },
    "time_intervals": {
        "more than days": Kind(
            "Of a number of days the library reads the first word alone.", False, checks.days_and_more
        ),
        "no clock": Kind("The library reads `0:026:59` and `00:48:0.2248`.", False, checks.no_clock),
        "elapsed": Kind(
            "The library's own answer is a millisecond short now and then, or negative after midnight.",
            True,
            checks.elapsed_time,
        ),
        "behind a weekday": Kind(
            "The library drops the time of day behind `(Monday)`.", True, checks.time_behind_weekday
        ),
        "stored": Kind("The stored time is not what elapsed.", False, checks.stored_wrong("time_intervals")),
        "whole days": Kind("The library wants a time of day after whole days.", True, checks.no_time_of_day),
    },
    "tower_of_hanoi": {
        "letter case": Kind(
            "The library wants `Move` with a capital.",
            True,
            checks.in_other_case(r"Move disk \d+ from Peg \d+ to Peg \d+"),
        ),
        "not shortest": Kind(
            "The question does not ask for the shortest list; the library pays the share of it.",
            True,
            lambda answer, entry: answer.lower().count("move") > entry["metadata"]["solution_length"],
        ),
    },
    "tsumego": {
        "another move": Kind(
            "The library takes its stored move alone, though another may capture as many white stones.",
            True,
            lambda answer, entry: bool(re.fullmatch(r"[A-Za-z]\d{1,2}", answer)) and answer != entry["answer"],
        ),
        "stored": Kind("The stored move captures fewer stones, or none.", False, checks.stored_wrong("tsumego")),
    },
    "word_sequence_reversal": {
        "spacing": Kind("The library wants the space behind the comma.", True, checks.same_but_for(r"[\s,]+"))
    },
}
"""By task, each kind under a short name."""
