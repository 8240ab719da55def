"""Selection of the items that become rows."""

import json
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.data.items import Item
from rg_env.core.data.selection import BALANCE_PATIENCE, BALANCED, DrawnRow, Selection, repeated
from rg_env.core.data.splits import Split, question_hash, split_of


def _items(answers: str, split: Split = "train") -> list[Item]:
    """Items with these answers (y for Yes, n for No) and distinct questions of `split`."""
    questions = (text for text in (f"question {i}" for i in range(100_000)) if split_of(question_hash(text)) == split)
    texts = [(next(questions), {"y": "Yes", "n": "No"}[answer]) for answer in answers]
    return [Item(question, gold, "{}", question_hash(question)) for question, gold in texts]


def _rows(task: str, items: list[Item]) -> list[DrawnRow]:
    """The training rows chosen from these items."""
    chosen = Selection(task, "{}", ("train", "eval"))
    for item in items:
        chosen.offer(item)
    return chosen.parts["train"].rows


def _answers(task: str, items: list[Item]) -> str:
    return "".join(row["answer"][0].lower() for row in _rows(task, items))


def _with_entries(entries: list[str]) -> list[Item]:
    return [item._replace(entry=entry) for item, entry in zip(_items("y" * len(entries)), entries, strict=True)]


def _with_golds(golds: Iterable[str]) -> list[Item]:
    golds = list(golds)
    return [item._replace(gold=gold) for item, gold in zip(_items("y" * len(golds)), golds, strict=True)]


def test_repeats_are_left_out() -> None:
    """A question counts once, regardless of surrounding whitespace, and belongs to its split."""
    first, second = _items("yn")
    chosen = Selection("maze", '{"a": 1}', ("train", "eval"))
    for item in (first, first._replace(question=f" {first.question}\n"), None, second, *_items("y", "eval")):
        chosen.offer(item)
    assert [row["question"] for row in chosen.parts["train"].rows] == [first.question, second.question]
    info = {"rg_task": "maze", "config": '{"a": 1}', "entry": "{}", "problem": first.problem}
    assert chosen.parts["train"].rows[0]["info"] == info
    assert (len(chosen.parts["eval"].rows), chosen.draws) == (1, 5)


def test_rows_are_split_by_problem_or_by_question() -> None:
    """Split by problem, two wordings of a problem are two rows of the same split. Split by question, each has its own
    split."""
    (one,), (other,) = _items("y"), _items("y", "eval")
    other = other._replace(problem=one.problem)
    by_problem, by_question = (Selection("leg_counting", "{}", ("train", "eval"), by) for by in ("problem", "question"))
    for item in (one, other):
        by_problem.offer(item)
        by_question.offer(item)
    assert [len(by_problem.parts[split].rows) for split in ("train", "eval")] == [2, 0]
    assert [len(by_problem.parts[split].problems) for split in ("train", "eval")] == [1, 0]
    assert [len(by_question.parts[split].rows) for split in ("train", "eval")] == [1, 1]


def test_answers_take_turns() -> None:
    """A balanced task has its answers equally often, each in the order of the draws; other tasks stay as drawn."""
    assert _answers("syllogism", _items("yyyynyyn")) == "ynyny"
    assert _answers("syllogism", _items("yyyynyynnn")) == "ynynynyny"
    assert _answers("leg_counting", _items("yyyyn")) == "yyyyn"


def test_an_answer_waits_while_it_has_its_share() -> None:
    """In a task with many answers, a frequent one gets one row in five, and the others stay in the order of the
    draws."""
    assert BALANCED["maze"] == 5
    assert "".join(row["answer"] for row in _rows("maze", _with_golds("1121314151617"))) == "12345167"


def test_several_answers_can_be_right() -> None:
    """A row of propositional_logic counts toward the share of each literal that is right for it."""
    both = json.dumps({"metadata": {"variables": ["P", "Q"], "premises": ["(P ↔ Q)", "(P ∨ Q)"]}})
    one = json.dumps({"metadata": {"variables": ["P", "Q"], "premises": ["P", "(Q → ¬P)"]}})
    neither = json.dumps({"metadata": {"variables": ["P", "Q", "R"], "premises": ["(P → Q)", "(Q → R)"]}})
    entries = [both, both, one, one, *[neither] * 6]
    found = [row["info"]["entry"] for row in _rows("propositional_logic", _with_entries(entries))]
    assert found == [both, one, *[neither] * 4, both, one, *[neither] * 2]


def test_gaps_have_either_sign_equally_often() -> None:
    """As drawn, one sign fills nine in ten gaps of modulo_grid. Grids with gaps of both signs stay as drawn."""
    grids = _with_golds(["❌✅❌", "❌❌❌", "❌✅✅", "❌❌❌", "✅❌✅"])
    items = [item._replace(question=f"{item.question}\n\n❔{str(item.gold)[1]}❔") for item in grids]
    assert [row["answer"] for row in _rows("modulo_grid", items)] == ["❌✅❌", "❌✅✅", "❌❌❌", "✅❌✅", "❌❌❌"]


@pytest.mark.parametrize(
    ("task", "question", "copied", "other"),
    [
        ("string_insertion", "according to the pattern: ABCDE", "ABCDE", "ABCDAEB"),
        ("string_manipulation", "list of rules:\nabcab", "abcab", "ab"),
        ("pool_matrix", "a kernel size of 1:\n1 2\n3 4\n", "1.0 2.0\n3.0 4.0", "2.5"),
    ],
)
def test_copies_of_the_question_are_one_row_in_five(task: str, question: str, copied: str, other: str) -> None:
    """In these tasks, many of the library's strings and grids need no change."""
    assert BALANCED[task] == 5
    golds = _with_golds([copied] * 3 + [other] * 10)
    items = [item._replace(question=f"{number}. {question}") for number, item in enumerate(golds)]
    assert [row["answer"] == copied for row in _rows(task, items)] == [i % 5 == 0 for i in range(13)]


def test_graphs_with_few_edges_are_rare() -> None:
    """Only one row in ten of graph_color has a graph that a fixed coloring may fit by chance."""
    entries = []
    for edges in [3, 3, 3, *[6] * 12]:
        puzzle = {"vertices": list(range(10)), "edges": [[0, i + 1] for i in range(edges)], "color_options": [1, 2, 3]}
        entries.append(json.dumps({"metadata": {"puzzle": puzzle, "difficulty": {"num_vertices": [10, 10]}}}))
    sparse = [row["info"]["entry"] == entries[0] for row in _rows("graph_color", _with_entries(entries))]
    assert (len(sparse), sum(sparse), sparse[0], sparse[10]) == (14, 2, True, True)


def test_more_draws_only_add_rows() -> None:
    """Rows that were chosen from fewer draws remain the first ones."""
    items = _items("yynynnyyyynyny" * 20)
    all_rows = _answers("syllogism", items)
    assert abs(Counter(all_rows)["y"] - Counter(all_rows)["n"]) <= 1
    for n in range(0, len(items), 7):
        assert all_rows.startswith(_answers("syllogism", items[:n]))


def test_balancing_ends_if_an_answer_no_longer_occurs() -> None:
    """After `BALANCE_PATIENCE` draws without the answer that is behind, rows are taken as drawn, starting with those
    that waited."""
    more = "y" * BALANCE_PATIENCE
    assert _answers("syllogism", _items(f"yn{more}")) == "yny"
    assert _answers("syllogism", _items(f"yny{more}")) == f"yny{more}"
    assert _answers("syllogism", _items(f"yny{more}yn")) == f"yny{more}yn"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 200))
def test_problems_are_repeated_equally_often(problems: list[int], n: int) -> None:
    """The distinct rows come first. Then the rarest problem is repeated, with each of its wordings in turn."""
    rows: list[DrawnRow] = [
        {"question": str(i), "answer": "", "info": {"problem": str(problem)}} for i, problem in enumerate(problems)
    ]
    filled = repeated(rows, n)
    assert len(filled) == n
    assert filled[: len(rows)] == rows[:n]
    if n < len(rows):
        return
    distinct, counts = Counter(problems), Counter(int(row["info"]["problem"]) for row in filled)
    added = [problem for problem in distinct if counts[problem] > distinct[problem]]
    assert all(counts[problem] <= min(counts.values()) + 1 for problem in added)
    questions = Counter(row["question"] for row in filled)
    for problem in distinct:
        own = [questions[str(i)] for i, each in enumerate(problems) if each == problem]
        assert max(own) - min(own) <= 1
