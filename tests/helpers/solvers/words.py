"""Solvers of tasks about words and lists of words."""

import json
import re
from collections import Counter
from functools import cache
from string import ascii_uppercase

from reasoning_gym.data import read_data_file


@cache
def _story() -> list[str]:
    """Return the words of the book from which texts are taken; they serve as an English dictionary."""
    return re.findall(r"\b[A-Za-z]+\b", read_data_file("in_the_year_2889.txt"))


@cache
def _letters() -> list[list[str]]:
    return [sorted(word) for word in _story()]


def _last_line(question: str) -> str:
    return question.strip().splitlines()[-1]


def letter_counting(question: str) -> str:
    letter, text = re.findall(r'letter "(.)" appear in the text: "(.*)"\?$', question, re.DOTALL)[0]
    return str(text.lower().count(letter.lower()))


def spell_backward(question: str) -> str:
    return question.rpartition(": ")[2][::-1]


def word_sorting(question: str) -> str:
    order, words = re.findall(r"in (ascending|descending) order .*?list: (.*)", question)[0]
    return ", ".join(sorted(words.split(", "), reverse=order == "descending"))


def word_sequence_reversal(question: str) -> str:
    return ", ".join(_last_line(question).partition(": ")[2].split(", ")[::-1])


def isomorphic_strings(question: str) -> str:
    one, other = _last_line(question).split()
    pairs = set(zip(one, other, strict=True))
    return str(len(pairs) == len(set(one)) == len(set(other)))


def ransom_note(question: str) -> str:
    note, magazine = (re.findall(rf"{name}: (\w+)", question)[0] for name in ("Ransom note", "Magazine"))
    return str(Counter(note) <= Counter(magazine))


def group_anagrams(question: str) -> str:
    groups: dict[str, list[str]] = {}
    for word in json.loads(_last_line(question)):
        groups.setdefault("".join(sorted(word)), []).append(word)
    return json.dumps(list(groups.values()))


def palindrome_generation(question: str) -> str:
    counts = Counter(_last_line(question).rpartition(": ")[2].split(", "))
    half = "".join(letter * (n // 2) for letter, n in counts.items())
    return half + "".join(letter for letter, n in counts.items() if n % 2) + half[::-1]


def palindrome_partitioning(question: str) -> str:
    def ways(text: str) -> list[list[str]]:
        heads = [text[:n] for n in range(1, len(text) + 1) if text[:n] == text[:n][::-1]]
        return [[head, *rest] for head in heads for rest in ways(text[len(head) :])] if text else [[]]

    return json.dumps(ways(_last_line(question).rpartition(": ")[2]))


def needle_haystack(question: str) -> str:
    predicate = re.findall(r"Who (.*)\? Reply", question)[0]
    return re.findall(rf"(?:^|\. )([^ .]+(?: [^ .]+)?) {re.escape(predicate)}\.", question, re.MULTILINE)[0]


def caesar_cipher(question: str) -> str:
    """Use the shift that yields the most English words."""
    text, known = re.findall(r"cipher text: (.*)\. Provide", question)[0], {word.upper() for word in _story()}
    tables = [str.maketrans(ascii_uppercase, ascii_uppercase[n:] + ascii_uppercase[:n]) for n in range(26)]
    return max((text.translate(table) for table in tables), key=lambda each: len(known & {*each.split()}))


def letter_jumble(question: str) -> str:
    """Search for a passage in the book whose words have these letters, in order."""
    jumbled = question.rpartition("words: ")[2].split()
    wanted, letters = [sorted(word) for word in jumbled], _letters()
    at = next(at for at, _ in enumerate(letters) if letters[at : at + len(wanted)] == wanted)
    return " ".join(_story()[at : at + len(wanted)])
