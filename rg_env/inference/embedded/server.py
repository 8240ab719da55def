"""HTTP server for the embedded engine, usable by any OpenAI client on this machine.

    rg-env serve --model outputs/my-run/checkpoint-25 --port 8000
    OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="EMPTY").chat.completions.create(model=..., messages=[...])

The server listens only on the loopback address because it has no API keys, rate limits or user isolation. Requests use
the JSON format of OpenAI's `/v1/chat/completions` and `/v1/completions`, with some of vLLM's extensions. Unsupported
fields are rejected with `BadRequest` (HTTP 400) rather than ignored. Requests that arrive together are processed as one
batch.
"""

import asyncio
import json
import os
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Literal, Self

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rg_env.core.config.parsing import PromptConfig
from rg_env.core.prompts import build_messages
from rg_env.core.text import counted, json_problem, reason_of, shortened
from rg_env.errors import InputError, RGEnvError
from rg_env.inference.embedded.engine import EmbeddedEngine, Job
from rg_env.inference.protocol import PromptEncoder, Sampling

HOST = "127.0.0.1"
MAX_BODY_BYTES = 4 * 2**20
_WINDOW_S = 0.005  # a client's concurrent requests arrive within a few milliseconds
_CHARACTERS_PER_TOKEN = 128  # an upper bound, even for runs of spaces

Prepare = Callable[[list[dict[str, str]]], list[dict[str, str]]]
"""Function that maps a chat request's messages to the messages passed to the model."""


class BadRequest(RGEnvError, ValueError):
    """A request that the engine cannot answer. `status` is the HTTP status: 400, or 404 for an unknown model."""

    exit_code = 2

    def __init__(self, message: str, status: int = 400, param: str | None = None):
        super().__init__(message)
        self.status, self.param = status, param


def _error(error: BaseException) -> dict[str, Any]:
    """Return an error response in OpenAI's format."""
    status, param = (error.status, error.param) if isinstance(error, BadRequest) else (500, None)
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return {"error": {"message": str(error), "type": kind, "param": param, "code": status}}


class Choice:
    """A completion in progress: its tokens, and its text up to the first stop string.

    Args:
        room: maximum number of tokens.
        ends: end-of-sequence tokens, which are not part of the text.
    """

    def __init__(
        self, index: int, prompt: Sequence[int], request: "Request", tokenizer: Any, room: int, ends: Collection[int]
    ):
        self.index, self.prompt, self.request, self.tokenizer = index, list(prompt), request, tokenizer
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        self.finish_reason: Literal["stop", "length"] | None = None
        self.scores: Sequence[tuple[float, dict[int, float]]] = ()
        """Result of `EmbeddedEngine.score` for the prompt and the completion. Empty if scores were not requested."""
        self._room, self._ends = room, ends
        self._longest_stop = max(map(len, request.stops), default=0)
        self._decoded = (0, 0)  # indices of the tokens where decoding starts and where `text` ends
        self._taken = (0, 0)  # numbers of characters and tokens already returned by `take`

    def put(self, token: int, logprob: float) -> bool:
        """Add a token and return whether a stop string ends the completion."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        ended = token in self._ends
        finished = "stop" if ended else "length" if len(self.ids) == self._room else None
        self._decode(self.ids[:-1] if ended else self.ids, last=finished is not None)
        self.finish_reason = finished  # type: ignore[assignment]
        stops = [at for stop in self.request.stops if (at := self.text.find(stop)) >= 0]
        if stops:
            self.text, self.finish_reason = self.text[: min(stops)], "stop"
        return bool(stops)

    def _decode(self, ids: list[int], last: bool) -> None:
        # A token's text depends on its neighbors, and a character may span several tokens. Therefore, as in vLLM, the
        # text of new tokens is the difference between the texts decoded with and without these tokens.
        start, end = self._decoded
        known, text = self.decode(ids[start:end]), self.decode(ids[start:])
        if last or not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self.text += text[len(known) :]
            self._decoded = (end, len(ids))

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            ids, skip_special_tokens=self.request.skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def take(self) -> tuple[str, slice]:
        """Return the text and tokens added since the last call. Text that may be the start of a stop string is held
        back."""
        held = 0 if self.finish_reason else max(0, self._longest_stop - 1)
        characters, tokens = self._taken
        self._taken = (max(characters, len(self.text) - held), len(self.ids))
        return self.text[characters : self._taken[0]], slice(tokens, len(self.ids))


class Request(BaseModel, ABC):
    """Fields shared by chat and completion requests. The bounds match those of vLLM's `SamplingParams`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    kinds: ClassVar[tuple[str, str, str]]
    """Object type of complete responses, object type of streamed chunks, and prefix of response ids."""

    model: str = ""
    n: int = Field(1, ge=1, le=1024)
    max_tokens: int | None = Field(None, ge=1, le=10_000_000)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, ge=1e-6, le=1)
    top_k: int = Field(0, ge=-1, le=1_000_000)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=1e-6, le=100)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**62), le=2**62)
    stop: str | list[str] = []
    """Stop strings. As in vLLM, they must not be empty."""
    stream: bool = False
    stream_options: dict[Literal["include_usage", "include_obfuscation"], bool | None] = {}
    skip_special_tokens: bool = True
    # These fields are accepted only with values that have no effect.
    logit_bias: dict[str, float] = Field({}, max_length=0)
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: Literal[False] = False
    user: JsonValue = None
    metadata: JsonValue = None
    store: JsonValue = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        """Drop null values, which clients send for unset fields."""
        return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body

    @field_validator("stop")
    @classmethod
    def _stops_not_empty(cls, stop: str | list[str]) -> str | list[str]:
        if "" in ([stop] if isinstance(stop, str) else stop):
            raise ValueError("must not be or contain an empty string")
        return stop

    @classmethod
    def parse(cls, body: object) -> Self:
        """Validate the JSON `body` of a request. Raises `BadRequest` for anything the engine does not support."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            field = str(first["loc"][0]) if first["loc"] else None
            path = ".".join(str(key) for key in first["loc"] if key != "[key]")
            if first["type"] in ("extra_forbidden", "literal_error", "too_long"):
                is_value = first["type"] == "literal_error" and "[key]" not in first["loc"]
                given = f"={shortened(first['input'])}" if is_value else ""
                raise BadRequest(f"{path}{given} is not supported by the embedded engine", param=field) from error
            message = first["msg"].removeprefix("Value error, ")
            raise BadRequest(f"{field or 'the body'}: {message}", param=field) from error

    @property
    def limit(self) -> int | None:
        """Maximum number of new tokens. None means no limit other than the context length."""
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def sampling(self) -> Sampling:
        names = Sampling.__dataclass_fields__.keys() - {"max_tokens"}
        return Sampling(**{name: getattr(self, name) for name in names}, max_tokens=self.limit)

    def head(self, *, chunk: bool = False) -> dict[str, Any]:
        """Return the fields shared by complete responses and streamed chunks."""
        number = f"{self.kinds[2]}-{uuid.uuid4().hex}"
        return {"id": number, "object": self.kinds[chunk], "created": int(time.time()), "model": self.model}

    def response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Build the complete response."""
        return {**self.head(), "choices": [self.entry(each) for each in choices], "usage": self.usage(choices)}

    def usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        prompts = sum(len(each.prompt) for each in choices[:: self.n])
        completions = sum(len(each.ids) for each in choices)
        return {"prompt_tokens": prompts, "completion_tokens": completions, "total_tokens": prompts + completions}

    @abstractmethod
    def entry(self, choice: Choice, *, chunk: bool = False) -> dict[str, Any]:
        """Format a choice for a complete response or, with only the new text, for a streamed chunk."""


class _TextPart(BaseModel):
    model_config = ConfigDict(strict=True)
    text: str


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)
    role: str
    content: str | list[_TextPart]


class ChatRequest(Request):
    """A request to `/v1/chat/completions`."""

    kinds: ClassVar = ("chat.completion", "chat.completion.chunk", "chatcmpl")

    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, le=10_000_000)
    """OpenAI's newer name for `max_tokens`."""
    logprobs: bool = False
    return_tokens_as_token_ids: bool = False
    """vLLM extension: report tokens in `logprobs` as "token_id:N", because different tokens can have the same text."""
    top_logprobs: Literal[0] = 0
    tools: list[JsonValue] = Field([], max_length=0)
    tool_choice: Literal["none", "auto"] = "none"
    parallel_tool_calls: bool = False
    response_format: dict[Literal["type"], Literal["text"]] = {}
    modalities: list[Literal["text"]] = []

    @property
    def limit(self) -> int | None:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise BadRequest("max_tokens and max_completion_tokens differ: pass only one", param="max_tokens")
        return self.max_tokens or self.max_completion_tokens

    @property
    def chat(self) -> list[dict[str, str]]:
        """The request's messages, with the parts of each message joined."""

        def text(content: str | list[_TextPart]) -> str:
            return content if isinstance(content, str) else "".join(part.text for part in content)

        return [{"role": each.role, "content": text(each.content)} for each in self.messages]

    def entry(self, choice: Choice, *, chunk: bool = False) -> dict[str, Any]:
        text, tokens = choice.take() if chunk else (choice.text, slice(0, None))
        role = {} if tokens.start else {"role": "assistant"}
        found = [self._token(choice, *each) for each in zip(choice.ids[tokens], choice.logprobs[tokens], strict=True)]
        return {
            "index": choice.index,
            "delta" if chunk else "message": {**role, "content": text},
            "logprobs": {"content": found} if self.logprobs else None,
            "finish_reason": choice.finish_reason,
        }

    def _token(self, choice: Choice, token: int, logprob: float) -> dict[str, Any]:
        text = choice.tokenizer.decode([token])
        name, size = (f"token_id:{token}", None) if self.return_tokens_as_token_ids else (text, list(text.encode()))
        return {"token": name, "logprob": logprob, "bytes": size, "top_logprobs": []}


class CompletionRequest(Request):
    """A request to `/v1/completions`.

    As in vLLM by default, the log-probabilities in the response are the model's own, regardless of temperature.
    """

    kinds: ClassVar = ("text_completion", "text_completion", "cmpl")

    prompt: str | list[int] | list[str] | list[list[int]] = Field(min_length=1)
    max_tokens: int | None = Field(16, ge=1, le=10_000_000)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=20)
    """Number of most likely tokens to return per position. None means no log-probabilities."""
    best_of: Literal[1] = 1
    suffix: Literal[""] = ""

    @model_validator(mode="after")
    def _streamed_text_only(self) -> Self:
        if self.stream and (self.echo or self.logprobs is not None):
            raise ValueError("echo and logprobs are not supported with stream=true")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)  # type: ignore[list-item, arg-type]

    def entry(self, choice: Choice, *, chunk: bool = False) -> dict[str, Any]:
        text = choice.take()[0] if chunk else (choice.decode(choice.prompt) if self.echo else "") + choice.text
        logprobs = self._logprobs(choice) if choice.scores else None
        return {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _logprobs(self, choice: Choice) -> dict[str, list[Any]]:
        tokens = choice.prompt + choice.ids
        texts = {token: choice.tokenizer.decode([token]) for token in tokens}
        # If several tokens have the same text, keep the most likely token.
        likeliest = [
            {choice.tokenizer.decode([token]): logprob for token, logprob in reversed(best.items())}
            for _, best in choice.scores
        ]
        shown = slice(0 if self.echo else len(choice.prompt), None)
        offsets = accumulate((len(texts[token]) for token in tokens[shown]), initial=0)
        return {
            "tokens": [texts[token] for token in tokens[shown]],
            "token_logprobs": [None, *(own for own, _ in choice.scores)][shown],
            "top_logprobs": [None, *likeliest][shown],
            "text_offset": list(offsets)[:-1],
        }


class Batcher:
    """Collects an event loop's jobs into batches. If a batch fails, each of its callers gets the error."""

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
            batch = [each for each in batch if not each[1].done()]  # callers may have disconnected in the meantime
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
        except ClientDisconnect:  # the client has disconnected, but a response must be returned
            return Response(status_code=400)
        except RGEnvError as error:
            return JSONResponse(_error(error), status_code=error.status if isinstance(error, BadRequest) else 500)

    async def models(self, _: HTTPRequest) -> Response:
        name, context = self.engine.model_name, self.engine.max_context
        entry = {"id": name, "object": "model", "created": 0, "owned_by": "rg-env", "max_model_len": context}
        return JSONResponse({"object": "list", "data": [entry]})

    async def health(self, _: HTTPRequest) -> Response:
        return JSONResponse({"status": "ok"})

    def _prompts(self, request: ChatRequest | CompletionRequest) -> list[list[int]]:
        """Return the token ids of the prompts. Raises `BadRequest` for invalid prompts."""
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
            raise BadRequest(
                "a prompt must have at least one token, and all tokens must be in the vocabulary", param="prompt"
            )
        return prompts

    def _check_length(self, characters: int) -> None:
        if characters > _CHARACTERS_PER_TOKEN * self.engine.max_context:  # tokenizing megabytes would take seconds
            raise self._too_long(counted(characters, "character"))

    def _too_long(self, length: str) -> BadRequest:
        # Verifiers recognizes this wording, which resembles vLLM's, and treats the rollout as truncated.
        limit = self.engine.max_context
        return BadRequest(f"the prompt has {length}, which is longer than the model's context length of {limit}")

    def _choices(self, request: Request, prompts: Sequence[list[int]]) -> list[Choice]:
        """Create the choices to generate for each prompt. Raises `BadRequest` if the request is invalid."""
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
                    f"max_tokens={request.limit} is too large because the prompt has {counted(len(prompt), 'token')} "
                    f"and the context length is {engine.max_context}",
                    param="max_tokens",
                )
            for _ in range(request.n):
                limit = request.limit or room
                choices.append(Choice(len(choices), prompt, request, engine.tokenizer, limit, engine.end_ids))
        return choices

    async def _events(self, request: Request, choices: list[Choice]) -> AsyncIterator[str]:
        """Yield server-sent events: one per token, then the usage (if requested) and `[DONE]`, or an error."""
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
                yield _event(_error(error))
                return
            if request.stream_options.get("include_usage"):
                yield _event({**head, "choices": [], "usage": request.usage(choices)})
            yield "data: [DONE]\n\n"
        finally:
            is_read = False  # drop a disconnected client's jobs


def _job(request: Request, choice: Choice, send: Callable[[Choice], bool] = lambda _: True) -> Job:
    """Create the job for `choice`. `send` is called after each token and returns False to end the completion."""

    def watch(token: int, logprob: float) -> bool:
        stops = choice.put(token, logprob)
        return not send(choice) or stops

    seed = None if request.seed is None else request.seed + choice.index
    return Job(choice.prompt, request.sampling, seed, watch)


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


async def _body(request: HTTPRequest) -> object:
    """Read the JSON body. Raises `BadRequest` if the body is invalid or too large."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise BadRequest(f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(data)
        # JSON can contain escapes of unpaired surrogates, which tokenizers cannot encode.
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise BadRequest(f"the body contains text that is not valid Unicode: unpaired surrogate {half!r}") from error
    except (ValueError, RecursionError) as error:  # deeply nested brackets raise RecursionError
        raise BadRequest(f"the body {json_problem(error)}") from error
    return body


def make_app(engine: EmbeddedEngine, prepare: Prepare = list) -> Starlette:
    """Create the app with `POST /v1/chat/completions` and `/v1/completions`, `GET /v1/models` and `/health`.

    Args:
        prepare: function applied to the messages of each chat request before generation.
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
    """Apply `prompt` to the first user message in a chat, unless the chat has a system message or already contains the
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
    """Open a listening socket on the loopback address. Port 0 selects any free port.

    Raises:
        InputError: the port cannot be used.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} is out of range: use 1 to 65535, or 0 for any free port")
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # str(error) would repeat the address
        raise InputError(f"cannot listen on {HOST}:{port} ({reason}): choose another --port") from error


def serve(engine: EmbeddedEngine, listener: socket.socket, prepare: Prepare = list) -> None:
    """Serve requests until interrupted."""
    config = uvicorn.Config(make_app(engine, prepare), log_level="warning", timeout_graceful_shutdown=2)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        engine.cancel()  # a running batch would keep the process alive
