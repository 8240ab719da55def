"""Keys and values of configs as tables, plots and names of folders show them.

short_keys(["training.learning_rate", "seed"])    # {"training.learning_rate": "learning_rate", "seed": "seed"}
shown(1e-6), shown(["a", "b"]), shown(None)       # "1e-06", "a+b", "null"
"""

import json
from collections.abc import Iterable
from typing import Any


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """The last part of each dotted key, or as many of its parts as tell it from the others."""
    keys = list(keys)

    def end(key: str, count: int) -> str:
        return ".".join(key.split(".")[-count:])

    def is_alone(key: str, count: int) -> bool:
        return [end(other, count) for other in keys].count(end(key, count)) == 1

    return {
        key: end(key, next((n for n in range(1, key.count(".") + 1) if is_alone(key, n)), key.count(".") + 1))
        for key in keys
    }


def shown(value: object) -> str:
    """A value of a config in one line of few characters. Different values may look the same."""
    if isinstance(value, list):
        return "+".join(map(shown, value))
    if isinstance(value, dict):
        return "+".join(f"{key}-{shown(each)}" for key, each in value.items())
    return " ".join(value.split()) if isinstance(value, str) else json.dumps(value)


def described(values: dict[str, Any]) -> str:
    """Values by key in one line: "learning_rate=1e-06 max_tokens=64"."""
    return " ".join(f"{label}={shown(values[key])}" for key, label in short_keys(values).items())
