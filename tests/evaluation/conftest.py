"""Fixtures shared by the tests of evaluations."""

from collections.abc import Iterator

import pytest
from chat_server import ChatServer

KEY = "s3cret-key-of-somebody"
"""Value of the API keys, which must not occur in any file."""
BAD_KEYS = (f"{KEY}\n", f" {KEY}", f"{KEY}\r\nX-Other: 1", f"{KEY}ü", f"{KEY}\x1b")
"""Values of BAD_KEY_0, BAD_KEY_1, ..., which are not valid in an HTTP header."""


@pytest.fixture(scope="package", autouse=True)
def keys() -> Iterator[None]:
    """Put API keys in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_KEY", KEY)
        patch.setenv("OPENAI_API_KEY", "of-somebody-else")
        for number, key in enumerate(BAD_KEYS):
            patch.setenv(f"BAD_KEY_{number}", key)
        yield


@pytest.fixture(scope="module")
def chat() -> Iterator[ChatServer]:
    """Yield a chat server that all tests of a module share; each test resets it first."""
    with ChatServer(str) as server:
        yield server
