"""A Starlette application as a real HTTP server on loopback, in a thread of this process."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rg_env.inference.vllm.client import VllmServer


class LoopbackServer:
    """Server for `routes` that runs within a `with` block.

    Attributes:
        port: the given port, or a free one.
    """

    def __init__(self, routes: list[Route], port: int = 0, log_level: str = "critical"):
        self._listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self.port = self._listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), log_level=log_level, timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._listener.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., VllmServer]]:
    """Yield a function that starts a server. Keywords map the last part of a path to the response's status and body."""
    with contextlib.ExitStack() as running:

        def start(**answers: tuple[int, Any]) -> VllmServer:
            async def answer(request: Request) -> Response:
                status, body = answers.get(request.url.path.rsplit("/", 1)[-1], (404, "no"))
                return Response(body if isinstance(body, bytes) else json.dumps(body), status)

            server = LoopbackServer([Route("/{path:path}", answer, methods=["GET", "POST"])])
            return VllmServer("127.0.0.1", running.enter_context(server).port)

        yield start
