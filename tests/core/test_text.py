"""Text for people: one-line errors, untrusted text and abbreviated values."""

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.text import (
    described,
    one_line,
    reason_of,
    short_keys,
    shortened,
    shown,
    visible_line,
    without_controls,
    wrapped,
)


def test_long_values_are_shortened() -> None:
    assert shortened("x") == "'x'"
    assert len(shortened(list(range(1000)))) <= 80
    assert shortened(10**5000) == "<int, too long to print>"
    assert "\n" not in shortened(numpy.eye(2))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("one\n\n two\x1b[31m"), "one two [31m"),
        (FileNotFoundError(2, "No such file", "/path"), "No such file"),
        (KeyError(), "KeyError"),
        (ValueError("x" * 999), "x" * 300 + "..."),
    ],
)
def test_errors_of_libraries_are_one_line(error: Exception, text: str) -> None:
    assert reason_of(error) == text


def test_untrusted_text_is_escaped() -> None:
    """Characters that control a terminal, or hide or reverse text, are escaped; other languages and emoji are kept."""
    text = "größe 語\t👩\u200d👧\x1b[31m\u202e\u200b\ud800\nend"
    assert without_controls(text) == "größe 語\t👩\u200d👧\\x1b[31m\\u202e\\u200b\\ud800\nend"
    assert visible_line(" a\r\nb\tc ") == "a ⏎ b c"
    assert one_line("a\nb\x07c", 3) == "a b..."


keys = st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map(".".join), unique=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-6, "1e-6"), (0.5, "0.5"), (-3, "-3"), (True, "true"), (None, "null"), ("a\nb", "a b"), ("", ""), ([], ""),
     (["a", [1, None]], "a+1+null"), ({"x": 1, "y": ["a", "b"]}, "x-1+y-a+b")],
)  # fmt: skip
def test_values_are_shown_as_yaml_has_them(value: object, text: str) -> None:
    assert shown(value) == text


@given(keys)
def test_keys_are_as_short_as_possible(keys: list[str]) -> None:
    """A short key consists of the fewest last parts of the key that no other key shares."""
    short = short_keys(keys)
    assert list(short) == keys
    assert len(set(short.values())) == len(keys)
    for key, label in short.items():
        assert f".{key}".endswith(f".{label}")
        shorter = label.partition(".")[2]
        assert not shorter or any(f".{other}".endswith(f".{shorter}") for other in keys if other != key)


def test_values_by_key_are_one_line() -> None:
    values: dict[str, Any] = {"training.learning_rate": 1e-6, "tasks.a.level": 1, "tasks.b.level": 2}
    assert described(values) == "learning_rate=1e-6 a.level=1 b.level=2"


def test_lines_are_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A continuation starts below the text after the first column. Elsewhere, such as in a file, lines stay whole."""
    line = "#   output      a fresh folder under outputs/, a checkpoint at the end"
    assert wrapped(line) == line
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    below = "#".ljust(16)
    assert wrapped(f"{line}\nloading tiny ...").splitlines() == [
        "#   output      a fresh folder under",
        f"{below}outputs/, a checkpoint",
        f"{below}at the end",
        "loading tiny ...",
    ]
