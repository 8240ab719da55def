"""What the tasks on words, letters and programs ask."""

import re
from collections import Counter
from typing import Any

from rg_env.core.data.problem_keys.forms import Bag, Entry, Key, fields, parts, renumbered

_CODE = re.compile(r"copy spans of code directly\.\s*(.*)", re.DOTALL)
_SENTENCE = re.compile(r"(?<![^.?])[^.?]+[.?]")
_PROGRAM = re.compile(r"following program:\s*(?=\S)([AB# ]+)")
_OTHER_LETTER = str.maketrans("AB", "BA")


def _ab(entry: Entry) -> Any:
    """The rules treat both letters alike."""
    (program,) = parts(_PROGRAM, entry["question"])
    return min(program.strip(), program.strip().translate(_OTHER_LETTER))


def _codeio(entry: Entry) -> Any:
    """Whether the input or the output is wanted, the same pair answers it."""
    metadata = entry["metadata"]
    return (*parts(_CODE, entry["question"]), metadata["input_data"], metadata["output_data"])


def _isomorphic_strings(entry: Entry) -> Any:
    return Bag(map(renumbered, entry["metadata"]["words"]))


def _ransom_note(entry: Entry) -> Any:
    """How often each letter is wanted and there, whichever letter it is."""
    wanted, there = (Counter(entry["metadata"][name]) for name in ("ransom_note", "magazine"))
    return Bag((wanted[letter], there[letter]) for letter in {*wanted, *there})


def _letter_jumble(entry: Entry) -> Any:
    return tuple(Bag(word.casefold()) for word in entry["metadata"]["original_words"])


def _rules(entry: Entry) -> Any:
    return (entry["metadata"]["string"], entry["metadata"]["selected_rules"])


KEYS: dict[str, Key] = {
    "ab": Key("the program, whichever letter is called A", _ab),
    "bf": Key("the program, without wording", fields("bf_program")),
    "caesar_cipher": Key("the text, whatever the shift", lambda entry: entry["metadata"]["clear_text"].casefold()),
    "codeio": Key("the code with its input and output, whichever is wanted", _codeio),
    "emoji_mystery": Key("the sentence, whatever the emoji", lambda entry: entry["answer"]),
    "figlet_font": Key("the word, in any font and spacing", lambda entry: entry["answer"].casefold()),
    "group_anagrams": Key("the words in any order", fields("words", any_order=("words",))),
    "isomorphic_strings": Key("where letters repeat in both strings, in any order", _isomorphic_strings),
    "letter_counting": Key(
        "the letter and the words in any order", fields("target_letter", "span", any_order=("span",))
    ),
    "letter_jumble": Key("the letters of each word in any order", _letter_jumble),
    "needle_haystack": Key(
        "the statements in any order, and the question",
        lambda entry: Bag(each.strip() for each in parts(_SENTENCE, entry["question"])),
    ),
    "palindrome_generation": Key("the letters in any order", fields("letters", any_order=("letters",))),
    "palindrome_partitioning": Key(
        "where letters repeat in the string", lambda entry: renumbered(entry["metadata"]["string"])
    ),
    "ransom_note": Key("how often each letter is wanted and there, whichever letter it is", _ransom_note),
    "sentence_reordering": Key("the words in any order", lambda entry: Bag(entry["answer"].casefold().split())),
    "spell_backward": Key("the word", fields("word")),
    "string_insertion": Key("the string", fields("string")),
    "string_manipulation": Key("the string and the rules in their order", _rules),
    "string_splitting": Key("the machines at the start", fields("initial_machines")),
    "string_synthesis": Key("the blocks at the start", fields("initial_blocks")),
    "word_ladder": Key(
        "both words, in any order: a ladder can be climbed down",
        lambda entry: Bag(entry["metadata"][name] for name in ("start_word", "end_word")),
    ),
    "word_sequence_reversal": Key("the words in their order", fields("words")),
    "word_sorting": Key(
        "the words in any order, and the direction",
        fields("transformed_words", "direction", any_order=("transformed_words",)),
    ),
}
