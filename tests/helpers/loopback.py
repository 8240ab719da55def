"""A Starlette application as a real HTTP server on loopback, in a thread of this process."""

import socket
import threading
import time
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route


class LoopbackServer:
    """Context manager that serves `routes`.

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
