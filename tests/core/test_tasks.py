"""Tasks and mixtures."""

import datetime
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from task_table import generate_table, render

from rg_env.core.tasks.mixture import Mixture, TaskSpec
from rg_env.core.tasks.task_table import PATH, load_table
from rg_env.errors import InputError, UnknownNameError


def test_a_name_a_mapping_and_a_list_are_taken() -> None:
    """The three forms of `gym`, and a `Mixture` itself, give a checked mixture."""
    one = Mixture.parse("leg_counting")
    assert one.tasks == (TaskSpec(name="leg_counting"),)
    two = Mixture.parse([{"name": "chain_sum", "weight": 2, "config": {"max_terms": 3}}, "leg_counting"])
    assert two.names == ["chain_sum", "leg_counting"]
    assert (two.tasks[0].weight, two.tasks[0].config_json) == (2.0, '{"max_terms": 3}')
    assert Mixture.parse(two) == two
    assert Mixture.parse({"name": "maze"}) == Mixture.parse("maze")


def test_dates_in_a_config_become_text() -> None:
    """A config is kept in JSON form, as it will stand in `info`."""
    mixture = Mixture.parse({"name": "time_intervals", "config": {"min_date": datetime.date(2000, 1, 2)}})
    assert mixture.tasks[0].config == {"min_date": "2000-01-02"}


@pytest.mark.parametrize(
    ("gym", "message"),
    [
        ("leg_countin", "unknown task 'leg_countin': did you mean 'leg_counting'"),
        ("arithmetic_basic", "'basic_arithmetic'"),
        ("missing_letter", "never had it.*'letter_counting'"),
        ("composite", "give a list of tasks"),
        ({"name": "maze", "wieght": 1}, "unknown key of a task 'wieght': did you mean 'weight'"),
        (
            {"name": "maze", "config": {"min_dit": 1}},
            "unknown option of task 'maze' 'min_dit': did you mean 'min_dist'",
        ),
    ],
)
def test_unknown_names_are_told_with_the_nearest(gym: Any, message: str) -> None:
    """A task, key or option that does not exist is an `UnknownNameError` of one line that helps."""
    with pytest.raises(UnknownNameError, match=message) as caught:
        Mixture.parse(gym)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("gym", "message"),
    [
        ([], "empty list"),
        (None, "not NoneType"),
        ([7], "a task must be a name or a mapping"),
        ({}, "needs a name"),
        ({"name": 7}, "name must be text"),
        (["maze", "maze"], "'maze' is listed 2 times"),
        ({"name": "maze", "weight": 0}, "above 0"),
        ({"name": "maze", "weight": math.nan}, "above 0 and finite"),
        ({"name": "maze", "weight": "2"}, "weight must be a number"),
        ({"name": "maze", "weight": True}, "weight must be a number"),
        ({"name": "maze", "config": "x"}, "config must be a mapping"),
        ({"name": "maze", "config": {"seed": 1}}, "'seed' is not a task option"),
        ({"name": "maze", "config": {"size": 1}}, "'size' is not a task option"),
    ],
)
def test_bad_input_is_told_in_one_line(gym: Any, message: str) -> None:
    """What cannot work is an `InputError` that names the place."""
    with pytest.raises(InputError, match=message) as caught:
        Mixture.parse(gym)
    assert "\n" not in str(caught.value)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6), st.integers(6, 500))
def test_counts_follow_the_weights(weights: list[float], n: int) -> None:
    """Counts sum to n, leave no task out, and are within one of the exact share unless that is below one row."""
    names = ["maze", "chain_sum", "gcd", "lcm", "sudoku", "products"]
    mixture = Mixture.parse([{"name": name, "weight": weight} for name, weight in zip(names, weights, strict=False)])
    counts = mixture.counts(n)
    assert sum(counts) == n
    assert min(counts) >= 1
    if min(n * weight / sum(weights) for weight in weights) >= 1:
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - n * weight / sum(weights)) <= 1 + 1e-6


def test_fewer_rows_than_tasks_is_an_error() -> None:
    """No task of a mixture is silently left without rows; no rows at all is fine."""
    mixture = Mixture.parse(["maze", "gcd"])
    with pytest.raises(InputError, match="at least 2"):
        mixture.counts(1)
    assert mixture.counts(0) == [0, 0]


def test_the_table_has_105_tasks() -> None:
    """The shipped table holds every task but the library's own mixture."""
    table = load_table()
    assert len(table) == 105
    assert "composite" not in table
    assert all("seed" not in entry["options"] and "size" not in entry["options"] for entry in table.values())


def test_the_table_is_what_the_library_says() -> None:
    """The shipped table equals one made from the installed library, byte by byte."""
    assert render(generate_table()) == PATH.read_text(encoding="utf-8")
