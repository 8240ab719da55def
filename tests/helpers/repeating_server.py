"""A real HTTP server on loopback in front of a vLLM server, which can replay earlier samples.

with RepeatingServer(server.port) as between:
    ...                # a run that uses between.port
    between.repeat()   # repeated requests get the earlier answers, in request order; other requests get new answers

A run's saved state does not include the server's random numbers. With replayed samples, two runs that continue from the
same state reach the same weights.
"""

import asyncio
from collections import defaultdict

import httpx
from loopback import LoopbackServer
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rg_env.inference.machine import HOST

_TIMEOUT_S = 120.0


class RepeatingServer(LoopbackServer):
    """A proxy for the server at `target`, on its own port.

    Attributes:
        repeated: number of replayed answers.
    """

    def __init__(self, target: int):
        self._target = f"http://{HOST}:{target}"
        self._recorded: dict[bytes, list[asyncio.Future[Response]]] = defaultdict(list)
        self._unplayed: dict[bytes, list[asyncio.Future[Response]]] = {}
        self.repeated = 0
        super().__init__([Route("/{path:path}", self._answer, methods=["GET", "POST"])])

    def repeat(self) -> None:
        """Replay recorded answers from now on."""
        self._unplayed = {body: list(answers) for body, answers in self._recorded.items()}

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        if request.url.path != "/v1/completions" or b"prompt_logprobs" in body:  # only samples are replayed
            return await self._forward(request, body)
        if unplayed := self._unplayed.get(body):
            self.repeated += 1
            return await unplayed.pop(0)
        answer = asyncio.ensure_future(self._forward(request, body))  # recorded in the order of requests, not answers
        self._recorded[body].append(answer)
        return await answer

    async def _forward(self, request: Request, content: bytes) -> Response:
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        url = f"{self._target}{request.url.path}"
        async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
            answer = await client.request(request.method, url, content=content, headers=headers)
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
