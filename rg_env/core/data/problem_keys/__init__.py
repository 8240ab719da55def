"""Problem keys: hashes of what a question asks, ignoring irrelevant order, names, wording and layout.

    problem_key("lcm", entry)       # the same for "LCM of 84, 87" and "LCM of 87, 84"

The key determines the split (`core.data.splits`), so a problem is never in both splits, regardless of wording. `KEYS`
defines the problem of each task. `WHOLE` lists tasks that use the whole question as the key. `KEPT` lists tasks whose
key keeps ignorable details, because too few problems would remain without them. The user's own tasks use the question.

Keys do not recognize problems that have the same solution for a deeper reason, such as equal integrands in different
forms, mirrored boards, or a number sequence with another rule.
"""

import hashlib

from rg_env.core.data.problem_keys.forms import Entry, canonical
from rg_env.core.data.problem_keys.tasks import KEYS as KEYS
from rg_env.core.data.splits import question_hash

ALIKE = {"basic_arithmetic": "chain_sum", "products": "chain_sum", "intermediate_integration": "simple_integration"}
"""Tasks that can pose the same problems as another task. They share its keys, so a mixture of both has a problem in
only one split."""

WHOLE = {"self_reference": "there is only one wording, and the statements refer to each other by number"}
"""Tasks that use the whole question as the key, with the reason."""

KEPT = {
    "family_relationships": "names: without them there are only 80 problems, and they indicate who is male or female",
    "mahjong_puzzle": "letters: their alphabetical order matters",
    "palindrome_generation": "letters: without them, only their counts would remain, a few dozen problems",
    "path_star": "node labels: without them, only degree and length would remain, a few problems",
    "string_splitting": "the order of the machines: each kind has its own rules",
    "string_synthesis": "the order of the blocks: each kind has its own rules",
    "syllogism": "terms: without them, there are about 200 forms, half of which share an answer",
    "tower_of_hanoi": "peg numbers: without them, there are about ten problems",
}
"""Details a task's key could ignore but keeps, with the reason."""

DIGITS = 32
"""Length of a key in hexadecimal digits: 128 bits."""


def described(task: str) -> str:
    """A description of what a task's problem key covers."""
    if task not in KEYS:
        return f"the whole question ({WHOLE.get(task, 'your own task')})"
    kept = f" (with {KEPT[task]})" if task in KEPT else ""
    return f"{KEYS[task].asks}{kept}"


def problem_key(task: str, entry: Entry) -> str:
    """The problem key of a library entry (after a round trip through JSON).

    It is the same on every machine and under every hash seed, config and level.
    """
    try:
        form = KEYS[task].form(entry)
    except (KeyError, IndexError, TypeError, ValueError):  # no form, or an entry of a later release
        return question_hash(entry["question"])[:DIGITS]
    text = f"{ALIKE.get(task, task)}:{canonical(form)}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
