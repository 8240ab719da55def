"""Small environments and trainers on the tiny policy."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from training_fixtures import *  # noqa: F403  fixtures


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """Makes `tmp_path` the working directory."""
    with contextlib.chdir(tmp_path):
        yield tmp_path
