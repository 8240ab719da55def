"""One call to a model, with further tries where that may help; what comes back is checked before it is believed.

What is refused for now (429, 5xx), times out, breaks off or comes back damaged is tried again, with growing pauses.
What would be refused again is not: a prompt that is too long fails this call, a wrong key or an unknown model all of
them.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.chat import ChatCompletion

from rg_env.errors import EngineError, ServerError

_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
_FOR_NOW = (408, 409, 425, 429)
_FOR_ALL = (401, 402, 403, 404, 405)


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
    for number in range(1, tries + 1):
        pause = min(_PAUSE_S * 2 ** (number - 1), _LONGEST_PAUSE_S)
        try:
            async with asyncio.timeout(timeout_s):  # a server that sends a byte a minute would hold the call for ever
                answer = await client.chat.completions.create(**request)
            return _checked(answer)
        except (TimeoutError, openai.APITimeoutError):
            problem = f"no answer within {timeout_s:g} s"
        except openai.APIStatusError as error:
            problem = f"HTTP {error.status_code}: {_said(error)}"
            if error.status_code in _FOR_ALL:
                raise EndpointFailed(problem) from error
            if error.status_code not in _FOR_NOW and error.status_code < 500:
                raise CallFailed(problem) from error
            pause = _asked_pause(error) or pause
        except openai.APIConnectionError as error:
            problem = f"no connection: {_line(error.__cause__ or error)}"
        except EngineError:
            raise
        except (_Damaged, openai.OpenAIError, ValueError, AttributeError, TypeError) as error:  # openai's own parsing
            problem = f"no chat completion came back: {_line(error)}"
        if number < tries:
            await asyncio.sleep(pause * (0.75 + random.random() / 2))  # not all at the same time
    raise CallFailed(f"{problem} ({tries} tries)" if tries > 1 else problem)


class _Damaged(Exception):
    """An answer that is none."""


def _checked(answer: Any) -> Reply:
    if not isinstance(answer, ChatCompletion):  # of HTML, openai gives the text
        raise _Damaged(f"{str(answer)[:60]!r}" if isinstance(answer, str) else type(answer).__name__)
    choices = answer.choices
    if not isinstance(choices, Sequence) or not choices:
        raise _Damaged("it has no choice")
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
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _asked_pause(error: openai.APIStatusError) -> float | None:
    """Seconds that the server asks to wait for."""
    try:
        return min(max(float(error.response.headers.get("retry-after", "")), 0.0), _LONGEST_PAUSE_S)
    except ValueError:
        return None


def _said(error: openai.APIStatusError) -> str:
    body = error.body if isinstance(error.body, dict) else {}
    message = body.get("message") or body.get("detail")
    return _line(message if isinstance(message, str) else error.message)


def _line(what: object) -> str:
    text = " ".join("".join(each if each.isprintable() else " " for each in str(what)).split())
    return (text if len(text) <= 200 else f"{text[:200]}...") or type(what).__name__
