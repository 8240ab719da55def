"""Text files that ship with Reasoning Gym, read without importing it: what some graders must know about its questions.

Each reader is cached; the slowest takes about 20 ms, once.
"""

import csv
import importlib.util
import re
from functools import cache
from pathlib import Path

_LADDER_LENGTHS = (3, 4, 5)


@cache
def ladder_words() -> frozenset[str]:
    """The words of 3 to 5 letters, in capitals, that `word_ladder` takes for English."""
    with _path("words.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = (row.get(f"{length}_letter") for row in rows for length in _LADDER_LENGTHS)
    return frozenset(word.upper() for word in found if word)


@cache
def story_sentences() -> tuple[tuple[str, ...], ...]:
    """The sentences, as words, of the story that the text tasks draw from."""
    text = _path("in_the_year_2889.txt").read_text(encoding="utf-8")
    return tuple(tuple(sentence.split()) for sentence in re.split(r"(?<=[.!?])", text))


def _path(name: str) -> Path:
    spec = importlib.util.find_spec("reasoning_gym")  # finds a top-level package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("reasoning_gym is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "data" / name
