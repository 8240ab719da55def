"""Items drawn for the audit are those that rows are made of."""

import json

import pytest

from rg_env.core.data.dataset import build_rows
from rg_env.core.data.draws import Draws
from rg_env.errors import InputError


@pytest.fixture(scope="module")
def draws() -> Draws:
    return Draws()


@pytest.mark.parametrize("task", ["ransom_note", "time_intervals", "list_functions"])
def test_items_are_those_of_the_rows(draws: Draws, task: str) -> None:
    """The training rows' entries, in any process: one of these tasks depends on the hash seed, one on a mend, one on
    the global random state."""
    rows = build_rows(task, "train", 5, seed=4, cache=False)
    items = [item for item in draws.items(task, 40, seed=4) if item.split("problem") == "train"]
    assert {row["info"]["entry"] for row in rows} <= {item.entry for item in items}


def test_options_are_minded_and_wrong_ones_told(draws: Draws) -> None:
    """Items of one task with other options do not come from the dataset opened before."""
    plain = draws.items("chain_sum", 3, config={"min_terms": 2, "max_terms": 2})
    longer = draws.items("chain_sum", 3, config={"min_terms": 9, "max_terms": 9})
    terms = [json.loads(item.entry)["metadata"]["difficulty"]["num_terms"] for item in plain + longer]
    assert terms == [[2, 2]] * 3 + [[9, 9]] * 3
    with pytest.raises(InputError, match="chain_sum"):
        draws.items("chain_sum", 1, config={"min_terms": -1})
