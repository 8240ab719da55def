"""A fake of the outermost wire only: a real HTTP server on loopback."""

from collections.abc import Iterator

import pytest
from chat_server import ChatServer


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """Answers every chat with 0, until a test sets `answer`."""
    with ChatServer(lambda question: "<answer>0</answer>") as server:
        yield server
