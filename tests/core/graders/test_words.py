"""Graders of the algorithmic tasks on words and letters."""

import json
import subprocess
import sys

from grader_cases import Row, entry, row, table
from hypothesis import given
from hypothesis import strategies as st

ORDER = "Restore the correct order of words in the following sentence: "
PARTITIONS = '[["a", "a", "b", "b"], ["a", "a", "bb"], ["aa", "b", "b"], ["aa", "bb"]]'
ANAGRAMS = [["eat", "tea"], ["nat", "tan"]]
WORDS = ["Zoo", "apple", "bee", "cat"]


@table(
    row(
        "letter_jumble",
        entry("the Mediterranean and the", scrambled_words=["the", "eedrtanMainer", "and", "eth"]),
        ["the Mediterranean and the", "The mediterranean  and\nthe"],
        "the eedrtanMainer and eth | the Mediterranean and the sea | Mediterranean and the",
        {"the Mediterranean and eth": 0.5},  # beyond the words that came unscrambled
    ),
    row(  # the library stores a wrong order where a word occurs twice: the sentence of the story is right, too
        "sentence_reordering",
        entry("Besides, we we will pay for what ask.", ORDER + "we will pay ask. Besides, what we for"),
        'Besides, we will pay for what we ask. | "besides, we will pay for what we ask" | '
        "Besides, we we will pay for what ask.",
        "Besides, we will pay for what we | Besides, we will pay for what we ask. ask. | "
        "we will pay ask. Besides, what we for",
        {"Besides, we will pay what for we ask.": 2 / 3},  # two were in place
    ),
    row(
        "sentence_reordering",
        entry("The cat sleeps.", ORDER + "sleeps cat The."),
        "The cat sleeps.",
        parts={"cat The sleeps.": 0.0},
    ),
    row("spell_backward", entry("olleh"), "olleh | Olleh | o-l-l-e-h | o l l e h", "hello | olle"),
    row(
        "palindrome_generation",
        entry("abcba", letters=["a", "b", "c", "b", "a"]),
        "abcba | bacab | B A C A B",
        "aabbc | abba | abccba | c",
    ),
    row(
        "palindrome_partitioning",
        entry(PARTITIONS, string="aabb"),
        [
            PARTITIONS,
            "[['aa','bb'],['a','a','bb'],['aa','b','b'],('a','a','b','b')]",
            *("[[a,a,b,b], [aa,b,b], [a,a,bb], [aa,bb]]", "a,a,b,b\naa,b,b\na,a,bb\naa,bb"),
            '["a","a","b","b"],["aa","b","b"],["a","a","bb"],["aa","bb"]',
        ],
        '[["a","a","b","b"],["aa","b","b"],["aabb"]] | [["a","a","b","b"]] | [] | [[]] | [[1], [2]] | null',
        {
            '[["a","a","b","b"],["aa","b","b"],["a","a","bb"]]': 2 / 3,
            '[["a","a","b","b"],["aa","b","b"],["a","a","bb"],["aa","bb"],["aabb"]]': 2 / 3,
            '[["a","a","b","b"],["aa","b","b"],["a","a","bb"],["aa","bb"],["aa","","bb"]]': 2 / 3,
        },
    ),
    row(
        "group_anagrams",
        entry(json.dumps(ANAGRAMS), words=["tea", "nat", "eat", "tan"], solution=ANAGRAMS),
        [
            *('[["eat", "tea"], ["nat", "tan"]]', "[['tan', 'nat'], ['tea', 'eat']]", "[[tan, nat], [tea, eat]]"),
            "eat, tea\ntan, nat",
        ],
        '[["eat"], ["tea"], ["nat"], ["tan"]] | [["eat", "tea", "nat", "tan"]] | [["eat", "tea"]] | [] | {} | '
        '[["eat", "tea"], ["nat", "tan"], ["nat", "tan"]] | [["eat", "tea"], ["nat", "tan", "ant"]] | '
        '[["eat" "tea"], ["nat", "tan"]]',
        {'[["eat", "tea"], ["nat"], ["tan"]]': 0.5},
    ),
    row(
        "word_ladder",
        entry("COLD,CORD,CARD,WARD,WARM", start_word="COLD", end_word="WARM"),
        "COLD,CORD,CARD,WARD,WARM | cold, cord, card, ward, warm | COLD -> CORD -> CARD -> WARD -> WARM | "
        '["COLD", "CORD", "WORD", "WARD", "WARM"] | COLD,CORD,WORD,WORM,WARM',
        "COLD,WARM | COLD,CORD,CARD,WARD | CORD,CARD,WARD,WARM | COLD,COLD,CORD,CARD,WARD,WARM | COLD | "
        "COLD,CQLD,CQRD,CARD,WARD,WARM | COLD,CORD,CARDS,WARD,WARM",
    ),
    row(
        "word_sequence_reversal",
        entry("to, of, The", words=["The", "of", "to"]),
        "to, of, The | to of The | ['to', 'of', 'The']",
        "The, of, to | to, of | to of, The | to, of, the",
    ),
    row(
        "word_sorting",
        entry(", ".join(WORDS), sorted_words=WORDS, transformed_words=["cat", "Zoo", "bee", "apple"]),
        'Zoo, apple, bee, cat | Zoo,apple,bee,cat | ["Zoo", "apple", "bee", "cat"]',
        "apple, bee, cat, Zoo | zoo, apple, bee, cat | Zoo, apple, bee | Zoo, apple, bee, bee",
        {"Zoo, apple, cat, bee": 0.5},  # capitals come first, so letter case matters
    ),
)
def test_answers_score_what_they_are_worth(row: Row) -> None:
    row.check()


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
    whole, less = row("palindrome_partitioning", entry(json.dumps(found), string=text), [json.dumps(found)]), found[1:]
    whole.check()
    assert less == [] or whole._replace(values={json.dumps(less): (len(less) - 1) / (len(found) - 1)}).check() is None


def test_word_lists_are_read_without_importing_the_library() -> None:
    """A ladder and a sentence of the story are graded while reasoning_gym stays out of the process."""
    code = (
        "import sys; from rg_env.core.grading.graders.words import GRADERS as graders;"
        "entry = {'question': ': ask. we what', 'answer': 'what we ask.', 'metadata':"
        " {'start_word': 'COLD', 'end_word': 'CORD'}};"
        "assert graders['word_ladder']('COLD,CORD', entry, {}) == 1;"
        "assert graders['sentence_reordering']('what we ask.', entry, {}) == 1;"
        "sys.exit('reasoning_gym' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
