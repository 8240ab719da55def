"""A client that asks once for the many completions of one prompt.

GRPO samples each prompt several times, and environments ask for each sample by a request of its own. A server then
parses, renders, tokenizes and answers each of them, which on a small model takes longer than the sampling. Here equal
requests that come within `WINDOW_S` of each other go as one with `n` choices; each caller gets an answer with one.
"""

import asyncio
import json
from typing import Any

from openai import NOT_GIVEN, AsyncOpenAI
from openai.types.chat import ChatCompletion

WINDOW_S = 0.02
MOST = 64
"""Completions in one request."""


class GroupingClient:
    """Stands where an `AsyncOpenAI` is expected, in one event loop. All but chat completions is its own."""

    def __init__(self, client: AsyncOpenAI):
        self._client = client
        self.base_url, self.api_key = client.base_url, client.api_key
        self.completions = client.completions
        self._open: dict[str, _Group] = {}
        self._running: set[asyncio.Task[None]] = set()
        # `client.chat.completions.create` is what callers write
        self.chat = _Namespace(completions=_Namespace(create=self._create))

    async def _create(self, **request: Any) -> ChatCompletion:
        request = {name: value for name, value in request.items() if value is not NOT_GIVEN}
        if (request.get("n") or 1) != 1 or request.get("seed") is not None or request.get("stream"):
            return await self._client.chat.completions.create(**request)
        key = json.dumps(request, sort_keys=True, default=repr)
        group = self._open.get(key)
        if group is None:
            group = self._open[key] = _Group(request)
            asyncio.get_running_loop().call_later(WINDOW_S, self._close, key, group)
        waiting: asyncio.Future[ChatCompletion] = asyncio.get_running_loop().create_future()
        group.waiting.append(waiting)
        if len(group.waiting) == MOST:
            self._close(key, group)
        return await waiting

    def _close(self, key: str, group: "_Group") -> None:
        if self._open.get(key) is group:
            del self._open[key]
            task = asyncio.ensure_future(group.ask(self._client))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """End what is under way, and the client."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._client.close()


class _Namespace:
    def __init__(self, **names: Any):
        self.__dict__.update(names)


class _Group:
    """Callers of one request."""

    def __init__(self, request: dict[str, Any]):
        self.request = request
        self.waiting: list[asyncio.Future[ChatCompletion]] = []

    async def ask(self, client: AsyncOpenAI) -> None:
        """Ask once, and give each caller its part."""
        waiting = [future for future in self.waiting if not future.done()]  # the others do not want it any more
        if not waiting:
            return
        greedy = self.request.get("temperature") == 0  # one answer, the same for all; servers refuse several
        try:
            answer = await client.chat.completions.create(**{**self.request, "n": 1 if greedy else len(waiting)})
            parts = [answer] * len(waiting) if greedy else _parts(answer)
            if len(parts) != len(waiting):
                raise RuntimeError(f"the server gave {len(parts)} choices where {len(waiting)} were asked for")
        except BaseException as error:
            for future in waiting:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for future, part in zip(waiting, parts, strict=True):
            if not future.done():
                future.set_result(part)


def _parts(answer: ChatCompletion) -> list[ChatCompletion]:
    """One answer for each choice, with the usage that is its own."""
    parts = []
    for choice in answer.choices:
        usage = answer.usage
        if usage is not None:
            known = choice.logprobs is not None and choice.logprobs.content is not None
            tokens = len(choice.logprobs.content) if known else round(usage.completion_tokens / len(answer.choices))
            changes = {"completion_tokens": tokens, "total_tokens": usage.prompt_tokens + tokens}
            usage = usage.model_copy(update=changes)
        parts.append(answer.model_copy(update={"choices": [choice.model_copy(update={"index": 0})], "usage": usage}))
    return parts
