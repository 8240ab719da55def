"""Graders for all tasks. Each grader grades one answer against one entry. Callers should use `core.grading.scoring`.

The library's graders are in `core.grading.upstream`. All graders in this package are the project's own. They never
execute the model's text as code, and their running time is linear in the answer's length (a few milliseconds for
`scoring.MAX_ANSWER_CHARS` characters). They return a score in [0, 1]: 1.0 for an answer that a user would call right,
0.0 for a wrong answer, and values in between only for measurable progress.
"""

import re
from collections.abc import Mapping
from typing import Any

from rg_env.core.grading.graders import algebra, algorithmic, arithmetic, cognition, common, games, logic, move_games
from rg_env.core.grading.graders.common import Grader
from rg_env.core.grading.graders.forms import Unreadable, candidates
from rg_env.core.grading.graders.gold import SOLVED_TASKS, STORED_ELSEWHERE, corrected
from rg_env.core.grading.graders.gold import gold_answer as gold_answer
from rg_env.core.grading.graders.written_out import ends_in_word, result_is_right
from rg_env.core.tasks.task_table import shipped_table

_SHARED: Mapping[Grader, str] = {
    algebra.antiderivative: "intermediate_integration simple_integration",
    algorithmic.counts: "string_splitting string_synthesis",
    algorithmic.matrix: "binary_matrix manipulate_matrix rotate_matrix",
    algorithmic.signs: "string_insertion string_manipulation",
    cognition.arc_2d: "arc_agi rearc",
    common.exact_number: "aiw binary_alternation chain_sum circuit_logic count_primes gcd largest_island lcm "
    "letter_counting maze number_sequence products rectangle_count rotten_oranges self_reference",
    common.fraction: "basic_arithmetic dice",
    common.text: "bf",
    common.truth: "course_schedule isomorphic_strings ransom_note",
    common.word: "emoji_mystery mahjong_puzzle syllogism zebra_puzzles",
}
_MODULES = algebra, algorithmic, arithmetic, cognition, games, logic, move_games
GRADERS: dict[str, Grader] = {
    **{task: grader for grader, tasks in _SHARED.items() for task in tasks.split()},
    **{task: grader for module in _MODULES for task, grader in vars(module).items() if task in shipped_table()},
}
"""Each task's grader: the function named after the task, or a function shared by several tasks."""
QUOTED = frozenset({"codeio"})
"""Tasks in which quotes around an answer turn it into a string, which is a different value."""
BRACKETED = frozenset({"bf", "codeio", "intermediate_integration", "simple_integration"})
"""Tasks in which brackets around an answer change its value, belong to a program's output, or are parsed by the
grader."""


WRITTEN_OUT = frozenset({
    *_SHARED[common.exact_number].split(), *_SHARED[common.fraction].split(), *_SHARED[algebra.antiderivative].split(),
    "advanced_geometry", "calendar_arithmetic", "coin_flip", "complex_arithmetic", "count_bits", "decimal_arithmetic",
    "decimal_chain_sum", "fraction_simplification", "gsm_symbolic", "leg_counting", "polynomial_multiplication",
    "power_function", "simple_geometry", "time_intervals",
})  # fmt: skip
"""Tasks whose answer is a single value, which may follow a calculation or precede a unit (see `written_out`)."""
ROUNDED = frozenset({"advanced_geometry", "coin_flip", "decimal_arithmetic", "polynomial_equations", "power_function"})
"""Tasks whose answers may be rounded, so that `≈` means the same as `=`."""


def grade(
    task: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str, *, partial_credit: bool = False
) -> float:
    """Grade `answer`. The score is 1.0 if the answer is right and 0.0 otherwise. With `partial_credit`, the score
    measures real progress in [0, 1].

    `entry` is the library's item in JSON form. Errors caused by an invalid `entry` propagate. `scoring` distinguishes
    these errors from wrong answers.
    """
    grader = GRADERS[task]
    entry = corrected(task, entry, config)
    if task in ROUNDED and ("\\" in answer or "pprox" in answer or not answer.isascii()):
        answer = re.sub(r"≈|\\approx(?![a-z])|\b[Aa]pproximately\b", "=", answer)

    def value_of(text: str) -> float:
        try:
            return grader(text, entry, config)
        except Unreadable:
            return 0.0

    best = value_of(answer)
    if best >= 1.0:  # before the candidates are made, because most answers in a trained model's replies are bare
        return 1.0
    question = str(entry.get("question") or " ")
    texts = candidates(answer, question, quotes=task not in QUOTED, brackets=task not in BRACKETED)
    for text in texts[1:]:
        value = value_of(text)
        if value >= 1.0:
            return 1.0
        best = max(best, value)
    may_be_written_out = task in WRITTEN_OUT and (
        any(part in answer for part in ("=", r"\text", r"\m", r"\boxed", "**")) or ends_in_word(texts[-1])
    )
    if may_be_written_out and any(
        result_is_right(text, question, lambda part: value_of(part) >= 1.0) for text in texts
    ):
        return 1.0
    return best if partial_credit else 0.0


def longest_answer(task: str, entry: Mapping[str, Any]) -> int:
    """Return the length in characters that a sensible answer may have, or 0 if the usual limit is enough. An entry that
    lacks the necessary metadata gets the usual limit."""
    if task == "tower_of_hanoi" and isinstance(entry["metadata"].get("num_disks"), int):
        return move_games.longest_hanoi(entry)
    return 0


def fault_of(task: str, config: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Return why the entry's own gold answer is not graded as right, or "" if it is or if this cannot be checked."""
    if task in SOLVED_TASKS:  # these graders raise errors for entries that the solver cannot handle
        return ""
    why = "the entry was edited or comes from another reasoning-gym version"
    try:
        gold = gold_answer(task, entry, config)
        if gold is None and entry["answer"] is None and task not in STORED_ELSEWHERE:
            return f"the row has no gold answer: {why}"
        if not gold or not gold.strip() or grade(task, config, entry, gold.strip()) == 1.0:
            return ""
    except Exception as error:
        return f"the row's own gold answer cannot be graded: {why} ({type(error).__name__}: {error})"
    return f"the row's own gold answer scores 0: {why}"
