"""The embedded engine behind HTTP, for any OpenAI client on this machine.

    rg-env serve --model outputs/my-run/checkpoint-25 --port 8000
    OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="EMPTY").chat.completions.create(model=..., messages=[...])

It listens on the loopback address only, because it has no keys, no limits and no isolation of users.

`AsyncOpenAI`'s surface over the embedded engine, with no sockets: HTTP was measured to double a training step.

    client = InProcessClient(engine)
    completion = await client.chat.completions.create(model=engine.model_name, messages=[...], logprobs=True)

Requests made while others are waiting are gathered into one batch.
"""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import uvicorn
from openai.types.chat import ChatCompletion
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rg_env.errors import InputError, RGEnvError
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.protocol import BadRequest, ChatRequest, Generation, parse_request, response

# Options of the HTTP transport, which have no meaning without one.
_TRANSPORT = ("extra_headers", "extra_query", "timeout")


class Batcher:
    """Gathers the requests of one event loop into batches for the engine.

    Args:
        window_s: how long to wait for company after the first request. 0: until the loop has nothing else ready, which
            is right for callers in this process; requests that come over sockets trickle in and need milliseconds.
        errors_to_all: whether an error of the engine reaches every caller, or one, and the others are cancelled.
    """

    def __init__(self, engine: EmbeddedEngine, window_s: float = 0.0, errors_to_all: bool = True):
        self.engine, self.window_s, self.errors_to_all = engine, window_s, errors_to_all
        self._waiting: list[tuple[ChatRequest, asyncio.Future[list[Generation]]]] = []
        self._runner: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedded-engine")

    async def submit(self, request: ChatRequest) -> list[Generation]:
        """The `request.n` completions of one request. Raises what `EmbeddedEngine.chat` raises."""
        self.engine.prompt_ids(request)  # refuse it now and alone, not with the batch it would have been in
        future: asyncio.Future[list[Generation]] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await self._gather()
            batch, self._waiting = self._waiting, []
            batch = [(request, future) for request, future in batch if not future.done()]  # callers that went away
            try:
                results = await loop.run_in_executor(self._executor, self.engine.chat, [r for r, _ in batch])
            except BaseException as error:
                for i, (_, future) in enumerate(batch):
                    if not future.done():
                        future.set_exception(error) if self.errors_to_all or i == 0 else future.cancel()
                if not isinstance(error, Exception):
                    raise
                continue
            for (_, future), generations in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(generations)

    async def _gather(self) -> None:
        if self.window_s:
            await asyncio.sleep(self.window_s)
            return
        seen, idle = len(self._waiting), 0
        while idle < 3:  # a rollout may pass the loop a few times between its start and its request
            await asyncio.sleep(0)
            idle = idle + 1 if len(self._waiting) == seen else 0
            seen = len(self._waiting)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class InProcessClient:
    """Replaces an `openai.AsyncOpenAI`. Bad requests raise `openai.BadRequestError`, as over HTTP."""

    api_key = "EMPTY"

    def __init__(self, engine: EmbeddedEngine):
        self.base_url = httpx.URL("http://embedded.invalid/v1/")
        self.engine = engine
        self.batcher = Batcher(engine, errors_to_all=False)  # a hundred rollouts need not all report it
        self.chat = _Chat(self)

    async def close(self) -> None:
        self.batcher.close()


class _Chat:
    def __init__(self, client: InProcessClient):
        self.completions = _Completions(client)


class _Completions:
    def __init__(self, client: InProcessClient):
        self._client = client

    async def create(self, *, extra_body: dict[str, Any] | None = None, **body: Any) -> ChatCompletion:
        """As `AsyncOpenAI().chat.completions.create`, for the fields `protocol.parse_request` takes."""
        batcher, engine = self._client.batcher, self._client.engine
        body = {key: value for key, value in body.items() if key not in _TRANSPORT and value is not openai.NOT_GIVEN}
        try:
            request = parse_request({**body, **(extra_body or {})})
            generations = await batcher.submit(request)
        except BadRequest as error:
            raise _openai_error(error) from error
        answer = response(request, generations, len(engine.prompt_ids(request)), engine.token_text)
        return ChatCompletion.model_validate(answer)


def _openai_error(error: BadRequest) -> openai.APIStatusError:
    """The exception the OpenAI client raises for this error when it comes over HTTP."""
    request = httpx.Request("POST", "http://embedded.invalid/v1/chat/completions")
    answer = httpx.Response(error.status, json=error.body(), request=request)
    kind = openai.NotFoundError if error.status == 404 else openai.BadRequestError
    return kind(error.message, response=answer, body=error.body()["error"])


HOST = "127.0.0.1"
MAX_BODY_BYTES = 4 * 2**20
_WINDOW_S = 0.005  # requests of one client trickle in over a few milliseconds


def make_app(engine: EmbeddedEngine) -> Starlette:
    """`POST /v1/chat/completions`, `GET /v1/models`, `GET /health`."""
    batcher = Batcher(engine, window_s=_WINDOW_S)

    async def chat(request: Request) -> Response:
        try:
            body = await _body(request)
            parsed = parse_request(body)
            generations = await batcher.submit(parsed)
            return JSONResponse(response(parsed, generations, len(engine.prompt_ids(parsed)), engine.token_text))
        except ClientDisconnect:  # the answer is not read, but something must be returned
            return Response(status_code=400)
        except BadRequest as error:
            return JSONResponse(error.body(), status_code=error.status)
        except RGEnvError as error:
            body = {"error": {"message": str(error), "type": "InternalServerError", "param": None, "code": 500}}
            return JSONResponse(body, status_code=500)

    async def models(_: Request) -> JSONResponse:
        entry = {"id": engine.model_name, "object": "model", "owned_by": "rg-env", "max_model_len": engine.max_context}
        return JSONResponse({"object": "list", "data": [entry]})

    async def health(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
        ]
    )


async def _body(request: Request) -> object:
    """The JSON body, read only up to the limit."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise BadRequest(f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # the latter for ten thousand opening brackets
        raise BadRequest(f"the body is not JSON: {error}") from error


def bind(port: int) -> socket.socket:
    """A listening socket on the loopback address; port 0 takes any free one.

    Raises:
        InputError: the port cannot be used.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} does not exist: ports are 1 to 65535")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {HOST}:{port} ({error.strerror}): choose another --port") from error
    return listener


def serve(engine: EmbeddedEngine, listener: socket.socket) -> None:
    """Answer until interrupted."""
    config = uvicorn.Config(make_app(engine), log_level="warning", timeout_graceful_shutdown=2)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        engine.cancel()  # a batch under way would keep the process alive to its end
