"""Fixtures for all tests of evaluations."""

from collections.abc import Callable, Iterator

import pytest
from chat_server import ChatServer

KEY = "s3cret-key-of-somebody"
"""Value of the API keys; no file may contain it."""
BAD_KEYS = (f"{KEY}\n", f" {KEY}", f"{KEY}\r\nX-Other: 1", f"{KEY}ü", f"{KEY}\x1b")
"""Values of BAD_KEY_0, BAD_KEY_1, ..., which no header can hold."""


@pytest.fixture(scope="package", autouse=True)
def keys() -> Iterator[None]:
    """API keys in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MY_KEY", "EXTERNAL_KEY"):
            patch.setenv(name, KEY)
        patch.setenv("OPENAI_API_KEY", "of-somebody-else")
        for number, key in enumerate(BAD_KEYS):
            patch.setenv(f"BAD_KEY_{number}", key)
        yield


@pytest.fixture
def report(rg_env: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process; gives its exit code, standard output and standard error."""
    return lambda *arguments: rg_env("report", *map(str, arguments))


@pytest.fixture(scope="module")
def chat() -> Iterator[ChatServer]:
    """A server for all tests of a module: each begins by `reset`."""
    with ChatServer(str) as server:
        yield server


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No hub, and an empty cache of data sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        yield
