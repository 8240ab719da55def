"""For all tests of evaluations."""

from collections.abc import Callable, Iterator

import pytest
from chat_server import ChatServer

KEY = "sk-not-to-be-told"
"""Of no endpoint; no file may hold it."""


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
    """No hub, and a cache of data sets that is empty; keys that must get nowhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("EXTERNAL_KEY", KEY)
        patch.setenv("OPENAI_API_KEY", KEY)
        yield
