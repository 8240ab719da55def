"""The embedded engine behind HTTP, for any OpenAI client on this machine.

    rg-env serve --model outputs/my-run/checkpoint-25 --port 8000
    OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="EMPTY").chat.completions.create(model=..., messages=[...])

It listens on the loopback address alone: there are no keys, no limits and no other users here.
"""

import json
import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rg_env.errors import InputError, RGEnvError
from rg_env.inference.client import Batcher
from rg_env.inference.engine import EmbeddedEngine
from rg_env.inference.protocol import BadRequest, parse_request, response

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
        except ClientDisconnect:  # in mid-request: nobody reads the answer, but something must be returned
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
        InputError: the port cannot be had.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} does not exist: ports go from 1 to 65535")
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
