"""A real HTTP server on loopback that serves chat completions and simulates the failures of such servers.

with ChatServer(lambda question: "<answer>1</answer>") as server:
    server.url, server.requests
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from loopback import LoopbackServer
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Answer = Callable[[str], str]
"""Function that returns the answer to the last user message."""
Trouble = Callable[[int, dict[str, Any]], Response | float | None]
"""Function of a request's number (from 0) and body that returns another response, seconds to wait, or None."""


class ChatServer(LoopbackServer):
    """Server that replies with `answer`, except for requests with `trouble`.

    Attributes:
        requests: the request bodies received, in order.
        most: largest number of concurrent requests.
        keys: the authorization headers received.
        listed, list_s: the response to a request for the list of models, and the seconds that it takes.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        model: str = "m",
        trouble: Trouble = lambda number, body: None,
        port: int = 0,
        more: Sequence[Route] = (),
    ):
        self.answer, self.model, self.trouble = answer, model, trouble
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.most = self._under_way = 0
        self.listed: Response | None = None
        self.list_s = 0.0
        super().__init__(
            [
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._models),
                *more,
            ],
            port,
        )
        self.url = f"{self.address}/v1"

    def reset(self, answer: Answer, trouble: Trouble = lambda number, body: None) -> "ChatServer":
        """Set new functions and forget all requests."""
        self.answer, self.trouble, self.most, self.listed = answer, trouble, 0, None
        self.requests.clear()
        self.keys.clear()
        return self

    async def _models(self, request: Request) -> Response:
        await asyncio.sleep(self.list_s)
        mine = {"id": self.model, "object": "model", "owned_by": "tests"}
        return self.listed or JSONResponse({"object": "list", "data": [mine]})

    async def _chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        number = len(self.requests)
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
    """Return a chat completion with this text."""
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
