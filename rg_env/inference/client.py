"""`AsyncOpenAI`'s surface over the embedded engine, with no sockets: HTTP was measured to double a training step.

    client = InProcessClient(engine)
    completion = await client.chat.completions.create(model=engine.model_name, messages=[...], logprobs=True)

Requests made while others are waiting are gathered into one batch.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
from openai.types.chat import ChatCompletion

from rg_env.inference.engine import EmbeddedEngine
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
    """Stands where an `openai.AsyncOpenAI` is expected. Bad requests raise `openai.BadRequestError`, as over HTTP."""

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
