"""User code in files, and the tables that importing this code changes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rg_env.core import user_code
from rg_env.core.rewards import registry
from rg_env.core.tasks import task_table

TASK = """
import time
from dataclasses import dataclass
from random import Random

from reasoning_gym.coaching import BaseCurriculum, ScalarAttributeDefinition
from reasoning_gym.factory import ProceduralDataset, register_dataset


@dataclass
class Config:
    terms: int = 2
    highest: int = 50
    opens_in_s: float = 0.0
    seed: int | None = None
    size: int = 500

    def validate(self):
        assert self.terms > 1, "terms must be above 1"


class Sums(ProceduralDataset):
    def __init__(self, config):
        super().__init__(config=config, seed=config.seed, size=config.size)
        time.sleep(config.opens_in_s)

    def __getitem__(self, index):
        rng = Random(self.seed + index)
        terms = [rng.randint(1, self.config.highest) for _ in range(self.config.terms)]
        return {"question": " + ".join(map(str, terms)) + " = ?", "answer": str(sum(terms)), "metadata": {"t": terms}}

    def score_answer(self, answer, entry):
        if answer == "hang":
            while True:
                pass
        if answer == "raise":
            raise KeyError("none such")
        if answer == "end":
            import os
            os._exit(3)
        if answer in ("nan", "inf", "-3", "7e9"):
            return float(answer)
        if answer == "nothing":
            return None
        return 1.0 if answer == entry["answer"] else 0.25 if answer.isdigit() else 0.0


class Curriculum(BaseCurriculum):
    def __init__(self):
        super().__init__("Curriculum", Config)
        self._define_attributes(ScalarAttributeDefinition(name="length", field_name="terms", levels=[2, 3, 5]))


register_dataset("own_sums", Sums, Config, Curriculum)
"""
"""Module that registers the task own_sums, whose `score_answer` can hang, raise, exit or return odd values."""

runs: list[str] = []
"""List in which imported modules record that they ran; `nothing_left` clears it first."""


@contextmanager
def nothing_left() -> Iterator[None]:
    """Undo imports and registrations at the end of a `with` block. Each test runs in one, so that tests do not affect
    each other."""
    tables: list[dict[Any, Any]] = [task_table._user_tasks, registry._REGISTRY, user_code._sources, *_of_the_library()]
    copies, modules, path = [dict(table) for table in tables], set(sys.modules), list(sys.path)
    runs.clear()
    try:
        yield
    finally:
        sys.path[:] = path
        if not copies[3:]:  # the library was not imported before
            tables += _of_the_library()
            copies += [{name: value for name, value in table.items() if _is_shipped(value)} for table in tables[3:]]
        for table, copy in zip(tables, copies, strict=True):
            if table != copy:
                table.clear()
                table.update(copy)
                task_table.load_table.cache_clear()
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if "pytest-of" in file:
                del sys.modules[name]


def _of_the_library() -> list[dict[Any, Any]]:
    """Its data sets and curricula by task, if it is imported."""
    factory = sys.modules.get("reasoning_gym.factory")
    return [factory.DATASETS, factory.CURRICULA] if factory else []


def _is_shipped(value: Any) -> bool:
    """Whether the library itself registered this (data set class, config class) or curriculum class."""
    return str((value[0] if isinstance(value, tuple) else value).__module__).startswith("reasoning_gym.")
