"""Fixtures for tests that import user code."""

from collections.abc import Callable
from pathlib import Path

import pytest
from user_code import TASK


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a file of user code."""

    def written(name: str, text: str = TASK) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return written
