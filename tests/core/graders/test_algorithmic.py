"""Graders of the algorithmic tasks: numbers, strings of characters, words, matrices and operations on them."""

import json
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest
from grader_cases import Row, entry, row, table
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.grading.graders import common, grade

# 12 + 3 = 15, and others
PUZZLE = entry("A=1,B=2,C=3,D=5", words_letters=["AB", "C"], result_letters="AD", allow_leading_zero=False)
LEADING_ZERO = {**PUZZLE, "metadata": {**PUZZLE["metadata"], "allow_leading_zero": True}}
FILTERED = entry("['5', '-2.50', '5.0']", result=["5", "-2.50", "5.0"])
NUMBERS = ["-3.0", "1.5", "2.25", "70.0"]
SORTED = entry(str(NUMBERS), sorted_numbers=NUMBERS, original_numbers=["70.0", "1.5", "2.25", "-3.0"])
TWO_SORTED = entry("", sorted_numbers=["-3.0", "1.5"], original_numbers=["1.5", "-3.0"])
ONE_TO_FOUR = entry("", sorted_numbers=["1", "2", "3", "4"], original_numbers=["1", "2", "4", "3"])
DISTANCES = entry("", matrix=[[0, 1, 1], [1, 1, 1], [1, 1, 1]], solution=[[0, 1, 2], [1, 2, 3], [2, 3, 4]])
BLINKER = "[[0, 0, 0, 0],\n [1, 1, 1, 0],\n [0, 0, 0, 0],\n [0, 0, 0, 0]]"
LIFE = entry("[[0,1,0,0],[0,1,0,0],[0,1,0,0],[0,0,0,0]]", question=f"What will it look like?\n\n{BLINKER}.")
POOLED = entry("", solution=[[14 / 3, 2.125], [5.0, 0.25]], matrix=[[0] * 4] * 4)
SPIRAL = entry("", solution=[1, 2, 3, 6, 9, 8, 7, 4, 5], matrix=[[1, 2, 3], [4, 5, 6], [7, 8, 9]])
TURNED = entry("", matrix=[[1, 2], [3, 4]], solution=[[3, 1], [4, 2]])
PATH = entry("", puzzle={"vertices": [0, 1, 2], "edges": [[0, 1], [1, 2]], "color_options": [1, 2, 3]})
BOMB = entry("", puzzle={"jug_capacities": [3, 5, 8], "target": 4, "min_moves": 6})


def base(number: str, target: int) -> dict[str, Any]:
    return entry(number, target_base=target, target_repr=number)


ORDER = "Restore the correct order of words in the following sentence: "
PARTITIONS = '[["a", "a", "b", "b"], ["a", "a", "bb"], ["aa", "b", "b"], ["aa", "bb"]]'
ANAGRAMS = [["eat", "tea"], ["nat", "tan"]]
WORDS = ["Zoo", "apple", "bee", "cat"]


@table(
    row(
        "ab",
        entry("#A B# A#"),
        "#A B# A# | #A, B#, A# | ['#A', 'B#', 'A#'] | #a b# a# | #AB#A#",
        "# A B# A# | #A A# B# | #A B#",
    ),
    *(
        row(task, entry(""), '"" | empty | (empty) | nothing', "A# | , | () | -")
        for task in ("ab", "string_manipulation")
    ),
    *(row(task, entry("A#"), "A#", '"" | empty | nothing') for task in ("ab", "string_manipulation")),
    row(  # the library encrypts `Ë` as a letter of the alphabet, here as `J`
        "caesar_cipher",
        entry("FOR AËRIAL", rotation=1, cipher_text="GPS BJSJBM"),
        "for aërial | FOR AIRIAL",
        "FOR AERIAL | GPS BJSJBM | FOR",
    ),
    row("base_conversion", base("1f", 16), "1f | 0x1F | 1F_{16} | 1f₁₆ | 001f", "31 | 1f = 31 | -1f | 1f.0"),
    row("base_conversion", base("10101010", 2), "0b1010 1010 | 10101010_2 | １0101010", "170 | 10101010_3"),
    row("base_conversion", base("b1", 12), "0b1"),
    row("base_conversion", base("1", 12), wrong="0b1"),
    row("base_conversion", base("10102", 3), wrong="1010_2"),
    row("base_conversion", base("10", 10), "10", "0x10 | 1_0"),
    row("base_conversion", base("", 7), "0", ["", "1"]),  # the library stores no digit for zero
    row(
        "cryptarithm",
        PUZZLE,
        [
            *("A=1,B=2,C=3,D=5", "A=1, B=3, C=4, D=7", '{"A": 1, "B": 2, "C": 3, "D": 5}', "a=1; b=2; c=3; d=5"),
            *("A -> 1\nB -> 2\nC -> 3\nD -> 5", "D=5,C=3,B=2,A=1,A=1"),
        ],
        "A=0,B=2,C=3,D=5 | A=1,B=2,C=2,D=4 | A=1,B=2,C=3,D=6 | A=1,B=2,C=3 | A=1,B=2,C=3,D=5,E=6 | A=1,A=2,B=2,C=3,D=5",
    ),
    row("cryptarithm", PUZZLE, wrong="A=1,B=2,C=3,D=15 | A=1,B=2,C=3,D=-5 | Solution: A=1,B=2,C=3,D=5"),
    row("cryptarithm", LEADING_ZERO, ["A=0,B=2,C=3,D=5"]),
    row(
        "number_filtering",
        FILTERED,
        "['5', '-2.50', '5.0'] | [5, -2.5, 5] | 5, -2.5, 5 | [\"5\", \"−2.5\", \"5\"]",
        "['5', '5', '-2.5'] | ['5', '-2.5'] | ['5', '-2.5', '5', '5'] | ['5', '-2.51', '5'] | ['5, '-2.5', '5'] | []",
    ),
    row("number_filtering", entry("[]", result=[]), "[] | [ ]", ["", ",", "''"]),
    row(
        "number_sorting",
        SORTED,
        "['-3.0', '1.5', '2.25', '70.0'] | -3, 1.5, 2.25, 70",
        "['-3.0', '1.5', '2.25', '70.9'] | [-3, -3, 2, 70] | ['-3.0', '1.5', '2.25'] | ['nan', 'nan', 'nan', 'nan']",
        {"['-3.0', '1.5', '70.0', '2.25']": 0.5, "['70.0', '2.25', '1.5', '-3.0']": 0, "[1.5, -3, 2.25, 70]": 0},
    ),
    row(
        "number_sorting",
        TWO_SORTED,
        "['-3.0',' 1.5'] | [\" -3.0 \", \"1.5\"] | ['-3.0 ', ' 1.5']",
        "['-3.0', '1 .5'] | ['-3.0' ' 1.5'] | ['-3.0', ' ', '1.5'] | [' -3.0, 1.5']",
    ),
    row("number_sorting", ONE_TO_FOUR, ["1, 2, 3, 4"], ["1, 2, 4, 3"]),  # the question has that beginning
    *(
        row(task, entry("True"), "True | true | TRUE | yes", "False | 1 | True False | maybe True | not False")
        for task in ("isomorphic_strings", "ransom_note", "game_of_life_halting")
    ),
    row("game_of_life_halting", entry("False"), "NO | 'No' | False", "True | anything | 0"),
    row(
        "string_insertion",
        entry("ABCDAE"),
        "ABCDAE | \"ABCDAE\" | ['A', 'B', 'C', 'D', 'A', 'E'] | A B C D A E | abcdae",
        "ABCDEA | ABCDAE ABCDAE | 'ABC' + 'DAE'",
    ),
    *(
        row(
            task,
            entry("0 1 0 12 0 3"),
            "0 1 0 12 0 3 | 0, 1, 0, 12, 0, 3 | [0, 1, 0, 12, 0, 3]",
            "0 1 0 12 0 | 0 1 0 12 0 3 0 | 010 12 0 3 | 0 1 0 12 3 0 | 0 1 0 12 0 x",
        )
        for task in ("string_splitting", "string_synthesis")
    ),
    row(
        "binary_matrix",
        DISTANCES,
        ["[[0, 1, 2], [1, 2, 3], [2, 3, 4]]"],
        ["0 1 1\n1 1 1\n1 1 1"],
        {"0 1 2\n1 2 2\n2 2 2": 3 / 6},  # beyond the three cells that copying, or twos alone, get
    ),
    row(
        "game_of_life",
        LIFE,
        ["0 1 0 0\n0 1 0 0\n0 1 0 0\n0 0 0 0", LIFE["answer"]],
        [BLINKER, str([[0] * 4] * 4), LIFE["answer"][:-1] + ",[0,0,0,0]]", "{}"],
    ),
    row(
        "pool_matrix",
        POOLED,
        ["4.67 2.12\n5 0.25", "4.67 2.13\n5.00 .25", "[[4.6666667, 2.125], [5, 0.25]]"],
        ["4.7 2.1\n5 0.3", "4.67 2.12 5 0.25", "nan nan\nnan nan", "inf 1e999\n1e9999 -1e400", "5 5\n5 5"],
        {"4.66 2.12\n5 0.25": 2 / 3, "4.67 5\n2.12 0.25": 1 / 3},
    ),
    row("pool_matrix", entry("", solution=[[1], [2]], matrix=[[1, 0], [2, 0]]), ["1\n2"], "1 2"),
    row(
        "spiral_matrix",
        SPIRAL,
        "1 2 3 6 9 8 7 4 5 | [1, 2, 3, 6, 9, 8, 7, 4, 5] | 1,2,3,6,9,8,7,4,5",
        "1 2 3 4 5 6 7 8 9 | 1 2 3 6 9 8 7 4 | 1 2 3 6 9 8 7 4 5 5 | sorted(range(10))",
        {"1 2 3 6 9 8 7 5 4": (7 - 4) / (9 - 4)},  # reading row by row gets 1, 2, 3 and 8
    ),
    *(
        row(task, TURNED, ["[[3, 1], [4, 2]]"], ["1 2\n3 4", "3 1\n4 2\n3 1\n4 2"])
        for task in ("rotate_matrix", "manipulate_matrix")
    ),
    row("rotate_matrix", entry("", matrix=[[1, 2], [3, 4]], solution=[[1, 2], [3, 4]]), ["1 2\n3 4"]),
    row(
        "graph_color",
        PATH,
        ['{"0": 1, "1": 2, "2": 1}', '{"0": 3, "1": 2, "2": 1}', "{0: 1, 1: 2, 2: 3}", "0: 1,\n1: 2,\n2: 3"],
        '{"0": 1, "1": 1, "2": 2} | {"0": 1, "1": 2} | {"0": 1, "1": 4, "2": 1} | {"0": 1, "1": 2, "2": 1, "3": 1}',
    ),
    row(
        "graph_color",
        PATH,
        ['{"2": "1", "1": "2", "0": "1"}'],
        '{"0": 2, "1": 2, "2": 1, "0": 1} | {"0": null, "1": 2, "2": 1} | {"0": true, "1": 2, "2": 1} | '
        '{0: 1, "0": 2, 1: 2, 2: 1} | {0: [1], 1: 2, 2: 1}',
    ),
    row(
        "jugs",
        BOMB,
        [
            '["fill B", "pour B->A", "empty A", "pour B->A", "fill B", "pour B->A"]',
            "fill B, pour B->A, empty A, pour B->A, fill B, pour B->A",
            "1. Fill B\n2. Pour B into A\n3. Empty A\n4. Pour B to A\n5. Fill B\n6. Pour B → A.",
            "- fill jug B\n- pour from jug B -> jug A\n- empty jug A\n- pour B=>A\n- fill B\n- pour B-->A",
        ],
        [
            '["fill B", "pour B->A", "empty A", "pour B->A", "fill B", "pour B->A", "empty B"]',
            '["fill B", "pour B->A", "empty A", "pour B->A", "fill B"]',
            '["fill B", "pour B->A", "empty A", "pour B->A", "fill B", "pour B->A", "wait"]',
            *('["fill D"]', '["pour A->A"]', '["pour A->D"]', '["fill 4"]', '["fill B", ["pour B->A"]]', "No solution"),
            "fill A," * 1_001,
        ],
    ),
    row("rotten_oranges", entry("-1"), "−1", "1"),
    row("rotten_oranges", entry("3"), "3", "1 2 3 4"),
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
    """Form does not matter; another value, or another type, scores 0.0."""
    row.check()


@given(st.lists(st.decimals(-100, 100, places=2), min_size=1, max_size=8), st.randoms())
def test_only_the_sorted_order_is_right(numbers: list[Any], rng: Any) -> None:
    """Among all orders of the numbers, in any notation, only sorted ones get full value."""
    gold, order = [str(number) for number in sorted(numbers)], numbers.copy()
    rng.shuffle(order)
    item = entry(str(gold), sorted_numbers=gold, original_numbers=[str(number) for number in numbers])
    value = grade("number_sorting", {}, item, str([str(number) for number in order]), partial_credit=True)
    assert (value == 1.0) == (order == sorted(numbers))
    assert 0.0 <= value <= 1.0


Grid = list[list[int]]
GRIDS = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.integers(-99, 99), min_size=width, max_size=width), min_size=1, max_size=6)
)


def lines(grid: Grid) -> str:
    return "\n".join(" ".join(map(str, row)) for row in grid)


@pytest.mark.parametrize(
    "write",
    [
        lines,
        json.dumps,
        lambda grid: json.dumps(grid, indent=4),
        lambda grid: str(tuple(map(tuple, grid))),
        lambda grid: str(grid).replace(",", ""),  # as numpy prints it
        lambda grid: "\n\n".join(", ".join(map(str, row)) for row in grid),
        lambda grid: "\n".join("| " + " | ".join(map(str, row)) + " |" for row in grid),
        lambda grid: ",\n".join(map(str, grid)),
        lambda grid: r"\begin{bmatrix}" + r" \\ ".join(" & ".join(map(str, row)) for row in grid) + r"\end{bmatrix}",
        lambda grid: "\n".join(" ".join(f"'{cell}.0'" for cell in row) for row in grid),
    ],
)
@settings(max_examples=30, deadline=None)
@given(grid=GRIDS)
def test_a_grid_is_read_in_every_form(write: Any, grid: Grid) -> None:
    """Forms change, numbers and shape do not."""
    assert common.grade_grid(write(grid), grid) == 1.0


@given(grid=GRIDS, data=st.data())
def test_one_changed_number_is_not_right(grid: Grid, data: st.DataObject) -> None:
    """1.0 is for the whole grid only, and less is at least 0."""
    row, column = data.draw(st.integers(0, len(grid) - 1)), data.draw(st.integers(0, len(grid[0]) - 1))
    changed = [list(cells) for cells in grid]
    changed[row][column] += 1
    assert 0.0 <= common.grade_grid(lines(changed), grid, given=grid) < 1.0


def test_the_right_numbers_in_another_shape_are_wrong_and_trivial_boards_are_worth_nothing() -> None:
    """Progress counts from the best of the unchanged board and a constant one."""
    for text in ("1 2 3 4", "[1, 2, 3, 4]", "1 2\n3", "1 2\n3 4\n5 6", "1 2 3\n4", "[[1, 2], [3, 4]], 0"):
        assert common.grade_grid(text, [[1, 2], [3, 4]]) == 0.0
    gold, unchanged = [[0, 0, 0, 1], [1, 1, 0, 0]], [[0, 0, 1, 1], [1, 0, 0, 0]]
    assert (
        common.grade_grid(lines(unchanged), gold, unchanged)
        == common.grade_grid("0 0 0 0\n" * 2, gold, unchanged)
        == 0.0
    )
    assert common.grade_grid("0 0 0 1\n1 0 0 0", gold, unchanged) == pytest.approx(0.5)  # 7 of 8, where copying gets 6


@given(value=st.integers(0, 900), below=st.integers(1, 81))
def test_pool_matrix_takes_every_rounded_mean(value: int, below: int) -> None:
    """Rounding to two places never makes a right mean wrong."""
    mean = float(Fraction(value, below))
    row("pool_matrix", entry("", solution=[[mean]], matrix=[[1, 2]]), f"{mean:.2f}", f"{mean + 0.02:.2f}").check()


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
        "import sys; from rg_env.core.grading.graders import GRADERS as graders;"
        "entry = {'question': ': ask. we what', 'answer': 'what we ask.', 'metadata':"
        " {'start_word': 'COLD', 'end_word': 'CORD'}};"
        "assert graders['word_ladder']('COLD,CORD', entry, {}) == 1;"
        "assert graders['sentence_reordering']('what we ask.', entry, {}) == 1;"
        "sys.exit('reasoning_gym' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
