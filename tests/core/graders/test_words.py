"""Graders of the algorithmic tasks on words and letters."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders.words import GRADERS
from rg_env.core.grading.graders.words import _ladder_words as ladder_words
from rg_env.core.grading.graders.words import _story_sentences as story_sentences


def _grade(task: str, answer: str, gold: str, question: str = "?", **metadata: Any) -> float:
    return GRADERS[task](answer, {"question": question, "answer": gold, "metadata": metadata}, {})


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("the Mediterranean and the", 1.0),
        ("The mediterranean  and\nthe", 1.0),
        ("the Mediterranean and eth", 0.5),
        ("the eedrtanMainer and eth", 0.0),  # as given
        ("the Mediterranean and the sea", 0.0),  # the library pays in full for more words
        ("Mediterranean and the", 0.0),
        ("", 0.0),
    ],
)
def test_letter_jumble_counts_words_beyond_those_given(answer: str, value: float) -> None:
    """Words that came unscrambled are no progress, and a longer answer is wrong."""
    scrambled = ["the", "eedrtanMainer", "and", "eth"]
    assert _grade("letter_jumble", answer, "the Mediterranean and the", scrambled_words=scrambled) == value


ORDER = "Restore the correct order of words in the following sentence: we will pay ask. Besides, what we for"


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Besides, we will pay for what we ask.", 1.0),
        ('"besides, we will pay for what we ask"', 1.0),
        ("Besides, we we will pay for what ask.", 1.0),  # as the library stores it
        ("Besides, we will pay what for we ask.", 2 / 3),  # two were in place
        ("Besides, we will pay for what we", 0.0),
        ("Besides, we will pay for what we ask. ask.", 0.0),
        ("we will pay ask. Besides, what we for", 0.0),
        ("", 0.0),
    ],
)
def test_sentence_reordering_takes_the_sentence_of_the_story(answer: str, value: float) -> None:
    """The library stores a wrong order where a word occurs twice; the sentence itself is right too."""
    stored = "Besides, we we will pay for what ask."
    assert _grade("sentence_reordering", answer, stored, ORDER) == pytest.approx(value)


def test_a_sentence_with_no_word_twice_has_one_order() -> None:
    """Only the stored one is right."""
    question = "Restore the correct order of words in the following sentence: sleeps cat The."
    assert _grade("sentence_reordering", "The cat sleeps.", "The cat sleeps.", question) == 1.0
    assert _grade("sentence_reordering", "cat The sleeps.", "The cat sleeps.", question) < 1.0


@pytest.mark.parametrize(
    ("answer", "value"),
    [("olleh", 1.0), ("Olleh", 1.0), ("o-l-l-e-h", 1.0), ("o l l e h", 1.0), ("hello", 0.0), ("olle", 0.0), ("", 0.0)],
)
def test_spell_backward_wants_all_letters(answer: str, value: float) -> None:
    """No part of a word earns anything."""
    assert _grade("spell_backward", answer, "olleh") == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("abcba", 1.0),
        ("bacab", 1.0),
        ("B A C A B", 1.0),
        ("aabbc", 0.0),
        ("abba", 0.0),
        ("abccba", 0.0),
        ("c", 0.0),
        (" ", 0.0),
        ("", 0.0),
    ],
)
def test_palindrome_generation_takes_any_palindrome_of_the_letters(answer: str, value: float) -> None:
    """Just the letters given, each as often as given."""
    assert _grade("palindrome_generation", answer, "abcba", letters=["a", "b", "c", "b", "a"]) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ('[["a","a","b","b"],["aa","b","b"],["a","a","bb"],["aa","bb"]]', 1.0),
        ("[['aa','bb'],['a','a','bb'],['aa','b','b'],('a','a','b','b')]", 1.0),
        ("[[a,a,b,b], [aa,b,b], [a,a,bb], [aa,bb]]", 1.0),
        ("a,a,b,b\naa,b,b\na,a,bb\naa,bb", 1.0),
        ('["a","a","b","b"],["aa","b","b"],["a","a","bb"],["aa","bb"]', 1.0),
        ('[["a","a","b","b"],["aa","b","b"],["a","a","bb"]]', 2 / 3),
        ('[["a","a","b","b"],["aa","b","b"],["aabb"]]', 0.0),
        ('[["a","a","b","b"],["aa","b","b"],["a","a","bb"],["aa","bb"],["aabb"]]', 2 / 3),
        ('[["a","a","b","b"]]', 0.0),
        ('[["a","a","b","b"],["aa","b","b"],["a","a","bb"],["aa","bb"],["aa","","bb"]]', 2 / 3),
        ("[]", 0.0),
        ("[[]]", 0.0),
        ("[[1], [2]]", 0.0),
        ("null", 0.0),
        ("", 0.0),
    ],
)
def test_palindrome_partitioning_wants_all_partitions(answer: str, value: float) -> None:
    """In any order; in part, those beyond the single letters, less wrong ones."""
    gold = '[["a", "a", "b", "b"], ["a", "a", "bb"], ["aa", "b", "b"], ["aa", "bb"]]'
    assert _grade("palindrome_partitioning", answer, gold, string="aabb") == pytest.approx(value)


@given(st.text("ab", min_size=1, max_size=7))
def test_every_partition_into_palindromes_is_counted(text: str) -> None:
    """The count agrees with a search over all partitions, and one partition less is not enough."""
    found = []
    for cuts in range(2 ** (len(text) - 1)):
        parts = [text[0]]
        for at, letter in enumerate(text[1:]):
            if cuts >> at & 1:
                parts.append(letter)
            else:
                parts[-1] += letter
        if all(part == part[::-1] for part in parts):
            found.append(parts)
    answer = json.dumps(found)
    assert _grade("palindrome_partitioning", answer, answer, string=text) == 1.0
    assert _grade("palindrome_partitioning", json.dumps(found[1:]), answer, string=text) < 1.0


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ('[["eat", "tea"], ["nat", "tan"]]', 1.0),
        ('[["tan", "nat"], ["tea", "eat"]]', 1.0),
        ("[['tan', 'nat'], ['tea', 'eat']]", 1.0),
        ("[[tan, nat], [tea, eat]]", 1.0),
        ("eat, tea\ntan, nat", 1.0),
        ('[["eat", "tea"], ["nat"], ["tan"]]', 0.5),
        ('[["eat"], ["tea"], ["nat"], ["tan"]]', 0.0),
        ('[["eat", "tea", "nat", "tan"]]', 0.0),
        ('[["eat", "tea"], ["nat", "tan"], ["nat", "tan"]]', 0.0),
        ('[["eat", "tea"], ["nat", "tan", "ant"]]', 0.0),
        ('[["eat", "tea"]]', 0.0),
        ('[["eat" "tea"], ["nat", "tan"]]', 0.0),
        ("[]", 0.0),
        ("{}", 0.0),
    ],
)
def test_group_anagrams_wants_the_groups_in_any_order(answer: str, value: float) -> None:
    """In part, the right groups, if the answer divides just the words given."""
    gold = [["eat", "tea"], ["nat", "tan"]]
    words = ["tea", "nat", "eat", "tan"]
    assert _grade("group_anagrams", answer, json.dumps(gold), words=words, solution=gold) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("COLD,CORD,CARD,WARD,WARM", 1.0),
        ("cold, cord, card, ward, warm", 1.0),
        ("COLD -> CORD -> CARD -> WARD -> WARM", 1.0),
        ('["COLD", "CORD", "WORD", "WARD", "WARM"]', 1.0),
        ("COLD,CORD,WORD,WORM,WARM", 1.0),
        ("COLD,WARM", 0.0),
        ("COLD,CORD,CARD,WARD", 0.0),
        ("CORD,CARD,WARD,WARM", 0.0),
        ("COLD,COLD,CORD,CARD,WARD,WARM", 0.0),
        ("COLD,CQLD,CQRD,CARD,WARD,WARM", 0.0),
        ("COLD,CORD,CARDS,WARD,WARM", 0.0),
        ("COLD", 0.0),
        ("", 0.0),
    ],
)
def test_word_ladder_takes_any_ladder_of_words(answer: str, value: float) -> None:
    """Right ends, words of the library's list, one letter changed at each step."""
    metadata: dict[str, Any] = {"start_word": "COLD", "end_word": "WARM"}
    assert _grade("word_ladder", answer, "COLD,CORD,CARD,WARD,WARM", **metadata) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("to, of, The", 1.0),
        ("to of The", 1.0),
        ("['to', 'of', 'The']", 1.0),
        ("The, of, to", 0.0),
        ("to, of", 0.0),
        ("to of, The", 0.0),
        ("to, of, the", 0.0),
    ],
)
def test_word_sequence_reversal_wants_the_words_backward(answer: str, value: float) -> None:
    """Separators do not matter, words do."""
    assert _grade("word_sequence_reversal", answer, "to, of, The", words=["The", "of", "to"]) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Zoo, apple, bee, cat", 1.0),
        ("Zoo,apple,bee,cat", 1.0),
        ('["Zoo", "apple", "bee", "cat"]', 1.0),
        ("Zoo, apple, cat, bee", 0.5),
        ("apple, bee, cat, Zoo", 0.0),
        ("zoo, apple, bee, cat", 0.0),
        ("Zoo, apple, bee", 0.0),
        ("Zoo, apple, bee, bee", 0.0),
        ("", 0.0),
    ],
)
def test_word_sorting_counts_the_right_beginning(answer: str, value: float) -> None:
    """Capitals come first, so letter case matters; other words earn nothing."""
    words = ["Zoo", "apple", "bee", "cat"]
    metadata: dict[str, Any] = {"sorted_words": words, "transformed_words": ["cat", "Zoo", "bee", "apple"]}
    assert _grade("word_sorting", answer, ", ".join(words), **metadata) == value


@given(st.text(max_size=60) | st.text("abcolCOLD,>- .'\"[](){}\n\\", max_size=60) | st.just("[" * 5000))
def test_no_text_makes_a_grader_raise(text: str) -> None:
    """Every grader gives any text a value in [0, 1]."""
    metadata: dict[str, Any] = {
        "scrambled_words": ["tac"],
        "letters": ["a", "a"],
        "string": "aa",
        "solution": [["abc", "cab"]],
        "words": ["abc", "cab"],
        "start_word": "COLD",
        "end_word": "CORD",
        "sorted_words": ["abc", "cab"],
        "transformed_words": ["cab", "abc"],
    }
    for task in GRADERS:
        assert 0.0 <= _grade(task, text, "cat", **metadata) <= 1.0


def test_library_data_is_read_without_importing_the_library() -> None:
    """The word list and the story are there, and reasoning_gym stays out of the process."""
    code = (
        "import sys; from rg_env.core.grading.graders import words as d;"
        "assert {'COLD', 'CAT', 'ABACK'} <= d._ladder_words() and len(d._story_sentences()) > 300;"
        "sys.exit('reasoning_gym' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert all(len(word) in (3, 4, 5) and word.isupper() for word in ladder_words())
    assert ("Besides,", "we", "will", "pay", "for", "what", "we", "ask.") in story_sentences()
