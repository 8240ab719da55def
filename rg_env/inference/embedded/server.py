"""The embedded engine behind HTTP, for any OpenAI client on this machine.

    rg-env serve --model outputs/my-run/checkpoint-25 --port 8000
    OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="EMPTY").chat.completions.create(model=..., messages=[...])

It listens on the loopback address only, because it has no keys, no limits and no isolation of users. Requests that
arrive together are generated as one batch.
"""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rg_env.errors import InputError, RGEnvError
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.protocol import BadRequest, ChatRequest, Generation, parse_request, response


class Batcher:
    """Gathers the requests of one event loop into batches for the engine. An error of the engine reaches every caller.

    Args:
        window_s: seconds to wait for more requests after the first: those over sockets trickle in.
    """

    def __init__(self, engine: EmbeddedEngine, window_s: float):
        self.engine, self.window_s = engine, window_s
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
            await asyncio.sleep(self.window_s)
            batch, self._waiting = self._waiting, []
            batch = [
                (request, future) for request, future in batch if not future.done()
            ]  # callers may have disconnected
            try:
                results = await loop.run_in_executor(self._executor, self.engine.chat, [r for r, _ in batch])
            except BaseException as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for (_, future), generations in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(generations)


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
