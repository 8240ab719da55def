"""OpenAI-compatible HTTP endpoints that serve models in an evaluation.

    ready = await endpoint(model, config)
    async with ready.client() as client: await ready.reply(request, client)

Calls are retried with exponential backoff after temporary HTTP errors (such as 429 and 5xx), timeouts, broken
connections and malformed replies. Permanent errors are not retried. An overlong prompt causes only its own call to
fail, whereas a wrong key, an unknown model or a redirect to another host causes all calls to fail. Once a call has been
answered, these errors are retried, too, because large services return them now and then. Replies are limited in size
and time (`inference.http`) and validated, and the endpoint's API key is masked in everything that is kept or shown.
"""

import asyncio
import os
import random
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import httpx

from rg_env.core.text import is_count, listed, one_line, reason_of
from rg_env.errors import InputError, ServerError
from rg_env.evaluation.config import EvalConfig, EvalModel, RequestsConfig
from rg_env.evaluation.questions import ChatRequest, Reply
from rg_env.inference.http import BadReplyError, HttpReply, RedirectError, fetch
from rg_env.inference.protocol import PromptEncoder, Sampling
from rg_env.inference.vllm.client import request_fields

DEFAULT_KEY = "OPENAI_API_KEY"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LIST_TIMEOUT_S = 20.0
_LONGEST_PAUSE_S = 60.0
_FOR_NOW = (408, 409, 425, 429)
_FOR_ALL = (401, 402, 403, 404, 405)
_SHORTEST_KEY = 8
"""Minimum length of a secret key. Shorter keys are treated as placeholders, such as "none"."""
_MOST_TOKENS = 2**40
"""Maximum plausible number of tokens. Larger numbers in replies are ignored."""

_MOST_PARTS = 250_000
"""Maximum number of brackets and commas in a reply. A chat completion has fewer than 100, and those in its text."""


class EndpointFailed(ServerError):
    """A call failed for a reason that applies to all calls."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server, ready for calls."""

    url: str
    served_name: str
    config: RequestsConfig
    key: str
    ssl: ssl.SSLContext
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template."""
    encoder: PromptEncoder | None = None
    """The model's prompt encoder if rg_env started the server (vLLM), which then gets all sampling settings. Other
    servers get the settings that OpenAI's API has, and other settings only if they are not the defaults."""
    opens_thinking: bool = False
    """Whether the chat template of a model that another vLLM server serves ends prompts with `<think>`."""

    _answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a call has been answered."""

    def client(self) -> httpx.AsyncClient:
        """Return a new HTTP client for a series of calls. A client shared by concurrent calls would be slow, because
        its connection pool checks all connections on every request."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none are kept
            trust_env=not _is_here(self.url),  # no proxy is used for local addresses
            verify=self.ssl,
        )

    async def reply(self, request: ChatRequest, client: httpx.AsyncClient) -> Reply:
        """Send a request and return the reply, or the error from the last attempt.

        Raises:
            EndpointFailed: all other calls would also fail.
        """
        body = {"model": self.served_name, **self._fields(request)}
        prefix = self.encoder.prefix(request.prompt) if self.encoder else "<think>" if self.opens_thinking else ""
        problem, tries, timeout_s = "", self.config.tries, self.config.timeout_s
        for number in range(1, tries + 1):
            pause, for_all = min(self.config.pause_s * 2 ** (number - 1), _LONGEST_PAUSE_S), False
            try:
                response = await fetch(client, "POST", "chat/completions", json=body, timeout_s=timeout_s)
                value = self._json(response)
                if response.is_success:
                    reply = Reply(**self._masked(vars(_reply_in(value))))
                    self._answered.set()
                    return reply if reply.reasoning else replace(reply, prefix=prefix)
                problem = f"HTTP {response.status}: {_message_in(value) or one_line(self._masked(response.phrase))}"
                if response.status == 404 and not self.url.endswith(("/v1", "/v1/")):
                    problem += f" (should the URL be {self.url.rstrip('/')}/v1?)"
                for_all = response.status in _FOR_ALL
                if not for_all and response.status not in _FOR_NOW and response.status < 500:
                    return Reply(error=problem)
                pause = _requested_pause(response) or pause
            except TimeoutError:
                problem = f"no answer within {timeout_s:g} s"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = f"no connection: {_connection_problem(error)}"
            except RedirectError as error:
                problem, for_all = self._masked(f"{error} (should the URL be there?)"), True
            except BadReplyError as error:
                problem = one_line(self._masked(f"invalid chat completion: {error}"), 300)
            if for_all and (number == tries or not self._answered.is_set()):
                raise EndpointFailed(problem)
            if number < tries:
                await asyncio.sleep(pause * (0.75 + random.random() / 2))  # the random factor spreads out the retries
        return Reply(error=f"{problem} ({tries} tries)" if tries > 1 else problem)

    def _fields(self, request: ChatRequest) -> dict[str, Any]:
        fields = request_fields(request.sampling)
        if self.encoder:
            return {**self.encoder.chat(request.prompt), **fields}
        default = request_fields(Sampling())
        needed = {name for name, value in fields.items() if value != default.get(name)}
        fields = {name: fields[name] for name in fields if name in {"temperature", "top_p", "max_tokens"} | needed}
        fields.pop("include_stop_str_in_output", None)  # vLLM's; `_reply_in` restores the text
        kwargs = {"chat_template_kwargs": dict(self.template_kwargs)} if self.template_kwargs else {}
        return {"messages": request.prompt, **fields, **kwargs}

    async def check_served(self) -> bool:
        """Return whether the server is vLLM. Raise `InputError` if it does not answer, rejects the API key, or provides
        a list of models that does not include this model."""
        try:
            async with self.client() as client:
                response = await fetch(client, "GET", "models", timeout_s=_LIST_TIMEOUT_S)
        except TimeoutError as error:
            raise InputError(f"{self.url} did not list its models within {_LIST_TIMEOUT_S:g} s") from error
        except RedirectError as error:
            raise InputError(f"{self.url}: {self._masked(str(error))} (should the URL be there?)") from error
        except BadReplyError:
            return False
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InputError(f"no server answers at {self.url}: {_connection_problem(error)}") from error
        if response.status == 401:
            raise InputError(f"{self.url} rejects the API key (HTTP 401)")
        try:
            entries = [each for each in self._json(response)["data"] if isinstance(each["id"], str)]
            is_vllm = any(each.get("owned_by") == "vllm" for each in entries)
        except (BadReplyError, LookupError, TypeError, AttributeError):
            return False  # if the list is unusable, the first call reveals a wrong name
        names = [each["id"] for each in entries]
        # `transformers serve` lists the models in the Hub cache, even if it serves a folder.
        if not names or os.path.isdir(self.served_name):
            return is_vllm
        # Some servers list "models/NAME" but accept NAME.
        if not any(each == self.served_name or each.endswith(f"/{self.served_name}") for each in names):
            served = listed(list(map(one_line, names)), 5)
            raise InputError(f"{self.url} does not serve {self.served_name!r}: it serves {served}")
        return is_vllm

    async def finds_open_thinking(self) -> bool:
        """Ask a vLLM server whether the model's chat template ends prompts with `<think>`. If the server does not
        answer, the result is False."""
        root, model = self.url.rstrip("/").removesuffix("/v1"), {"model": self.served_name}
        question = {"messages": [{"role": "user", "content": "?"}], "add_generation_prompt": True}
        kwargs = {"chat_template_kwargs": dict(self.template_kwargs)} if self.template_kwargs else {}
        try:
            async with self.client() as client:
                prompt = {**model, **question, **kwargs}
                response = await fetch(client, "POST", f"{root}/tokenize", json=prompt, timeout_s=_LIST_TIMEOUT_S)
                ids = {**model, "tokens": self._json(response)["tokens"]}
                response = await fetch(client, "POST", f"{root}/detokenize", json=ids, timeout_s=_LIST_TIMEOUT_S)
                return (_text(self._json(response)["prompt"]) or "").rstrip().endswith("<think>")
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, BadReplyError, LookupError, TypeError):
            return False

    def _json(self, response: HttpReply) -> Any:
        """Return the parsed JSON body with the API key masked, or None for an error response whose body is not JSON."""
        if sum(map(response.body.count, (b"{", b"[", b","))) > _MOST_PARTS:  # it would take seconds to parse and mask
            raise BadReplyError(f"the reply has more than {_MOST_PARTS:,} parts")
        try:
            return self._masked(response.json())
        except (ValueError, RecursionError) as error:
            if response.is_success:
                raise BadReplyError(repr(one_line(self._masked(response.text), 60))) from error
            return None

    def _masked(self, value: Any) -> Any:
        """Return a JSON value in which the API key, which some endpoints include in error messages, is masked."""
        if len(self.key) < _SHORTEST_KEY:
            return value
        if isinstance(value, dict):
            return {key: self._masked(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._masked(each) for each in value]
        # Names of hosts are in lower case.
        return re.sub(re.escape(self.key), "***", value, flags=re.IGNORECASE) if isinstance(value, str) else value


def _reply_in(value: Any) -> Reply:
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list) or not choices:  # some services report errors with status 200
        error = _message_in(value)
        raise BadReplyError(f"the reply has no choices{f': {error}' if error else ''}")
    choice = choices[0] if isinstance(choices[0], dict) else {}
    message, finish = choice.get("message"), choice.get("finish_reason")
    if not isinstance(message, dict) or not isinstance(message.get("content"), str | None):
        raise BadReplyError("the reply's choice has no message")
    usage = value["usage"] if isinstance(value.get("usage"), dict) else {}
    # vLLM and other servers return the reasoning separately, under one of these names.
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    text, stopped_by = message.get("content") or "", choice.get("stop_reason")
    if isinstance(stopped_by, str) and not text.endswith(stopped_by):  # vLLM reports the text in `stop` that it removed
        text += stopped_by
    return Reply(
        text=text,
        reasoning=_text(reasoning),
        truncated=None if finish is None else finish == "length",
        refusal=_text(message.get("refusal")),
        model=_text(value.get("model")),
        prompt_tokens=_tokens(usage.get("prompt_tokens")),
        completion_tokens=_tokens(usage.get("completion_tokens")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _tokens(value: Any) -> int | None:
    return value if is_count(value, _MOST_TOKENS) else None


def _message_in(value: Any) -> str:
    """Return the error message in a response body, on one line, or "" if the body has none."""
    body = value if isinstance(value, dict) else {}
    error = body.get("error")
    messages = (error.get("message") if isinstance(error, dict) else error, body.get("message"), body.get("detail"))
    return next((one_line(each) for each in messages if isinstance(each, str)), "")


def _connection_problem(error: Exception) -> str:
    if isinstance(error, httpx.RemoteProtocolError):  # the error's message quotes the server
        return "the server broke off the connection or does not speak HTTP"
    return reason_of(error)


def _requested_pause(response: HttpReply) -> float | None:
    """Return the pause requested by the server, in seconds, or None if the server does not request a pause."""
    text = response.headers.get("retry-after", "")
    return min(float(text), _LONGEST_PAUSE_S) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK


def key_of(model: EvalModel) -> str:
    """Return the API key for an endpoint, from the environment. If the endpoint is on this machine and has no
    `key_variable`, return an empty string.

    Raises:
        InputError: the key is missing or malformed.
    """
    url, variable = model.url or "", model.key_variable or DEFAULT_KEY
    if not model.key_variable and _is_here(url):
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise InputError(
            f"{url}: the environment variable {variable} is not set: set it to the endpoint's key, or name another "
            "variable in key_variable"
        )
    # The key is checked here because an error from httpx would contain it.
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise InputError(
            f"{url}: the key in {variable} has surrounding spaces, a line break or invalid characters: set the "
            "variable to the key alone"
        )
    return key


async def endpoint(model: EvalModel, config: EvalConfig) -> Endpoint:
    """Connect to the OpenAI-compatible server that serves a model.

    Raises:
        InputError: the API key is missing or invalid, no server answers at the URL, or the server does not serve the
            model.
    """
    key, kwargs = key_of(model), config.prompt.chat_template_kwargs
    ready = Endpoint(model.url or "", model.model, config.requests, key, httpx.create_ssl_context(), kwargs)
    is_vllm = await ready.check_served()
    return replace(ready, opens_thinking=is_vllm and await ready.finds_open_thinking())
