"""Graders for the algorithmic tasks, which involve numbers, symbol strings, matrices, processes, words and letters."""

import csv
import importlib.util
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from rg_env.core.grading.graders import common, forms
from rg_env.core.grading.graders.common import Config, Entry, in_order, progress, refuse_long, squeezed, truth, word

_EMPTY = ("", '""', "''", "``", "[]", "empty", "(empty)", "empty string", "the empty string", "nothing")
_NAMED_BASE = re.compile(r"([0-9a-z]+)(?:_\{?([0-9]{1,2})\}?|([₀-₉]{1,2}))?")
_WRITTEN_BASE = re.compile(
    r"(?:\(|\\text\{)(D)[)}]_\{?(\d\d?)\}?|(D) +\(?(?:in )?base[- ]?(\d\d?)\)?|(D)<sub>(\d\d?)</sub>".replace(
        "D", "[0-9a-zA-Z]+"
    ),
    re.ASCII,
)
_ASSIGNMENT = re.compile(r"([A-Z])(?:=|:|->|→)([0-9])")


def signs(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored string in any letter case, in quotes, with spaces between all characters, or as a list of
    characters."""
    gold = squeezed(entry["answer"]).casefold()
    return _spelled(answer) == gold if gold else answer.strip().casefold() in _EMPTY


def _spelled(text: str) -> str:
    """Return `text` in lowercase without brackets, quotes and separators. Separators must be between all characters or
    none: text that has only some is unreadable."""
    pieces = [piece for piece in re.split(r"[\s,'\"`‘’“”()\[\]-]+", text.casefold()) if piece]
    if len(pieces) > 1 and any(len(piece) > 1 for piece in pieces):
        raise forms.Unreadable
    return "".join(pieces)


def ab(answer: str, entry: Entry, config: Config) -> float:
    """Accept the remaining tokens in any letter case, with or without separators."""
    gold = entry["answer"].split()
    if not gold:
        return answer.strip().casefold() in _EMPTY
    refuse_long(answer, entry)
    tokens = [part[at : at + 2] for part in forms.parts(answer.upper()) for at in range(0, len(part), 2)]
    return tokens == gold


def base_conversion(answer: str, entry: Entry, config: Config) -> float:
    """Accept the number in the target base. Letter case, leading zeros, spaces, and a prefix (such as `0x`) or
    subscript for the target base are ignored."""
    metadata = entry["metadata"]
    base = metadata["target_base"]
    if written := _WRITTEN_BASE.fullmatch(answer.strip()):
        answer = "{}_{}".format(*filter(None, written.groups()))
    digits = forms.plain_digits("".join(answer.split())).lower()
    # `1010_2` and `1010₂` name the base. To keep every text unambiguous, `_` is not allowed between groups of digits.
    digits, *named = forms.matched(_NAMED_BASE, digits).groups()
    if any(named) and int("".join(filter(None, named)).translate(forms.SUBSCRIPTS)) != base:
        return 0.0
    digits = digits.removeprefix({2: "0b", 8: "0o", 16: "0x"}.get(base, " "))
    # The library stores an empty string for zero in most bases.
    return bool(digits) and (digits.lstrip("0") or "0") == (metadata["target_repr"] or "0")


def cryptarithm(answer: str, entry: Entry, config: Config) -> float:
    """Accept any assignment of distinct digits to the puzzle's letters (and no others) that makes the sum correct.
    Numbers must not start with a zero unless the puzzle allows it."""
    refuse_long(answer, entry)
    text = re.sub(r"[\s\"'`*{}\[\]()]", "", forms.unlisted(answer)).upper()
    pairs = _ASSIGNMENT.findall(text)
    if _ASSIGNMENT.sub("", text).strip(",;|"):
        return 0.0
    digits = dict(pairs)
    metadata = entry["metadata"]
    words = [*metadata["words_letters"], metadata["result_letters"]]
    if len(set(pairs)) != len(digits) or len(set(digits.values())) != len(digits) or set(digits) != set("".join(words)):
        return 0.0
    values = ["".join(digits[letter] for letter in word) for word in words]
    if not metadata.get("allow_leading_zero", False) and any(value.startswith("0") for value in values):
        return 0.0
    *addends, total = map(int, values)
    return sum(addends) == total


def number_filtering(answer: str, entry: Entry, config: Config) -> float:
    """Accept the remaining numbers in their original order, in any notation. Brackets are optional unless the list is
    empty."""
    gold = _exact(entry["metadata"]["result"])
    if not gold:
        return "".join(answer.split()) in ("[]", "()")
    return _numbers(answer, len(gold)) == gold


def number_sorting(answer: str, entry: Entry, config: Config) -> float:
    """Accept the question's numbers in sorted order. Another order of these numbers gets partial credit if its correct
    prefix is longer than that of the question's list."""
    metadata = entry["metadata"]
    gold = _exact(metadata["sorted_numbers"])
    return in_order(_numbers(answer, len(gold)), gold, lambda: _exact(metadata["original_numbers"]))


def counts(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored whole numbers in order, with any separators."""
    gold = entry["answer"].split()
    if len(answer) <= _MORE_CHARS and answer.isascii() and answer.replace(" ", "").isdigit():  # the usual notation
        return list(map(int, answer.split())) == list(map(int, gold))
    if named := _NAMED_COUNT.findall(answer):
        answer = _without_names(answer, named, len(gold))
    return answer.split() == gold or _numbers(answer, len(gold)) == _exact(gold)


_NAMED_COUNT = re.compile(
    r"(?:[-*•] +)?(?:\b[Mm]achine |\b[Pp]art )?([XYZABC]\b|\[[ABC]\]|\{[ABC]\}|\([ABC]\))(?: *[:=] *(\d{1,9})\b)"
    r"|(\d{1,9}) +(?:machine |part )?([XYZABC]\b|\[[ABC]\]|\{[ABC]\}|\([ABC]\))"
)
"""A count with its name, such as `A: 2`, `Machine A: 2`, `2 [A]` or `2 part X`."""
_COUNTED = {6: [*"ABCXYZ"], 9: ["[A]", "[B]", "[C]", "{A}", "{B}", "{C}", "(A)", "(B)", "(C)"]}
"""Names of the counts, in the order of the stored answer, by their number."""


def _without_names(answer: str, found: list[tuple[str, str, str, str]], n_counts: int) -> str:
    """Return the counts in the stored order if each has its name and nothing else is in the text."""
    counts = {left or right: before or after for left, before, after, right in found}
    names = _COUNTED.get(n_counts, [])
    if (
        re.sub(r"[\s,;]+|\band\b", "", _NAMED_COUNT.sub("", answer))
        or len(found) != len(names)
        or set(counts) != set(names)
    ):
        raise forms.Unreadable
    return " ".join(counts[name] for name in names)


def _numbers(answer: str, count: int) -> list[Fraction]:
    """Parse a list of `count` numbers. Quotes are optional, but each pair must enclose a single number."""
    if len(re.findall(r"[^\s,;()\[\]'\"]+", answer)) != count:
        raise forms.Unreadable
    if not answer.isascii():
        answer = re.sub("[‘’“”]", "'", answer)
    if "'" not in answer and '"' not in answer:
        return forms.numbers(answer)
    listed = forms.literal(answer)
    if not isinstance(listed, list | tuple) or len(listed) != count:
        raise forms.Unreadable
    return [forms.number(str(item)) for item in listed]


def _exact(texts: Sequence[str]) -> list[Fraction]:
    return list(map(forms.stored_number, texts))


_ROUNDING = 0.005 + 1e-9
"""Tolerance for pool_matrix: half a unit in the second decimal place, because two decimal places are required."""
POOLED_EDGES = "If the kernel does not fit at the right or bottom edge, pool the elements that are there.\n"
"""The line that `library_fixes` adds to pool_matrix questions."""
_JUG_MOVE = re.compile(
    r"(?P<kind>fill|empty) (?:jug )?(?P<jug>[a-z])"
    r"|pour (?:from )?(?:jug )?(?P<source>[a-z]) ?(?:-+>|=>|→|to|into) ?(?:jug )?(?P<target>[a-z])"
)
_CHARS_PER_VERTEX = 40
_MORE_CHARS = 200
"""Number of characters allowed in addition to `_CHARS_PER_VERTEX` per vertex. A mapping with one vertex per line takes
about 16 characters per vertex."""
_MAX_JUG_MOVES = 1_000
"""Maximum number of moves in an answer. The library's hardest puzzles require 200 moves."""


def matrix(answer: str, entry: Entry, config: Config) -> float:
    """Accept the complete output matrix. There is partial credit only if more cells are correct than in a copy of the
    input or in the best constant matrix.

    In binary_matrix, a copy of the input is correct in many cells because a cell with 0 has distance 0, and most cells
    with 1 have distance 1.
    """
    return common.grade_grid(answer, entry["metadata"]["solution"], entry["metadata"]["matrix"])


def game_of_life(answer: str, entry: Entry, config: Config) -> float:
    """Accept the complete final board. There is partial credit only if more cells are correct than on the initial board
    or on a board whose cells are all the same."""
    board = entry["question"].rpartition("\n\n")[2].removesuffix(".")
    return common.grade_grid(answer, json.loads(entry["answer"]), json.loads(board))


def game_of_life_halting(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored True or False, or the equivalent yes or no, in any letter case."""
    return truth(answer.strip(" \t\r\n'\""), entry, config)


def pool_matrix(answer: str, entry: Entry, config: Config) -> float:
    """Accept the complete pooled matrix, correct to at least two decimal places. There is partial credit only if more
    cells are correct than in the best constant matrix.

    The library pools the elements at the edges where the kernel does not fit, but its question does not say so. Without
    `POOLED_EDGES` in the question, the matrix without these regions, as in most frameworks, is also right.
    """
    metadata = entry["metadata"]
    pooled, matrix = metadata["solution"], metadata["matrix"]
    value = common.grade_grid(answer, pooled, matrix, _is_near)
    if value < 1 and (size := metadata.get("pool_size")) and POOLED_EDGES not in entry["question"]:
        inner = [row[: len(matrix[0]) // size] for row in pooled[: len(matrix) // size]]
        if inner and inner[0] and common.grade_grid(answer, inner, (), _is_near) == 1:
            return 1.0
    return value


def _is_near(cell: str, value: float) -> bool:
    is_decimal = re.fullmatch(r"(?a)[+-]?(?:\d{1,9}(?:\.\d{0,20})?|\.\d{1,20})", cell)
    return is_decimal is not None and abs(float(cell) - value) <= _ROUNDING


def spiral_matrix(answer: str, entry: Entry, config: Config) -> float:
    """Accept the numbers in spiral order. There is partial credit only if more numbers are correct than in the matrix
    read row by row or in the best constant list."""
    return common.grade_line(answer, entry["metadata"]["solution"], common.flat(entry["metadata"]["matrix"]))


def graph_color(answer: str, entry: Entry, config: Config) -> float:
    """Accept any mapping from the graph's vertices (and no others) to allowed colors, with different colors at the ends
    of each edge."""
    puzzle = entry["metadata"]["puzzle"]
    text = answer.strip()
    if len(text) > _MORE_CHARS + _CHARS_PER_VERTEX * len(puzzle["vertices"]):
        return 0.0
    if "\n" in text and "," not in text:  # a vertex per line
        text = re.sub("(?i)^[-* ]*(?:vertex )?|(?<=\n)[-* ]*(?:vertex )?", "", text).replace("\n", ",")
    named = forms.literal(text if text.startswith("{") else "{" + text + "}")
    if not isinstance(named, dict):
        return 0.0
    colors = {str(vertex).strip(): common.whole(str(color).strip()) for vertex, color in named.items()}
    # `0` and `"0"` are the same vertex.
    if len(colors) != len(named) or colors.keys() != set(map(str, puzzle["vertices"])):
        return 0.0
    allowed = all(color in puzzle["color_options"] for color in colors.values())
    return allowed and all(colors[str(a)] != colors[str(b)] for a, b in puzzle["edges"])


def fit_by_chance(entry: Entry) -> float:
    """Return the probability that a fixed coloring with equally frequent colors solves a random question of this size.

    If the graph has e edges and the coloring gives the same color to m of the N vertex pairs, the probability is
    `C(N - m, e) / C(N, e)` divided by the number of possible vertex counts. The division is necessary because a
    coloring must include all of the graph's vertices and no others.
    """
    puzzle, (fewest, most) = entry["metadata"]["puzzle"], entry["metadata"]["difficulty"]["num_vertices"]
    vertices, edges, colors = len(puzzle["vertices"]), len(puzzle["edges"]), len(puzzle["color_options"])
    pairs = math.comb(vertices, 2)
    same = sum(math.comb((vertices + index) // colors, 2) for index in range(colors))
    return math.comb(pairs - same, edges) / math.comb(pairs, edges) / (most - fewest + 1)


def jugs(answer: str, entry: Entry, config: Config) -> float:
    """Accept any list of legal moves that leaves the target amount in one of the jugs."""
    capacities: list[int] = entry["metadata"]["puzzle"]["jug_capacities"]
    amounts = dict.fromkeys((chr(ord("a") + i) for i in range(len(capacities))), 0)
    room = dict(zip(amounts, capacities, strict=True))
    for move in _jug_moves(answer):
        kind, jug, source, target = move.groups()
        if not amounts.keys() >= {jug or source, jug or target} or (source and source == target):
            return 0.0
        if kind:
            amounts[jug] = room[jug] if kind == "fill" else 0
        else:
            poured = min(amounts[source], room[target] - amounts[target])
            amounts[source] -= poured
            amounts[target] += poured
    return entry["metadata"]["puzzle"]["target"] in amounts.values()


def _jug_moves(answer: str) -> list[re.Match[str]]:
    """Parse the moves, which are separated by commas, semicolons or line breaks. Letter case, brackets, quotes and
    bullets are ignored. A move may be a pair (`["fill", "A"]`).

    Letter case does not matter because the library names its jugs `A`, `B` and so on, and uses fewer than 26 of them.
    """
    answer = re.sub(r"""\[\s*["'](\w+)["'],\s*["']([^"'\[\]]*)["']\s*\]""", r"\1 \2", forms.unbracketed(answer))
    parts = [part for part in re.split(r"[,;\n]", answer) if part.strip()]
    if len(parts) > _MAX_JUG_MOVES:
        raise forms.Unreadable
    bare = [re.sub(r"\A(?:\d{1,4}[.)]|[-*•])\s+", "", part.strip()).strip(" '\".") for part in parts]
    return [forms.matched(_JUG_MOVE, " ".join(part.casefold().split())) for part in bare]


# Graders for the algorithmic tasks involving words and letters.

_QUOTES = "'\"`‘’“”"
_AS_JSON = str.maketrans("'()", '"[]')  # this is safe because no word contains an apostrophe
_INNER_LIST = re.compile(r"\[([^\[\]]*)\]")


def caesar_cipher(answer: str, entry: Entry, config: Config) -> float:
    """Accept the stored text in any letter case and with any spacing, or the decrypted text. The stored and decrypted
    texts may differ because the library encrypts `Ë` as if it were one of the letters A to Z."""
    shift, cipher = entry["metadata"]["rotation"], entry["metadata"]["cipher_text"]
    plain = "".join(chr((ord(sign) - 65 - shift) % 26 + 65) if "A" <= sign <= "Z" else sign for sign in cipher)
    return max(word(answer, entry, config), word(answer, {"answer": plain}, config))


def letter_jumble(answer: str, entry: Entry, config: Config) -> float:
    """Accept the story's words in any letter case. Correct words get partial credit, not counting words that the
    question leaves unscrambled."""
    return _in_place(answer.casefold().split(), entry["answer"], " ".join(entry["metadata"]["scrambled_words"]))


def sentence_reordering(answer: str, entry: Entry, config: Config) -> float:
    """Accept the story's sentence in any letter case and with any quotation marks and commas. Words in the right
    position get partial credit, not counting words that are already in the right position in the question.

    If a word occurs twice, the library stores both occurrences at the position of the first, but the original sentence
    is also accepted.
    """
    shuffled = _sentence(entry["question"].partition(": ")[2])
    stored: str = entry["answer"]
    original = _story().get(tuple(stored.split()), stored)
    given = _sentence(answer)
    return max(_in_place(given.split(), _sentence(gold), shuffled) for gold in (stored, original))


def _sentence(text: str) -> str:
    text = re.sub('["“”„«»`]', "", text.replace("’", "'"))
    return re.sub(r"[,;](?!\S)", "", text).strip().lstrip(_QUOTES).rstrip(_QUOTES + ".!?").casefold()


def _in_place(words: Sequence[str], gold: str, start: str) -> float:
    wanted, first = gold.casefold().split(), start.casefold().split()
    if len(words) != len(wanted):
        return 0.0
    right = sum(one == other for one, other in zip(words, wanted, strict=True))
    return progress(right, sum(one == other for one, other in zip(first, wanted, strict=False)), len(wanted))


def spell_backward(answer: str, entry: Entry, config: Config) -> float:
    """Accept the reversed word in any letter case. The letters may be separated, for example by spaces or hyphens. As
    in the question's example, `word -> drow` is also accepted."""
    word, arrow, reverse = re.sub("→|=>", "->", answer).rpartition("->")
    if arrow and word.strip(f" \t\n{_QUOTES}").casefold() != entry["question"].rpartition(": ")[2].casefold():
        return 0.0
    return squeezed(reverse).casefold() == entry["answer"].casefold()


def palindrome_generation(answer: str, entry: Entry, config: Config) -> float:
    """Accept any palindrome made of exactly the given letters, in any letter case, but not with spaces or punctuation
    between the letters, which the question forbids."""
    text = answer.strip().strip(_QUOTES).casefold()
    return text == text[::-1] and Counter(text) == Counter(entry["metadata"]["letters"])


def palindrome_partitioning(answer: str, entry: Entry, config: Config) -> float:
    """Accept all partitions into palindromes, in any order. Partial credit depends on the number of correct partitions
    minus the number of wrong partitions, not counting the partition into single letters.

    The answer is checked by counting its correct partitions rather than comparing them with the stored list, because
    there can be thousands of partitions.
    """
    whole = entry["metadata"]["string"]
    partitions = {tuple(parts) for parts in _word_lists(answer, entry)}
    right = sum("".join(parts) == whole and all(_is_palindrome(part) for part in parts) for parts in partitions)
    total, wrong = _partition_count(whole), len(partitions) - right
    if right == total and not wrong:
        return 1.0
    return max(0.0, (right - wrong - 1) / (total - 1)) if total > 1 else 0.0


def _is_palindrome(text: str) -> bool:
    return text != "" and text == text[::-1]


def _partition_count(text: str) -> int:
    counts = [1]  # number of partitions of each prefix, by the prefix's length
    for end in range(1, len(text) + 1):
        counts.append(sum(counts[start] for start in range(end) if _is_palindrome(text[start:end])))
    return counts[-1]


def group_anagrams(answer: str, entry: Entry, config: Config) -> float:
    """Accept the groups and their words in any order. Correct groups of two or more words get partial credit if the
    answer contains exactly the given words."""
    found = _word_lists(answer.casefold(), entry)
    given = Counter(tuple(sorted(group)) for group in found if group)
    gold = Counter(tuple(sorted(group)) for group in entry["metadata"]["solution"])
    if given == gold:
        return 1.0
    if sorted(text for group in found for text in group) != sorted(entry["metadata"]["words"]):
        return 0.0
    right = sum(count for group, count in (given & gold).items() if len(group) > 1)
    return right / gold.total()


def word_ladder(answer: str, entry: Entry, config: Config) -> float:
    """Accept any ladder of English words from the start word to the end word that changes one letter at each step."""
    steps = forms.parts(answer.upper().replace("-", " "))
    metadata = entry["metadata"]
    if len(steps) < 2 or steps[0] != metadata["start_word"] or steps[-1] != metadata["end_word"]:
        return 0.0
    if not _ladder_words().issuperset(steps) or any(len(step) != len(steps[0]) for step in steps):
        return 0.0
    return all(sum(a != b for a, b in zip(*pair, strict=True)) == 1 for pair in pairwise(steps))


def word_sequence_reversal(answer: str, entry: Entry, config: Config) -> float:
    """Accept the words in reverse order, separated by commas or whitespace."""
    return _words(answer) == entry["metadata"]["words"][::-1]


def word_sorting(answer: str, entry: Entry, config: Config) -> float:
    """Accept the sorted words, separated by commas or whitespace. Another order of these words gets partial credit if
    its correct prefix is longer than that of the question's list.

    Letter case matters because the order depends on it.
    """
    metadata = entry["metadata"]
    return in_order(_words(answer), metadata["sorted_words"], lambda: metadata["transformed_words"])


def _words(text: str) -> list[str]:
    """Parse a list of words, written in JSON or as a Python literal, or with commas between the words (or whitespace if
    there are no commas)."""
    text = forms.unlisted(forms.unbracketed(text))
    parts = text.split(",") if "," in text else text.split()
    return [part for part in (part.strip().strip(_QUOTES) for part in parts) if part]


def _word_lists(text: str, entry: Entry) -> list[list[str]]:
    """Parse lists of words written in JSON or as a Python literal, with or without quotes. If the text has no brackets,
    each line is a list."""
    refuse_long(text, entry)
    text = forms.unlisted(text)
    if "'" in text or '"' in text:
        value = _loaded(text.translate(_AS_JSON))
        value = [value] if _is_word_list(value) else value
        if not isinstance(value, list) or not all(map(_is_word_list, value)):
            raise forms.Unreadable
        return value
    if "[" not in text:
        return [words for line in text.splitlines() if (words := _words(line))]
    if re.sub(r"[\s,]+", "", _INNER_LIST.sub("", text)) not in ("", "[]"):
        raise forms.Unreadable
    return [_words(row) for row in _INNER_LIST.findall(text)]


def _loaded(text: str) -> Any:
    """Parse the text as one JSON value, or as several values separated by commas, which are returned as a list."""
    for source in (text, f"[{text}]", f"[{','.join(text.splitlines())}]"):
        try:
            return json.loads(source)
        except (ValueError, RecursionError):
            pass
    raise forms.Unreadable


def _is_word_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


@cache
def _ladder_words() -> frozenset[str]:
    """Return the uppercase words of 3 to 5 letters that `word_ladder` accepts as English: the library's, which lack
    many ordinary words, and those of SCOWL (`english_words.txt`)."""
    listed = Path(__file__).with_name("english_words.txt").read_text(encoding="ascii")
    rows = csv.DictReader(_library_text("words.csv").splitlines())
    found = (row.get(f"{length}_letter") for row in rows for length in (3, 4, 5))
    return frozenset(word.upper() for word in (*found, *listed.split()) if word)


@cache
def _story() -> dict[tuple[str, ...], str]:
    """Return the sentences of the story used by the text tasks, keyed by their words in the order stored by the
    library."""
    text = _library_text("in_the_year_2889.txt")
    sentences = [sentence.split() for sentence in re.split(r"(?<=[.!?])", text)]
    return {tuple(sorted(words, key=words.index)): " ".join(words) for words in sentences}


def _library_text(name: str) -> str:
    spec = importlib.util.find_spec("reasoning_gym")  # finds a top-level package without importing it
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("reasoning_gym is not installed; run `pip install reasoning-gym`")
    return (Path(spec.origin).parent / "data" / name).read_text(encoding="utf-8")
