"""Keys and values of configs in few characters."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.text import described, short_keys, shown

keys = st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map(".".join), unique=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-6, "1e-06"), (0.5, "0.5"), (-3, "-3"), (True, "true"), (None, "null"), ("a\nb", "a b"), ("", ""), ([], ""),
     (["a", [1, None]], "a+1+null"), ({"x": 1, "y": ["a", "b"]}, "x-1+y-a+b")],
)  # fmt: skip
def test_values_are_shown_as_yaml_has_them(value: object, text: str) -> None:
    assert shown(value) == text


@given(keys)
def test_a_key_is_as_short_as_it_can_be_told_from_the_others(keys: list[str]) -> None:
    """An end of it, whole parts of it, no other key's; one part less would be another's too, or the key itself."""
    short = short_keys(keys)
    assert list(short) == keys
    assert len(set(short.values())) == len(keys)
    for key, label in short.items():
        assert f".{key}".endswith(f".{label}")
        shorter = label.partition(".")[2]
        assert not shorter or any(f".{other}".endswith(f".{shorter}") for other in keys if other != key)


def test_values_by_key_are_one_line() -> None:
    values: dict[str, Any] = {"training.learning_rate": 1e-6, "tasks.a.level": 1, "tasks.b.level": 2}
    assert described(values) == "learning_rate=1e-06 a.level=1 b.level=2"
