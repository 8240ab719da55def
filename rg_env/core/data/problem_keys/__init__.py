"""The key of a problem: what a question asks, without the order, names, wording and layout that do not matter.

    problem_key("lcm", entry)       # the same for "LCM of 84, 87" and "LCM of 87, 84"

The key decides the split (`core.data.splits`), so that no problem is in both, however it is worded. `KEYS` has what
makes the problem of each task; `WHOLE` the tasks whose key is the whole question, and why; `KEPT` those with more to
take out, and too few problems without it. Tasks of the user's own go by the question.

What is not attempted: to see that two problems have the same solution for a deeper reason (equal integrands in other
forms, mirrored boards, a number sequence by another rule).
"""

import hashlib

from rg_env.core.data.problem_keys.forms import Entry, canonical
from rg_env.core.data.problem_keys.tasks import KEYS as KEYS
from rg_env.core.data.splits import question_hash

ALIKE = {"basic_arithmetic": "chain_sum", "products": "chain_sum", "intermediate_integration": "simple_integration"}
"""Tasks that can ask the very problem of another: a mixture of both has it in one split."""

WHOLE = {"self_reference": "it has one wording, and its statements speak of each other by their numbers"}
"""Tasks whose key is the whole question, and why."""

KEPT = {
    "family_relationships": "names: without them there are 80 problems; and they separate men from women",
    "mahjong_puzzle": "letters: their order in the alphabet decides",
    "palindrome_generation": "letters: without them only how often each comes is left, a few dozen problems",
    "path_star": "node labels: without them only degree and length are left, a few problems",
    "string_splitting": "the order of the machines: each kind has rules of its own",
    "string_synthesis": "the order of the blocks: each kind has rules of its own",
    "syllogism": "terms: without them there are some two hundred forms, half of which share an answer",
    "tower_of_hanoi": "the numbers of the pegs: without them there are some ten problems",
}
"""What else could be taken out of a task's problem, and why it is kept."""

DIGITS = 32
"""Length of a key: 128 bits in hexadecimal digits."""


def described(task: str) -> str:
    """What makes the problem of a task, in words."""
    if task not in KEYS:
        return f"the whole question ({WHOLE.get(task, 'a task of your own')})"
    kept = f" (with {KEPT[task]})" if task in KEPT else ""
    return f"{KEYS[task].asks}{kept}"


def problem_key(task: str, entry: Entry) -> str:
    """Key of the problem that an entry (the library's, as JSON gives it back) asks: the same on every machine, under
    every hash seed, config and level."""
    try:
        form = KEYS[task].form(entry)
    except (KeyError, IndexError, TypeError, ValueError):  # a task without a form, or an entry of a later library
        return question_hash(entry["question"])[:DIGITS]
    text = f"{ALIKE.get(task, task)}:{canonical(form)}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
