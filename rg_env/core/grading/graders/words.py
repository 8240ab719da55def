"""Graders of the algorithmic tasks on words and letters."""

import csv
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from rg_env.core.grading.graders.common import Config, Entry, Grader, in_order, progress, squeezed, too_long, word

_LADDER_LENGTHS = (3, 4, 5)
_QUOTES = "'\"`‘’“”"
_AS_JSON = str.maketrans("'()", '"[]')  # no word has an apostrophe
_INNER_LIST = re.compile(r"\[([^\[\]]*)\]")


def letter_jumble(answer: str, entry: Entry, config: Config) -> float:
    """The words of the story in any letter case; in part, those unscrambled beyond those that came unscrambled."""
    return _in_place(answer.casefold().split(), entry["answer"], " ".join(entry["metadata"]["scrambled_words"]))


def sentence_reordering(answer: str, entry: Entry, config: Config) -> float:
    """The sentence of the story, in any letter case; in part, words in their place beyond those that came there.

    Where a word occurs twice, the library stores the sentence with both in the place of the first. The real sentence
    is right as well; the stored one stays right, to have every stored answer right.
    """
    shuffled = _sentence(entry["question"].partition(": ")[2])
    stored: str = entry["answer"]
    original = _originals().get(tuple(stored.split()), stored)
    given = _sentence(answer)
    return max(_in_place(given.split(), _sentence(gold), shuffled) for gold in (stored, original))


def _sentence(text: str) -> str:
    return text.strip().lstrip(_QUOTES).rstrip(_QUOTES + ".!?").casefold()


@cache
def _originals() -> dict[tuple[str, ...], str]:
    """The sentences of the story by the form in which the library stores them."""
    return {tuple(sorted(sentence, key=sentence.index)): " ".join(sentence) for sentence in _story_sentences()}


def _in_place(words: Sequence[str], gold: str, start: str) -> float:
    wanted, first = gold.casefold().split(), start.casefold().split()
    if len(words) != len(wanted):
        return 0.0
    right = sum(one == other for one, other in zip(words, wanted, strict=True))
    return progress(right, sum(one == other for one, other in zip(first, wanted, strict=False)), len(wanted))


def spell_backward(answer: str, entry: Entry, config: Config) -> float:
    """The word backward in any letter case; its letters may stand apart."""
    return float(squeezed(answer).casefold() == entry["answer"].casefold())


def palindrome_generation(answer: str, entry: Entry, config: Config) -> float:
    """Any palindrome of just the letters given, in any letter case; they may stand apart."""
    text = squeezed(answer).casefold()
    return float(text == text[::-1] and Counter(text) == Counter(entry["metadata"]["letters"]))


def palindrome_partitioning(answer: str, entry: Entry, config: Config) -> float:
    """All partitions into palindromes, in any order; in part, those found less wrong ones, beyond the single letters.

    Counted, not compared with the stored ones: there can be thousands.
    """
    whole = entry["metadata"]["string"]
    found = None if too_long(answer, entry) else _word_lists(answer)
    if found is None:
        return 0.0
    partitions = {tuple(parts) for parts in found}
    right = sum("".join(parts) == whole and all(_is_palindrome(part) for part in parts) for parts in partitions)
    total, wrong = _partition_count(whole), len(partitions) - right
    if right == total and not wrong:
        return 1.0
    return max(0.0, (right - wrong - 1) / (total - 1)) if total > 1 else 0.0


def _is_palindrome(text: str) -> bool:
    return text != "" and text == text[::-1]


def _partition_count(text: str) -> int:
    counts = [1]  # of the first characters, by how many
    for end in range(1, len(text) + 1):
        counts.append(sum(counts[start] for start in range(end) if _is_palindrome(text[start:end])))
    return counts[-1]


def group_anagrams(answer: str, entry: Entry, config: Config) -> float:
    """The groups, and the words in each, in any order; in part, right groups of a division of just these words."""
    found = None if too_long(answer, entry) else _word_lists(answer.casefold())
    if found is None:
        return 0.0
    given = Counter(tuple(sorted(group)) for group in found if group)
    gold = Counter(tuple(sorted(group)) for group in entry["metadata"]["solution"])
    if given == gold:
        return 1.0
    if sorted(text for group in found for text in group) != sorted(entry["metadata"]["words"]):
        return 0.0
    right = sum(count for group, count in (given & gold).items() if len(group) > 1)
    return right / gold.total()


def word_ladder(answer: str, entry: Entry, config: Config) -> float:
    """Any ladder of the library's words from the first word to the last, one letter changed at each step."""
    steps = [step.strip(_QUOTES) for step in re.split(r"[\s,;|>→-]+", _unbracketed(answer).upper())]
    metadata = entry["metadata"]
    if len(steps) < 2 or steps[0] != metadata["start_word"] or steps[-1] != metadata["end_word"]:
        return 0.0
    if not _ladder_words().issuperset(steps) or any(len(step) != len(steps[0]) for step in steps):
        return 0.0
    return float(all(sum(a != b for a, b in zip(*pair, strict=True)) == 1 for pair in pairwise(steps)))


def word_sequence_reversal(answer: str, entry: Entry, config: Config) -> float:
    """The words from last to first, separated by commas or white space."""
    return float(_words(answer) == entry["metadata"]["words"][::-1])


def word_sorting(answer: str, entry: Entry, config: Config) -> float:
    """The words in order, separated by commas or white space; in part, how far they are right beyond the list given.

    Letter case counts: the order depends on it.
    """
    metadata = entry["metadata"]
    return in_order(_words(answer), metadata["sorted_words"], lambda: metadata["transformed_words"])


def _unbracketed(text: str) -> str:
    text = text.strip()
    return text[1:-1].strip() if text[:1] + text[-1:] in ("[]", "()", "{}") else text


def _words(text: str) -> list[str]:
    """A list of words: JSON, a Python literal, or separated by commas, or else by white space."""
    text = _unbracketed(text)
    parts = text.split(",") if "," in text else text.split()
    return [part for part in (part.strip().strip(_QUOTES) for part in parts) if part]


def _word_lists(text: str) -> list[list[str]] | None:
    """Lists of words: JSON or a Python literal, with quotes or without; without brackets, one list a line."""
    if "'" not in text and '"' not in text:
        return _bare_word_lists(text)
    text = text.translate(_AS_JSON)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = json.loads(f"[{text}]")
        except (ValueError, RecursionError):
            return None
    if _is_word_list(value):
        return [value]
    return value if isinstance(value, list) and all(map(_is_word_list, value)) else None


def _is_word_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _bare_word_lists(text: str) -> list[list[str]] | None:
    if "[" not in text:
        return [words for line in text.splitlines() if (words := _words(line))]
    if re.sub(r"[\s,]+", "", _INNER_LIST.sub("", text)) not in ("", "[]"):
        return None
    return [_words(row) for row in _INNER_LIST.findall(text)]


@cache
def _ladder_words() -> frozenset[str]:
    """The words of 3 to 5 letters, in capitals, that `word_ladder` takes for English."""
    with _library_file("words.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = (row.get(f"{length}_letter") for row in rows for length in _LADDER_LENGTHS)
    return frozenset(word.upper() for word in found if word)


@cache
def _story_sentences() -> tuple[tuple[str, ...], ...]:
    """The sentences, as words, of the story that the text tasks draw from."""
    text = _library_file("in_the_year_2889.txt").read_text(encoding="utf-8")
    return tuple(tuple(sentence.split()) for sentence in re.split(r"(?<=[.!?])", text))


def _library_file(name: str) -> Path:
    spec = importlib.util.find_spec("reasoning_gym")  # finds a top-level package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("reasoning_gym is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "data" / name


GRADERS: dict[str, Grader] = {
    "caesar_cipher": word,
    "group_anagrams": group_anagrams,
    "letter_jumble": letter_jumble,
    "palindrome_generation": palindrome_generation,
    "palindrome_partitioning": palindrome_partitioning,
    "sentence_reordering": sentence_reordering,
    "spell_backward": spell_backward,
    "word_ladder": word_ladder,
    "word_sequence_reversal": word_sequence_reversal,
    "word_sorting": word_sorting,
}
