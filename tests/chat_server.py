"""A real HTTP server on loopback that speaks chat completions, and all that goes wrong with such servers.

with ChatServer(lambda question: "<answer>1</answer>") as server:
    server.url, server.requests
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rg_env.inference.server import HOST, bind

Answer = Callable[[str], str]
"""From the last user message to the answer."""
Trouble = Callable[[int, dict[str, Any]], Response | float | None]
"""What goes wrong with a request, by its number from 0: another response, seconds to wait for, or nothing."""


class ChatServer:
    """Answers as `answer` says, except where there is trouble.

    Attributes:
        requests: the bodies that came, in order.
        most: requests that were under way at the same time, at most.
        keys: the authorization headers that came.
    """

    def __init__(
        self, answer: Answer, *, model: str = "m", trouble: Trouble = lambda number, body: None, port: int = 0
    ):
        self.answer, self.model, self.trouble = answer, model, trouble
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.most = self._under_way = 0
        self._listener = bind(port)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}/v1"
        routes = [Route("/v1/chat/completions", self._chat, methods=["POST"]), Route("/v1/models", self._models)]
        config = uvicorn.Config(Starlette(routes=routes), log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)

    def __enter__(self) -> "ChatServer":
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._listener.close()

    def reset(self, answer: Answer, trouble: Trouble = lambda number, body: None) -> "ChatServer":
        """Begin anew, as another server would."""
        self.answer, self.trouble, self.most = answer, trouble, 0
        self.requests.clear()
        self.keys.clear()
        return self

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "tests"}]})

    async def _chat(self, request: Request) -> Response:
        number, body = len(self.requests), json.loads(await request.body())
        self.requests.append(body)
        self.keys.add(request.headers.get("authorization"))
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        try:
            trouble = self.trouble(number, body)
            if isinstance(trouble, Response):
                return trouble
            if trouble is not None:
                await asyncio.sleep(trouble)
            return JSONResponse(completion(self.answer(body["messages"][-1]["content"]), model=self.model))
        finally:
            self._under_way -= 1


def completion(text: str | None, *, model: str = "m", finish: str = "stop", **message: Any) -> dict[str, Any]:
    """A chat completion with this text."""
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
