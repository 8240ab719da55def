"""HTTP server for the embedded engine, usable by any OpenAI client on this machine.

    rg-env serve --model outputs/my-run/checkpoint-25 --port 8000
    OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="EMPTY").chat.completions.create(model=..., messages=[...])

It listens on the loopback address only, because it has no API keys, rate limits or user isolation. Requests that arrive
together are processed as one batch.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rg_env.core.config.parsing import PromptConfig
from rg_env.core.prompts import build_messages
from rg_env.core.text import counted, json_problem, reason_of
from rg_env.errors import InputError, RGEnvError
from rg_env.inference.embedded.engine import EmbeddedEngine, Job
from rg_env.inference.embedded.openai_api import BadRequest, ChatRequest, Choice, CompletionRequest, Request
from rg_env.inference.protocol import PromptEncoder

HOST = "127.0.0.1"
MAX_BODY_BYTES = 4 * 2**20
_WINDOW_S = 0.005  # concurrent requests from a client arrive within a few milliseconds
_CHARACTERS_PER_TOKEN = 128  # upper bound, even for runs of spaces

Prepare = Callable[[list[dict[str, str]]], list[dict[str, str]]]
"""Maps a chat request's messages to those passed to the model."""


class Batcher:
    """Collects an event loop's jobs into batches. If a batch fails, the error is raised in each of its callers."""

    def __init__(self, engine: EmbeddedEngine):
        self.engine = engine
        self._waiting: list[tuple[list[Job], asyncio.Future[None]]] = []
        self._runner: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedded-engine")

    async def run(self, jobs: list[Job]) -> None:
        """Run `jobs` to completion. Raises the same errors as `EmbeddedEngine.run`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((jobs, future))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        await future

    async def score(self, tokens: Sequence[int], top: int) -> list[tuple[float, dict[int, float]]]:
        """Run `EmbeddedEngine.score` between batches."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.engine.score, tokens, top)

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(_WINDOW_S)
            batch, self._waiting = self._waiting, []
            batch = [each for each in batch if not each[1].done()]  # callers may have disconnected
            jobs = [job for jobs, _ in batch for job in jobs]
            run = asyncio.get_running_loop().run_in_executor(self._executor, self.engine.run, jobs)
            await asyncio.wait([run])
            error = run.exception()
            for _, future in batch:
                if not future.done():
                    future.set_exception(error) if error else future.set_result(None)


class Api:
    """HTTP endpoints."""

    def __init__(self, engine: EmbeddedEngine, prepare: Prepare):
        self.engine, self.prepare = engine, prepare
        self.encoder = PromptEncoder(engine.tokenizer)
        self.batcher = Batcher(engine)

    async def answer(self, kind: type[ChatRequest | CompletionRequest], http: HTTPRequest) -> Response:
        """Respond to a request of type `kind`."""
        try:
            request = kind.parse(await _body(http))
            choices = self._choices(request, self._prompts(request))
            if request.stream:
                return StreamingResponse(self._events(request, choices), media_type="text/event-stream")
            await self.batcher.run([_job(request, each) for each in choices])
            if isinstance(request, CompletionRequest) and request.logprobs is not None:
                for each in choices:
                    each.scores = await self.batcher.score(each.prompt + each.ids, request.logprobs)
            return JSONResponse(request.response(choices))
        except ClientDisconnect:  # the client is gone, but a response must be returned
            return Response(status_code=400)
        except BadRequest as error:
            return JSONResponse(error.body(), status_code=error.status)
        except RGEnvError as error:
            return JSONResponse(_failure(error), status_code=500)

    async def models(self, _: HTTPRequest) -> Response:
        name, context = self.engine.model_name, self.engine.max_context
        entry = {"id": name, "object": "model", "created": 0, "owned_by": "rg-env", "max_model_len": context}
        return JSONResponse({"object": "list", "data": [entry]})

    async def health(self, _: HTTPRequest) -> Response:
        return JSONResponse({"status": "ok"})

    def _prompts(self, request: ChatRequest | CompletionRequest) -> list[list[int]]:
        """Token ids of the prompts. Raises `BadRequest` for invalid prompts."""
        if isinstance(request, ChatRequest):
            messages = request.chat
            self._check_length(sum(len(each["content"]) for each in messages))
            try:
                return [self.encoder.encode(self.prepare(messages))]
            except Exception as error:  # templates can raise any Jinja error
                reason = f"the chat template rejected the messages: {reason_of(error)}"
                raise BadRequest(reason, param="messages") from error
        self._check_length(max(map(len, request.prompts)))
        prompts = [self.encoder.encode(each) if isinstance(each, str) else each for each in request.prompts]
        if any(not ids or min(ids) < 0 or max(ids) >= self.engine.config.vocab_size for ids in prompts):
            raise BadRequest("prompt: must have at least one token, and only tokens in the vocabulary", param="prompt")
        return prompts

    def _check_length(self, characters: int) -> None:
        if characters > _CHARACTERS_PER_TOKEN * self.engine.max_context:  # tokenizing megabytes would take seconds
            raise self._too_long(counted(characters, "character"))

    def _too_long(self, length: str) -> BadRequest:
        # Verifiers recognizes this wording, which resembles vLLM's, and treats the rollout as truncated.
        limit = self.engine.max_context
        return BadRequest(f"the prompt has {length}, which is longer than the model's context length {limit}")

    def _choices(self, request: Request, prompts: Sequence[list[int]]) -> list[Choice]:
        """Make the choices to generate for each prompt. Raises `BadRequest` if the request is invalid."""
        engine = self.engine
        if request.model not in ("", engine.model_name):
            raise BadRequest(
                f"the model {request.model!r} does not exist; this engine serves {engine.model_name!r}", 404, "model"
            )
        choices: list[Choice] = []
        for prompt in prompts:
            room = engine.max_context - len(prompt)
            if room <= 0:
                raise self._too_long(counted(len(prompt), "token"))
            if (request.limit or 0) > room:
                raise BadRequest(
                    f"max_tokens={request.limit} is too large: the prompt has {counted(len(prompt), 'token')}, and the "
                    f"context length is {engine.max_context}",
                    param="max_tokens",
                )
            for _ in range(request.n):
                limit = request.limit or room
                choices.append(Choice(len(choices), prompt, request, engine.tokenizer, limit, engine.end_ids))
        return choices

    async def _events(self, request: Request, choices: list[Choice]) -> AsyncIterator[str]:
        """Yield a server-sent event per token."""
        loop, head = asyncio.get_running_loop(), request.head(chunk=True)
        parts: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        is_read = True

        def send(choice: Choice) -> bool:
            loop.call_soon_threadsafe(parts.put_nowait, request.entry(choice, chunk=True))
            return is_read

        run = asyncio.create_task(self.batcher.run([_job(request, each, send) for each in choices]))
        run.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield _event({**head, "choices": [part]})
            if error := run.exception():
                yield _event(_failure(error))
                return
            if request.stream_options.include_usage:
                yield _event({**head, "choices": [], "usage": request.usage(choices)})
            yield "data: [DONE]\n\n"
        finally:
            is_read = False  # drop the jobs of a disconnected client


def _job(request: Request, choice: Choice, send: Callable[[Choice], bool] = lambda _: True) -> Job:
    """Make the job for `choice`; `send` is called after each token and returns False to end the completion."""

    def watch(token: int, logprob: float) -> bool:
        stops = choice.put(token, logprob)
        return not send(choice) or stops

    seed = None if request.seed is None else request.seed + choice.index
    return Job(choice.prompt, request.sampling, seed, watch)


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _failure(error: BaseException) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": "InternalServerError", "param": None, "code": 500}}


async def _body(request: HTTPRequest) -> object:
    """Read the JSON body, up to the size limit."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise BadRequest(f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(data)
        json.dumps(body, ensure_ascii=False).encode()  # JSON can escape surrogates that tokenizers cannot read
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise BadRequest(f"the body contains text that is not valid Unicode: unpaired surrogate {half!r}") from error
    except (ValueError, RecursionError) as error:  # RecursionError for deeply nested brackets
        raise BadRequest(f"the body {json_problem(error)}") from error
    return body


def make_app(engine: EmbeddedEngine, prepare: Prepare = list) -> Starlette:
    """Make the app with `POST /v1/chat/completions` and `/v1/completions`, `GET /v1/models` and `/health`.

    Args:
        prepare: applied to the messages of each chat request before generation.
    """
    api = Api(engine, prepare)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", partial(api.answer, ChatRequest), methods=["POST"]),
            Route("/v1/completions", partial(api.answer, CompletionRequest), methods=["POST"]),
            Route("/v1/models", api.models),
            Route("/health", api.health),
        ]
    )


def with_prompt(prompt: PromptConfig, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Insert `prompt` at the first user message of a chat, unless the chat has a system message or already contains the
    prompt's text."""
    text = prompt.system_prompt
    if any(each["role"] == "system" or (text and text in each["content"]) for each in messages):
        return messages
    first = next((place for place, each in enumerate(messages) if each["role"] == "user"), len(messages))
    if first == len(messages):
        return messages
    prompted = build_messages(messages[first]["content"], text, prompt.placement, preamble=prompt.preamble)
    return [*messages[:first], *prompted, *messages[first + 1 :]]


def bind(port: int) -> socket.socket:
    """Open a listening socket on the loopback address; port 0 selects any free port.

    Raises:
        InputError: the port cannot be used.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} is out of range: use 1 to 65535")
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # str(error) would repeat the address
        raise InputError(f"cannot listen on {HOST}:{port} ({reason}): choose another --port") from error


def serve(engine: EmbeddedEngine, listener: socket.socket, prepare: Prepare = list) -> None:
    """Serve until interrupted."""
    config = uvicorn.Config(make_app(engine, prepare), log_level="warning", timeout_graceful_shutdown=2)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        engine.cancel()  # a running batch would keep the process alive
