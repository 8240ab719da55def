"""Cases of tests, which are data in `tests/data`."""

from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "data"


def data(name: str) -> Any:
    """Return the contents of the YAML file `name` in `tests/data`."""
    return yaml.safe_load((DATA / f"{name}.yaml").read_text(encoding="utf-8"))
