"""One call to a model, with further tries where that may help; what comes back is checked before it is believed.

What is refused for now (429, 5xx), times out, breaks off or comes back damaged is tried again, with growing pauses.
What would be refused again is not: a prompt that is too long fails this call, a wrong key or an unknown model all of
them.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import openai
from openai.types.chat import ChatCompletion

from rg_env.core.text import is_count, one_line
from rg_env.errors import EngineError, ServerError

_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
_FOR_NOW = (408, 409, 425, 429)
_FOR_ALL = (401, 402, 403, 404, 405)
_SHORTEST_KEY = 8
"""Shorter ones are words, such as "none", and no secrets."""
_MOST_TOKENS = 2**40
"""No call has so many: what says so is not believed."""


@dataclass(frozen=True)
class Reply:
    """What a model answered."""

    text: str
    reasoning: str | None
    """Where the server tells it apart from the answer."""
    truncated: bool | None
    """Whether the token limit ended it; None: the server does not say."""
    prompt_tokens: int | None
    completion_tokens: int | None
    refusal: str | None
    model: str | None
    """That answered, as the server calls it."""


class CallFailed(Exception):
    """One call, after all tries."""


class EndpointFailed(ServerError):
    """Every call would fail like this one."""


async def ask(client: Any, request: dict[str, Any], *, tries: int, timeout_s: float | None) -> Reply:
    """The reply to `request`, arguments of `client.chat.completions.create`.

    Raises:
        CallFailed: it failed `tries` times, or would always fail.
        EndpointFailed: so would every other call.
        EngineError: the embedded engine failed.
    """
    problem = ""
    line = partial(_line, key=client.api_key)
    for number in range(1, tries + 1):
        pause = min(_PAUSE_S * 2 ** (number - 1), _LONGEST_PAUSE_S)
        try:
            async with asyncio.timeout(timeout_s):  # a server that sends a byte a minute would hold the call for ever
                answer = await _completion(client, request)
            return _checked(answer)
        except (TimeoutError, openai.APITimeoutError):
            problem = f"no answer within {timeout_s:g} s"
        except openai.APIStatusError as error:
            problem = f"HTTP {error.status_code}: {line(_said(error))}"
            if error.status_code in _FOR_ALL:
                raise EndpointFailed(problem) from error
            if error.status_code not in _FOR_NOW and error.status_code < 500:
                raise CallFailed(problem) from error
            pause = _asked_pause(error) or pause
        except openai.APIConnectionError as error:
            problem = f"no connection: {line(error.__cause__ or error)}"
        except EngineError:
            raise
        except (_Damaged, openai.OpenAIError, ValueError, AttributeError, TypeError) as error:  # openai's own parsing
            problem = f"no chat completion came back: {line(error)}"
        if number < tries:
            await asyncio.sleep(pause * (0.75 + random.random() / 2))  # not all at the same time
    raise CallFailed(f"{problem} ({tries} tries)" if tries > 1 else problem)


async def _completion(client: Any, request: dict[str, Any]) -> Any:
    if isinstance(client, openai.AsyncOpenAI):
        # As its `chat.completions.create`, which takes a third of a call's time to rewrite what needs no rewriting.
        return await client.post("/chat/completions", cast_to=ChatCompletion, body=request)
    return await client.chat.completions.create(**request)


class _Damaged(Exception):
    """An answer that is none."""


def _checked(answer: Any) -> Reply:
    if not isinstance(answer, ChatCompletion):  # of HTML, openai gives the text
        raise _Damaged(f"{str(answer)[:60]!r}" if isinstance(answer, str) else type(answer).__name__)
    choices = answer.choices
    if not isinstance(choices, Sequence) or not choices:
        # Some services say what is wrong with status 200.
        raise _Damaged(f"it has no choice{_told(getattr(answer, 'error', None))}")
    message = choices[0].message
    content = getattr(message, "content", None)
    if message is None or not isinstance(content, str | None):
        raise _Damaged("its choice has no message")
    # vLLM and others put it beside the answer, under one of these names.
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    finish = choices[0].finish_reason
    usage = answer.usage
    return Reply(
        text=content or "",
        reasoning=reasoning if isinstance(reasoning, str) else None,
        truncated=None if finish is None else finish == "length",
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        refusal=message.refusal if isinstance(message.refusal, str) else None,
        model=answer.model if isinstance(answer.model, str) else None,
    )


def _count(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return value if is_count(value, _MOST_TOKENS) else None


def _asked_pause(error: openai.APIStatusError) -> float | None:
    """Seconds that the server asks to wait for."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _LONGEST_PAUSE_S)


def _said(error: openai.APIStatusError) -> str:
    body = error.body if isinstance(error.body, dict) else {}
    message = body.get("message") or body.get("detail")
    return message if isinstance(message, str) else error.message


def _told(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return f": {message}" if isinstance(message, str) else ""


def _line(what: object, key: str) -> str:
    """In one line, without the key: there are endpoints that repeat it when they refuse it."""
    return one_line(str(what).replace(key, "***") if len(key) >= _SHORTEST_KEY else what) or type(what).__name__
