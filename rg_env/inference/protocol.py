"""The chat-completions protocol of the embedded engine: requests that it accepts, and its responses.

A request is the JSON body of `POST /v1/chat/completions` with the extensions of vLLM that Verifiers sends.
Whatever the engine does not do is refused with `BadRequest` (HTTP 400), never ignored.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rg_env.errors import RGEnvError


class BadRequest(RGEnvError, ValueError):
    """A request that the engine cannot answer. `status` is the HTTP status: 400, or 404 for another model."""

    exit_code = 2

    def __init__(self, message: str, status: int = 400, param: str | None = None):
        # They may quote a request's own text, which can hold what no UTF-8 can.
        message = message.encode("utf-8", "backslashreplace").decode()
        param = param and param.encode("utf-8", "backslashreplace").decode()
        super().__init__(message, status, param)
        self.message, self.status, self.param = message, status, param

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """The error as OpenAI's servers word it."""
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    """0 is greedy, and so is what is below 1e-5."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or less: no limit."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest one are left out."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    """Most new tokens; None: up to the end of the context."""

    @property
    def is_plain(self) -> bool:
        """Whether tokens are drawn from the model's own distribution, at any temperature."""
        return (self.top_p, max(self.top_k, 0), self.min_p) == (1.0, 0, 0.0) and not self.penalised

    @property
    def penalised(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, in training and evaluation the only form that a completion has."""

    token_ids: list[int]
    """The end token included, if it was drawn."""
    logprobs: list[float]
    """Natural-log probabilities of `token_ids` in the distribution they were sampled from."""
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class ChatRequest:
    """One checked request."""

    model: str
    messages: list[dict[str, Any]]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    """Most new tokens; None: up to the end of the context."""
    n: int = 1
    logprobs: bool = False
    skip_special_tokens: bool = True
    tokens_as_ids: bool = False


@dataclass(frozen=True)
class Generation:
    """One sampled completion. `ids` and `logprobs` have the same length and include the end token, if it was drawn."""

    ids: list[int]
    logprobs: list[float]
    """Natural-log probabilities of `ids` in the distribution they were sampled from."""
    finish_reason: Literal["stop", "length"]
    text: str


# name -> (kind, smallest, largest); the bounds are those of vLLM's SamplingParams
_NUMBERS: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0.0, 100.0),
    "top_p": (float, 1e-6, 1.0),
    "top_k": (int, -1, 1_000_000),
    "min_p": (float, 0.0, 1.0),
    "repetition_penalty": (float, 1e-6, 100.0),
    "presence_penalty": (float, -2.0, 2.0),
    "frequency_penalty": (float, -2.0, 2.0),
    "max_tokens": (int, 1, 10_000_000),
    "max_completion_tokens": (int, 1, 10_000_000),
    "n": (int, 1, 1024),
}
_FLAGS = ("logprobs", "skip_special_tokens", "return_tokens_as_token_ids")
# Fields that change nothing at these values, and that the engine does not do at any other.
_ONLY: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "stop": ([], ()),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "spaces_between_special_tokens": (False,),
    "include_stop_str_in_output": (False,),
}
_NO_EFFECT = ("user", "metadata", "store")


def parse_request(body: Any) -> ChatRequest:
    """Check the JSON `body` of a chat request; raise `BadRequest` for anything the engine does not do."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    body = {key: value for key, value in body.items() if value is not None}
    for key, value in body.items():
        if key in _ONLY and value not in _ONLY[key]:
            raise BadRequest(f"{key}={value!r} is not supported by the embedded engine", param=key)
        if (
            key not in _ONLY
            and key not in _NUMBERS
            and key not in _FLAGS
            and key not in (*_NO_EFFECT, "model", "messages")
        ):
            raise BadRequest(f"{key!r} is not supported by the embedded engine", param=key)
    numbers = {key: _number(key, body[key]) for key in _NUMBERS if key in body}
    for flag in _FLAGS:
        if not isinstance(body.get(flag, False), bool):
            raise BadRequest(f"{flag} must be true or false", param=flag)
    if "max_tokens" in numbers and numbers.get("max_completion_tokens", numbers["max_tokens"]) != numbers["max_tokens"]:
        raise BadRequest("max_tokens and max_completion_tokens differ", param="max_tokens")
    model = body.get("model", "")
    if not isinstance(model, str):
        raise BadRequest("model must be a string", param="model")
    names = Sampling.__dataclass_fields__.keys() - {"max_tokens"}
    sampling = {key: numbers[key] for key in names if key in numbers}
    return ChatRequest(
        model=model,
        messages=_messages(body.get("messages")),
        sampling=Sampling(**sampling),  # type: ignore[arg-type]  # top_k is an int by _NUMBERS
        max_tokens=int(tokens) if (tokens := numbers.get("max_completion_tokens", numbers.get("max_tokens"))) else None,
        n=int(numbers.get("n", 1)),
        logprobs=body.get("logprobs", False),
        skip_special_tokens=body.get("skip_special_tokens", True),
        tokens_as_ids=body.get("return_tokens_as_token_ids", False),
    )


def _number(key: str, value: Any) -> float:
    kind, low, high = _NUMBERS[key]
    fits = isinstance(value, int) if kind is int else isinstance(value, int | float)
    if isinstance(value, bool) or not fits or not low <= value <= high:
        raise BadRequest(
            f"{key}={value!r} must be {'an integer' if kind is int else 'a number'} in [{low:g}, {high:g}]", param=key
        )
    return value if kind is int else float(value)


def _messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message", param="messages")
    checked = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest("each message must be an object with a role", param="messages")
        content = message.get("content")
        if isinstance(content, list):
            if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
                raise BadRequest("only text parts are supported in a message's content", param="messages")
            content = "".join(part["text"] for part in content)
        if not isinstance(content, str):
            raise BadRequest("a message's content must be text", param="messages")
        checked.append({"role": message["role"], "content": content})
    return checked


def response(
    request: ChatRequest, generations: Sequence[Generation], prompt_tokens: int, token_text: "TokenText"
) -> dict[str, Any]:
    """The JSON answer (an OpenAI `ChatCompletion`) for the `request.n` completions of one request."""
    completion_tokens = sum(len(g.ids) for g in generations)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [
            {
                "index": index,
                "finish_reason": generation.finish_reason,
                "message": {"role": "assistant", "content": generation.text},
                "logprobs": {"content": _logprobs(request, generation, token_text)} if request.logprobs else None,
            }
            for index, generation in enumerate(generations)
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


class TokenText:
    """Texts of single tokens by id, cached: a batch repeats the same few hundred."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __getitem__(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._tokenizer.decode([token])
        return self._known[token]


def _logprobs(request: ChatRequest, generation: Generation, token_text: TokenText) -> list[dict[str, Any]]:
    if request.tokens_as_ids:  # vLLM's form, which survives tokens whose text is ambiguous
        return [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in zip(generation.ids, generation.logprobs, strict=True)
        ]
    return [
        {"token": (text := token_text[token]), "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for token, logprob in zip(generation.ids, generation.logprobs, strict=True)
    ]
