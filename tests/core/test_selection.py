"""Which items become rows."""

from collections import Counter

import pytest

from rg_env.core import selection
from rg_env.core.items import Item
from rg_env.core.selection import Selection
from rg_env.core.splits import Split, split_of


def _items(answers: str, split: Split = "train") -> list[Item]:
    """Items with these one-letter answers, y and n, and distinct questions of `split`."""
    questions = (text for text in (f"question {i}" for i in range(100_000)) if split_of(text) == split)
    return [Item(next(questions), {"y": "Yes", "n": "No"}[answer], "{}") for answer in answers]


def _answers(task: str, items: list[Item]) -> str:
    chosen = Selection(task, "{}", ("train", "eval"))
    for item in items:
        chosen.offer(item)
    return "".join(row["answer"][0].lower() for row in chosen.rows("train"))


def test_repeats_are_left_out() -> None:
    """A question counts once, whatever the white space around it, and belongs to its split."""
    first, second = _items("yn")
    chosen = Selection("maze", '{"a": 1}', ("train", "eval"))
    for item in (first, first._replace(question=f" {first.question}\n"), None, second, *_items("y", "eval")):
        chosen.offer(item)
    assert [row["question"] for row in chosen.rows("train")] == [first.question, second.question]
    assert chosen.rows("train")[0]["info"] == {"rg_task": "maze", "config": '{"a": 1}', "entry": "{}"}
    assert (len(chosen.rows("eval")), chosen.draws) == (1, 5)


def test_answers_take_turns() -> None:
    """Rows of a balanced task hold its answers equally often, in the order of the draws; others stay as drawn."""
    assert _answers("syllogism", _items("yyyynyyn")) == "ynyny"
    assert _answers("syllogism", _items("yyyynyynnn")) == "ynynynyny"
    assert _answers("maze", _items("yyyyn")) == "yyyyn"


def test_more_rows_begin_with_the_same() -> None:
    """What was chosen from fewer draws stays chosen."""
    items = _items("yynynnyyyynyny" * 20)
    all_rows = _answers("syllogism", items)
    assert abs(Counter(all_rows)["y"] - Counter(all_rows)["n"]) <= 1
    for n in range(0, len(items), 7):
        assert all_rows.startswith(_answers("syllogism", items[:n]))


def test_balance_is_given_up_where_an_answer_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while without the answer that lags behind, rows are taken as drawn, the waiting ones first."""
    monkeypatch.setattr(selection, "BALANCE_PATIENCE", 4)
    assert _answers("syllogism", _items("ynyyyy")) == "yn" + "y"
    assert _answers("syllogism", _items("ynyyyyy")) == "yn" + "yyyyy"
    assert _answers("syllogism", _items("ynyyyyyyn")) == "yn" + "yyyyy" + "yn"
