"""The library's own graders, called on a cached dataset instance for each (task, config).

An instance is needed because some graders read its state: word lists, tolerances, board formats.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from rg_env.core.tasks import library

_TUPLES_WANTED = ("arc_agi", "rearc")
"""Tasks whose grader compares the parsed board, a tuple of tuples, with `metadata["output"]`."""


def grade(task: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> float:
    """The library's score of `answer`, as it is; whatever the library raises goes through."""
    if task in _TUPLES_WANTED:
        output = tuple(tuple(row) for row in entry["metadata"]["output"])
        entry = {**entry, "metadata": {**entry["metadata"], "output": output}}
    gold = entry["answer"]
    if isinstance(gold, str) and answer == gold.strip():
        # Extraction strips the answer, while some gold answers begin or end with white space.
        answer = gold
    return float(_dataset(task, json.dumps(config, sort_keys=True)).score_answer(answer, entry=entry))


@cache
def _dataset(task: str, config_json: str) -> Any:
    return library.create(task, json.loads(config_json), seed=0, size=1)
