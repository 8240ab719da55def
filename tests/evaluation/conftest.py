"""For all tests of evaluations."""

from collections.abc import Callable

import pytest


@pytest.fixture
def report(rg_env: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process; gives its exit code, standard output and standard error."""
    return lambda *arguments: rg_env("report", *map(str, arguments))
