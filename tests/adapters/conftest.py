"""Fixtures for tests of the adapters. Only the model server is replaced, by a real HTTP server on loopback."""

from collections.abc import Iterator

import pytest
from chat_server import ChatServer


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """A chat server that answers 0 to every question until a test sets `answer`."""
    with ChatServer(lambda question: "<answer>0</answer>") as server:
        yield server
