"""Kinds of honest answers on which the library's grader and ours disagree, and why ours is right.

The audit assigns each disagreement to the first kind of its task that has our verdict and whose `fits` returns True. A
disagreement that fits no kind is unexplained and fails the audit. `fits` examines the answer and the entry, and never
calls a grader: it proves that the reason applies to this answer, so that a bug of ours is not attributed to the
library.
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
    """Whether our grader accepts the answer."""
    fits: Callable[[str, Entry], bool]


def why(task: str, kind: str) -> str:
    """Return the reason why the library's verdict is wrong for this kind of answer."""
    return DISAGREEMENTS[task][kind].why


def explanation(task: str, entry: Entry, answer: str, right: bool) -> str | None:
    """Return the name of this disagreement's kind, given our verdict `right`, or None if it is unexplained."""
    for name, kind in DISAGREEMENTS.get(task, {}).items():
        if kind.right is right and kind.fits(answer.strip(), entry):
            return name
    return None


_BRACKETS = (
    "With `array_brackets`, the library requires every bracket, but the rows are unambiguous even if one is missing."
)
_INTEGRAL = "The library accepts an unevaluated `Integral(f, x)`, as in some of its own answers."

DISAGREEMENTS: dict[str, dict[str, Kind]] = {
    "advanced_geometry": {
        "degree sign": Kind("The library ignores a degree sign at any position.", False, checks.degree_sign_inside),
        "brackets": Kind("The library ignores brackets at any position.", False, checks.bracket_inside),
        "third decimal": Kind(
            "The question asks for three decimals; the library rounds angles to two.",
            False,
            lambda answer, entry: checks.within(answer.replace("°", ""), entry, lambda gold: 0.01),
        ),
    },
    "aiw": {
        "circles": Kind(
            "The library counts Matilda as her own colleague, but not the colleagues in the second circle.",
            True,
            checks.by_the_rules("aiw"),
        ),
        "stored": Kind("The stored number is the size of one circle plus Matilda.", False, checks.stored_wrong("aiw")),
    },
    "arc_agi": {"brackets": Kind(_BRACKETS, True, checks.grid_of_digits)},
    "base_conversion": {
        "zero": Kind(
            "In bases other than 2 and 16, the library stores an empty string for zero instead of `0`.",
            True,
            lambda answer, entry: answer == "0" and not entry["answer"],
        )
    },
    "basic_arithmetic": {
        "quotient": Kind(
            "The library accepts only its rounded-down quotient, not the value of the expression.",
            True,
            checks.value_of_expression,
        ),
        "stored": Kind(
            "The stored value contains a quotient that was rounded down.",
            False,
            checks.stored_wrong("basic_arithmetic"),
        ),
    },
    "boxnet": {
        "impossible": Kind("The library skips impossible actions.", False, checks.skipped_action),
        "far": Kind("The library lets a box cross several squares in one step.", False, checks.twice_in_a_step),
    },
    "codeio": {
        "last digits": Kind(
            "The library requires all 17 digits of a float, but the last digits differ between machines.",
            True,
            checks.floats_alone_differ,
        ),
        "spacing": Kind(
            "The library requires the same spacing as in the stored text.", True, checks.same_but_for(r"\s+")
        ),
    },
    "coin_flip": {
        "prefix": Kind(
            "The library gives full credit to a truncated number: 0.062 for 0.0625.", False, checks.prefix_of_gold
        ),
        "small": Kind(
            "For probabilities below 0.002, the library accepts answers that are off by more than 5%, even zero.",
            False,
            checks.small_probability,
        ),
        "digits": Kind(
            "The library accepts errors of 0.0001, however many digits the answer has: 0.0626 for 0.0625.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 1e-4),
        ),
    },
    "complex_arithmetic": {
        "order": Kind("The library does not parse `bi + a`.", True, checks.imaginary_first),
        "space": Kind(
            "The library ignores spaces even inside numbers: `4.- 0 13i`.",
            False,
            lambda answer, entry: bool(re.search(r"[\d.]\s+-?\d|[-+]\s+\d+\s+\d|\.\s*[-+]\s+\d+\s", answer)),
        ),
        "near": Kind(
            "The library gives nearly full credit to an answer that is off by 0.000001.", False, checks.near_complex
        ),
        "nan": Kind("The library gives full credit to `nan`.", False, checks.matches("nan", re.IGNORECASE)),
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
            "The question asks for 12 significant digits; the library accepts errors of up to 0.001.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 0.001),
        )
    },
    "emoji_mystery": {
        "spacing": Kind("The library requires the double spaces in the book's text.", True, checks.spacing)
    },
    "family_relationships": {
        "other person": Kind(
            "The library stores the relation of the second person to the first, or uses the second person's sex.",
            True,
            checks.matches(r"in-law|niece|nephew", re.IGNORECASE),
        ),
        "stored": Kind(
            "The stored word describes the second person.", False, checks.stored_wrong("family_relationships")
        ),
    },
    "figlet_font": {
        "ten letters": Kind(
            "The library gives a credit of 0.1 for each letter at the right position.", False, checks.ten_letters
        )
    },
    "futoshiki": {
        "layout": Kind(
            "The library requires the same spacing and signs as in the stored text.", True, checks.grid_of_digits
        )
    },
    "game_of_life_halting": {
        "anything": Kind(
            "The library accepts any text.",
            False,
            lambda answer, entry: answer.casefold() != entry["answer"].casefold(),
        )
    },
    "graph_color": {
        "vertices": Kind("The library accepts a map that also colors unknown vertices.", False, checks.unknown_vertex)
    },
    "intermediate_integration": {"Integral": Kind(_INTEGRAL, False, checks.matches("Integral"))},
    "jugs": {
        "not JSON": Kind(
            "The library requires JSON, but moves are unambiguous even if a quote or bracket is missing.",
            True,
            checks.moves_without_json,
        )
    },
    "knight_swap": {
        "not shortest": Kind(
            "The question does not require the shortest list, and some puzzles stored as impossible are solvable.",
            True,
            checks.another_plan,
        ),
        "stored": Kind(
            'The library stores "No", but the puzzle has a solution.', False, checks.stored_wrong("knight_swap")
        ),
    },
    "knights_knaves": {
        "second role": Kind(
            "The library ignores a role without a person after a correct sentence.", False, checks.role_of_nobody
        )
    },
    "letter_jumble": {
        "more words": Kind("The library accepts extra words after the right words.", False, checks.more_words)
    },
    "list_functions": {
        "spacing": Kind(
            "The library requires the same spacing as in the stored list.", True, checks.same_but_for(r"[\s,]+")
        )
    },
    "mahjong_puzzle": {
        "rules": Kind("In the last round, the library breaks its own rules.", True, checks.result_of_last_round),
        "stored": Kind(
            "The stored result breaks the rules.",
            False,
            lambda answer, entry: answer == entry["answer"] and not checks.result_of_last_round(answer, entry),
        ),
    },
    "mini_sudoku": {
        "layout": Kind("The library requires the same spacing as in the stored text.", True, checks.grid_of_digits)
    },
    "n_queens": {"spacing": Kind("The library requires single spaces.", True, checks.matches(r"^[Q_\s\[\],|'\"]+$"))},
    "number_filtering": {
        "spacing": Kind("The library rejects a space inside the quotes.", True, checks.same_but_for(r"\s+"))
    },
    "number_format": {
        "near": Kind(
            "The library accepts errors of 0.01, even if the answer is then another candidate.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 0.01),
        )
    },
    "number_sorting": {
        "near": Kind(
            "The library accepts numbers within 1 of the question's numbers.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 1.0),
        )
    },
    "polynomial_equations": {
        "rounding": Kind(
            "The question requires four decimal places, rounded down; the library accepts only rounding half up.",
            True,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 1e-4),
        ),
        "more roots": Kind("For degree 4, the stored roots may be incomplete.", True, checks.more_roots),
    },
    "polynomial_multiplication": {
        "terms": Kind("The library accepts polynomials whose like terms are not collected.", False, checks.more_terms)
    },
    "pool_matrix": {
        "near": Kind(
            "The question requires two decimals; the library accepts errors of 1%.",
            False,
            lambda answer, entry: checks.within(answer, entry, lambda gold: 1e-2 * abs(gold) + 1e-6),
        )
    },
    "prime_factorization": {
        "form": Kind(
            "The library parses only numbers and ×, not powers.", True, checks.matches(r"^[\d\s×x*^,=(){}²³⁰-⁹]+$")
        )
    },
    "propositional_logic": {
        "no formula": Kind("The library accepts malformed formulas such as `(P ∨ P) (P`.", False, checks.no_formula),
        "restated": Kind("The library accepts a restatement of all or part of one premise.", False, checks.restates),
        "variable": Kind(
            "The library treats every answer that is a single variable as trivial, even if it takes several premises "
            "to derive.",
            True,
            checks.a_variable,
        ),
    },
    "puzzle24": {
        "numbers": Kind("The library does not check that the given numbers are used.", False, checks.other_numbers)
    },
    "quantum_lock": {
        "toggles": Kind(
            "A press that does not change the number still toggles the light, but the library skips it.",
            True,
            checks.idle_press,
        ),
        "no press": Kind(
            "The library ignores a press that toggles the light without changing the number.", False, checks.idle_press
        ),
    },
    "rearc": {"brackets": Kind(_BRACKETS, True, checks.grid_of_digits)},
    "rubiks_cube": {
        "dropped": Kind(
            "The library ignores moves such as `2R` and `U2'` and plays the other moves.",
            False,
            checks.matches(r"\d\w|\d'|''|[^FRULDB\d'\s]"),
        )
    },
    "rush_hour": {
        "blocked": Kind(
            "The library moves a vehicle until it is blocked, but a move through another vehicle is illegal.",
            False,
            checks.clipped_move,
        )
    },
    "sentence_reordering": {
        "quote": Kind(
            "The library counts an unpaired quotation mark as a word of the sentence.",
            True,
            checks.same_but_for(r"(?<!\S)['\"](?!\S)|\s"),
        ),
        "doubled word": Kind(
            "For sentences with a repeated word (one in four), the library stores a wrong order.",
            True,
            checks.same_words,
        ),
    },
    "simple_equations": {
        "always true": Kind(
            "Every number solves `0 = 0`, which the generator sometimes produces.",
            True,
            lambda answer, entry: entry["metadata"]["equation"].strip() == "0 = 0",
        )
    },
    "simple_integration": {"Integral": Kind(_INTEGRAL, False, checks.matches("Integral"))},
    "sokoban": {
        "no move": Kind("The library ignores characters that are not moves.", False, checks.matches(r"[^LRUD\s]"))
    },
    "survo": {"another grid": Kind("The library accepts only the stored grid.", True, checks.other_numbers_as_many)},
    "syllogism": {
        "middle term": Kind(
            "The library ignores that the middle term is distributed in neither premise, so nothing follows.",
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
            "If the answer is a number of days, the library checks only its first word.", False, checks.days_and_more
        ),
        "no clock": Kind(
            "The library accepts malformed times such as `0:026:59` and `00:48:0.2248`.", False, checks.no_clock
        ),
        "elapsed": Kind(
            "The library's own answer is sometimes a millisecond short, or negative if midnight is between the times.",
            True,
            checks.elapsed_time,
        ),
        "behind a weekday": Kind(
            "The library ignores the time of day after a weekday such as `(Monday)`.", True, checks.time_behind_weekday
        ),
        "stored": Kind("The stored time is not the elapsed time.", False, checks.stored_wrong("time_intervals")),
        "whole days": Kind("The library requires a time of day after whole days.", True, checks.no_time_of_day),
    },
    "tower_of_hanoi": {
        "letter case": Kind(
            "The library requires `Move` with a capital M.",
            True,
            checks.in_other_case(r"Move disk \d+ from Peg \d+ to Peg \d+"),
        ),
        "not shortest": Kind(
            "The question does not require the shortest list; the library gives less credit for a longer list.",
            True,
            lambda answer, entry: answer.lower().count("move") > entry["metadata"]["solution_length"],
        ),
    },
    "tsumego": {
        "another move": Kind(
            "The library accepts only its stored move, even if another move captures as many white stones.",
            True,
            lambda answer, entry: bool(re.fullmatch(r"[A-Za-z]\d{1,2}", answer)) and answer != entry["answer"],
        ),
        "stored": Kind(
            "The stored move captures fewer stones than another move, or none.", False, checks.stored_wrong("tsumego")
        ),
    },
    "word_sequence_reversal": {
        "spacing": Kind("The library requires the space after the comma.", True, checks.same_but_for(r"[\s,]+"))
    },
}
"""Kinds of disagreement by task and short name."""
