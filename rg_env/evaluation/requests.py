"""One call to an endpoint, tried again where that may help; replies are checked before they are believed.

A call that is refused for now (429, 5xx), times out, breaks off or comes back damaged is tried again after growing
pauses. What would be refused again is not: a prompt that is too long fails this call, a wrong key or an unknown model
all of them.
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
from rg_env.errors import ServerError

_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
_FOR_NOW = (408, 409, 425, 429)
_FOR_ALL = (401, 402, 403, 404, 405)
_SHORTEST_KEY = 8
"""Shorter keys are placeholders, such as "none", and not secrets."""
_MOST_TOKENS = 2**40
"""A server that reports more is not believed."""


@dataclass(frozen=True)
class Reply:
    """What a model answered."""

    text: str
    reasoning: str | None = None
    """If the server separates it from the answer."""
    truncated: bool | None = None
    """Whether the token limit ended it; None: the server does not say."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    refusal: str | None = None
    model: str | None = None
    """Name that the server gives of the model."""
    token_ids: Sequence[int] = ()
    """What was sampled, and the log-probability of each token; only of models in this process."""
    logprobs: Sequence[float] = ()


class CallFailed(Exception):
    """One call failed, after all tries."""


class EndpointFailed(ServerError):
    """Every call would fail like this one."""


async def ask(client: openai.AsyncOpenAI, request: dict[str, Any], *, tries: int, timeout_s: float | None) -> Reply:
    """The reply to `request`, the body of a chat completion.

    Raises:
        CallFailed: it failed `tries` times, or would always fail.
        EndpointFailed: so would every other call.
    """
    problem = ""
    line = partial(_line, key=client.api_key)
    for number in range(1, tries + 1):
        pause = min(_PAUSE_S * 2 ** (number - 1), _LONGEST_PAUSE_S)
        try:
            async with asyncio.timeout(timeout_s):  # a server that sends a byte a minute would hold the call forever
                # `chat.completions.create` spends a third of a call's time on rewriting what needs no rewriting.
                return _checked(await client.post("/chat/completions", cast_to=ChatCompletion, body=request))
        except (TimeoutError, openai.APITimeoutError):
            problem = f"no answer within {timeout_s:g} s"
        except openai.APIStatusError as error:
            problem = f"HTTP {error.status_code}: {line(_message_in(error))}"
            if error.status_code in _FOR_ALL:
                raise EndpointFailed(problem) from error
            if error.status_code not in _FOR_NOW and error.status_code < 500:
                raise CallFailed(problem) from error
            pause = _requested_pause(error) or pause
        except openai.APIConnectionError as error:
            problem = f"no connection: {line(error.__cause__ or error)}"
        except (_Damaged, openai.OpenAIError, ValueError, AttributeError, TypeError) as error:  # openai's own parsing
            problem = f"no chat completion came back: {line(error)}"
        if number < tries:
            await asyncio.sleep(pause * (0.75 + random.random() / 2))  # not all calls at the same time
    raise CallFailed(f"{problem} ({tries} tries)" if tries > 1 else problem)


class _Damaged(Exception):
    """Malformed completion."""


def _checked(answer: Any) -> Reply:
    if not isinstance(answer, ChatCompletion):  # of HTML, openai gives the text
        raise _Damaged(f"{str(answer)[:60]!r}" if isinstance(answer, str) else type(answer).__name__)
    choices = answer.choices
    if not isinstance(choices, Sequence) or not choices:
        error = getattr(answer, "error", None)  # some services report errors with status 200
        message = error.get("message") if isinstance(error, dict) else error
        raise _Damaged("it has no choice" + (f": {message}" if isinstance(message, str) else ""))
    message = choices[0].message
    content = getattr(message, "content", None)
    if message is None or not isinstance(content, str | None):
        raise _Damaged("its choice has no message")
    # vLLM and others put it next to the answer, under one of these names.
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    finish = choices[0].finish_reason
    return Reply(
        text=content or "",
        reasoning=reasoning if isinstance(reasoning, str) else None,
        truncated=None if finish is None else finish == "length",
        prompt_tokens=_count(answer.usage, "prompt_tokens"),
        completion_tokens=_count(answer.usage, "completion_tokens"),
        refusal=message.refusal if isinstance(message.refusal, str) else None,
        model=answer.model if isinstance(answer.model, str) else None,
    )


def _count(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return value if is_count(value, _MOST_TOKENS) else None


def _requested_pause(error: openai.APIStatusError) -> float | None:
    """Seconds that the server asks to wait for."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _LONGEST_PAUSE_S)


def _message_in(error: openai.APIStatusError) -> str:
    body = error.body if isinstance(error.body, dict) else {}
    message = body.get("message") or body.get("detail")
    return message if isinstance(message, str) else error.message


def _line(what: object, key: str) -> str:
    """One line, without the key: some endpoints repeat it when they refuse it."""
    text = str(what).replace(key, "***") if len(key) >= _SHORTEST_KEY else what
    return one_line(text) or type(what).__name__
