"""Models in an evaluation: HTTP endpoints, vLLM servers on this machine, and models in this process.

    ready = await endpoint(model, config)
    async with ready.client() as client: await ready.reply(request, client)
    async with serving("outputs/RUN/checkpoint-25", "0", folder, config) as (url, name): ...  # for use with `endpoint`
    async with embedded("tiny", config) as model: model.replies(requests)

Calls to endpoints are retried with exponential backoff after temporary HTTP errors (such as 429 and 5xx), timeouts,
broken connections and malformed replies. Permanent errors are not retried. An overlong prompt causes only its own call
to fail, whereas a wrong key or an unknown model causes all calls to fail. Replies are validated, and the endpoint's API
key is masked in them.
"""

import asyncio
import json
import os
import random
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from rg_env.core.processes import Command, ProcessGroup
from rg_env.core.prompts import fold_system, rejects_system_role
from rg_env.core.text import is_count, listed, one_line, reason_of
from rg_env.errors import InputError, MissingExtraError, ServerError, install_command
from rg_env.evaluation.config import EvalConfig, EvalModel, RequestsConfig
from rg_env.evaluation.questions import Reply, Request
from rg_env.inference.machine import Machine
from rg_env.inference.protocol import Engine, PromptEncoder, Sampling
from rg_env.inference.vllm.client import PROGRAM, VllmServer
from rg_env.tiny import POLICY_DIR, TINY

DEFAULT_KEY = "OPENAI_API_KEY"
HOST = "127.0.0.1"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LIST_TIMEOUT_S = 20.0
_LONGEST_PAUSE_S = 60.0
_FOR_NOW = (408, 409, 425, 429)
_FOR_ALL = (401, 402, 403, 404, 405)
_SHORTEST_KEY = 8
"""Minimum length of a secret key. Shorter keys are treated as placeholders, such as "none"."""
_MOST_TOKENS = 2**40
"""Maximum plausible number of tokens. Larger numbers in replies are ignored."""
_GRACE_S = 15.0
_LORA_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM's `--max-lora-rank` accepts, starting with the default."""


class EndpointFailed(ServerError):
    """A call failed for a reason that applies to all calls."""


# Endpoints


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server, ready for calls."""

    url: str
    served_name: str
    config: RequestsConfig
    key: str
    ssl: ssl.SSLContext
    folds: bool
    """Whether to merge system messages into the first user message. Merging is necessary if the chat template does not
    support system messages."""

    def client(self) -> httpx.AsyncClient:
        """Return a new HTTP client for a series of calls. A client shared by concurrent calls would be slow, because
        its connection pool checks all connections on every request."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            timeout=self.config.timeout_s,
            follow_redirects=True,
            trust_env=not _is_here(self.url),  # no proxy is used for local addresses
            verify=self.ssl,
        )

    async def reply(self, request: Request, client: httpx.AsyncClient) -> Reply:
        """Send a request and return the reply, or the error from the last attempt.

        Raises:
            EndpointFailed: all other calls would also fail.
        """
        messages = fold_system(request.prompt) if self.folds else request.prompt
        settings = {name: getattr(request.sampling, name) for name in ("temperature", "top_p", "max_tokens")}
        body = {"model": self.served_name, "messages": messages, **settings}
        problem, tries, timeout_s = "", self.config.tries, self.config.timeout_s
        for number in range(1, tries + 1):
            pause = min(self.config.pause_s * 2 ** (number - 1), _LONGEST_PAUSE_S)
            try:
                # a server that sends one byte per minute never triggers httpx's timeout
                async with asyncio.timeout(timeout_s):
                    response = await client.post("chat/completions", json=body)
                value = self._json(response)
                if response.is_success:
                    return _reply_in(value)
                problem = f"HTTP {response.status_code}: {_message_in(value) or response.reason_phrase}"
                if response.status_code == 404 and not self.url.endswith(("/v1", "/v1/")):
                    problem += f" (should the URL be {self.url.rstrip('/')}/v1?)"
                if response.status_code in _FOR_ALL:
                    raise EndpointFailed(problem)
                if response.status_code not in _FOR_NOW and response.status_code < 500:
                    return Reply(error=problem)
                pause = _requested_pause(response) or pause
            except (TimeoutError, httpx.TimeoutException):
                problem = f"no answer within {timeout_s:g} s"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = f"no connection: {reason_of(error)}"
            except _Damaged as error:
                problem = f"invalid chat completion: {error}"
            if number < tries:
                await asyncio.sleep(pause * (0.75 + random.random() / 2))  # the random factor spreads out the retries
        return Reply(error=f"{problem} ({tries} tries)" if tries > 1 else problem)

    async def check_served(self) -> None:
        """Raise `InputError` if the server does not answer, rejects the API key, or provides a list of models that does
        not include this model."""
        try:
            async with self.client() as client:
                response = await client.get("models", timeout=_LIST_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise InputError(f"no server answers at {self.url}: {reason_of(error)}") from error
        if response.status_code == 401:
            raise InputError(f"{self.url} rejects the API key (HTTP 401)")
        try:
            names = [each["id"] for each in self._json(response)["data"] if isinstance(each["id"], str)]
        except (_Damaged, LookupError, TypeError):  # if the list is unusable, the first call reveals a wrong name
            return
        # Some servers list "models/NAME" but accept NAME.
        if names and not any(each == self.served_name or each.endswith(f"/{self.served_name}") for each in names):
            served = listed(list(map(one_line, names)), 5)
            raise InputError(f"{self.url} does not serve {self.served_name!r}: it serves {served}")

    def _json(self, response: httpx.Response) -> Any:
        """Return the parsed JSON body, or None for an error response whose body is not JSON. The API key, which some
        endpoints include in error messages, is masked."""
        text = response.text
        if len(self.key) >= _SHORTEST_KEY:
            text = text.replace(self.key, "***")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            if response.is_success:
                raise _Damaged(repr(one_line(text, 60))) from error
            return None


class _Damaged(Exception):
    """Malformed reply."""


def _reply_in(value: Any) -> Reply:
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list) or not choices:  # some services report errors with status 200
        error = _message_in(value)
        raise _Damaged(f"the reply has no choices{f': {error}' if error else ''}")
    choice = choices[0] if isinstance(choices[0], dict) else {}
    message, finish = choice.get("message"), choice.get("finish_reason")
    if not isinstance(message, dict) or not isinstance(message.get("content"), str | None):
        raise _Damaged("the reply's choice has no message")
    usage = value["usage"] if isinstance(value.get("usage"), dict) else {}
    # vLLM and other servers return the reasoning separately, under one of these names.
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return Reply(
        text=message.get("content") or "",
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


def _requested_pause(response: httpx.Response) -> float | None:
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


async def endpoint(model: EvalModel, config: EvalConfig, *, folds: bool = False) -> Endpoint:
    """Connect to the OpenAI-compatible server that serves a model.

    Raises:
        InputError: the API key is missing or invalid, no server answers at the URL, or the server does not serve the
            model.
    """
    ssl_context = httpx.create_ssl_context()
    ready = Endpoint(model.url or "", model.model, config.requests, key_of(model), ssl_context, folds)
    await ready.check_served()
    return ready


# Models in this process


@dataclass(frozen=True)
class LocalModel:
    """A model with an engine in this process, for evaluations and trainers."""

    name: str
    engine: Engine
    encoder: PromptEncoder

    def replies(self, requests: Sequence[Request]) -> Iterator[list[tuple[int, Reply]]]:
        """Yield batches of (request index, reply) pairs.

        The engine would form the same batches if it received all requests at once, so batching here does not change the
        answers. Errors raised by the engine are propagated.
        """
        by_sampling: dict[Sampling, list[tuple[list[int], int]]] = {}
        for number, (prompt, sampling) in enumerate(requests):
            try:
                ids = self.encoder(prompt)
            except Exception as error:  # a template can raise any exception
                reason = f"the chat template rejects these messages: {reason_of(error)}"
                yield [(number, Reply(error=reason))]
                continue
            if len(ids) + (sampling.max_tokens or 1) > self.engine.max_context:
                reason = f"{len(ids)} prompt tokens and max_tokens={sampling.max_tokens} exceed the context length"
                yield [(number, Reply(error=reason))]
                continue
            by_sampling.setdefault(sampling, []).append((ids, number))
        for sampling, prompts in by_sampling.items():
            prompts.sort(key=lambda each: (len(each[0]), each[0]))
            size = self.engine.max_batch_size
            for batch in (prompts[start : start + size] for start in range(0, len(prompts), size)):
                replies = self._generate([ids for ids, _ in batch], sampling)
                yield [(number, reply) for (_, number), reply in zip(batch, replies, strict=True)]

    def _generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Reply]:
        completions = self.engine.generate(prompts, sampling)
        texts = self.encoder.decode([each.token_ids for each in completions], frozenset(self.engine.end_ids))
        return [
            Reply(
                text,
                truncated=each.finish_reason == "length",
                prompt_tokens=len(ids),
                completion_tokens=len(each.token_ids),
                token_ids=each.token_ids,
                logprobs=each.logprobs,
            )
            for ids, each, text in zip(prompts, completions, texts, strict=True)
        ]

    def check_fits(self, label: str, prompts: Iterable[Any], max_tokens: int | None) -> None:
        """Raise `InputError` if the longest prompt and `max_tokens` together exceed the context length."""
        longest = max((len(self.encoder(prompt)) for prompt in prompts), default=0)
        if (room := self.engine.max_context - longest) < (max_tokens or 1):
            fix = f"max_tokens={max_tokens} does not fit: use at most {room}, or a task or level with shorter prompts"
            fix = fix if room > 0 else "remove the task, or choose an easier level or another model"
            raise InputError(
                f"{self.name} has a context of {self.engine.max_context} tokens, and the longest prompt from {label} "
                f"has {longest}; {fix}"
            )


@asynccontextmanager
async def embedded(name: str, config: EvalConfig) -> AsyncIterator[LocalModel]:
    """Load a local model into the embedded engine, and stop generating on exit.

    Raises:
        InputError: the model cannot be loaded.
    """
    from rg_env.inference.embedded.engine import EmbeddedEngine
    from rg_env.inference.models import best_device, load_policy, with_adapters

    base = base_model(name)
    policy = load_policy(name) if base is None else with_adapters(load_policy(base), name)
    policy.model.to(best_device())
    engine = EmbeddedEngine(policy.model, policy.tokenizer, model_name=name, seed=config.seed)
    try:
        yield LocalModel(name, engine, PromptEncoder(policy.tokenizer))
    finally:
        engine.cancel()


def require_torch() -> None:
    """Raise `MissingExtraError` unless the packages needed for local models are installed."""
    if missing := next((each for each in ("torch", "transformers", "peft") if find_spec(each) is None), None):
        raise MissingExtraError(
            f"a local model needs {missing}, which is not installed: run `{install_command('train')}`, or use an "
            "endpoint (MODEL@URL)"
        )


# Local models by name


def base_model(name: str) -> str | None:
    """Return the base model for the LoRA adapters in the folder `name`, or None if the folder does not contain
    adapters.

    Raises:
        InputError: the adapters do not name their base model.
    """
    file = Path(name) / "adapter_config.json"
    if not file.is_file():
        return None
    try:
        base = json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} does not name the adapters' base model (base_model_name_or_path)") from error
    return str(base)


def folds_system(name: str) -> bool:
    """Whether the chat template of a local model lacks support for system messages.

    Raises:
        InputError: the model's configuration or tokenizer cannot be loaded.
    """
    from rg_env.inference.models import describe_model

    base = base_model(name) or name
    return base != TINY and rejects_system_role(describe_model(base).tokenizer)


# Servers on this machine


def local_engine(config: EvalConfig) -> Literal["embedded", "vllm"]:
    """Return the engine for models without a URL. "auto" means vLLM if it is installed and there is a GPU, and the
    embedded engine otherwise."""
    if config.serving.kind != "auto":
        return config.serving.kind
    machine = Machine.here()
    return "vllm" if machine.vllm and machine.gpus and "cpu" not in machine.vllm else "embedded"


@asynccontextmanager
async def serving(name: str, gpu: str | None, folder: Path, config: EvalConfig) -> AsyncIterator[tuple[str, str]]:
    """Run a vLLM server for the model `name` on `gpu` (or on the CPU if `gpu` is None), and yield the server's URL and
    the model's name in requests.

    LoRA adapters are served with their base model.

    Raises:
        ServerError: the server does not start. The server's log is in `folder`.
        MissingExtraError: vLLM is not installed.
    """
    Machine.here().check_installed()
    port, log = _free_port(), folder / f"vllm-{gpu if gpu is not None else 'cpu'}.log"
    command, served = _command(name, gpu, port, config)
    group = await asyncio.to_thread(ProcessGroup, command, log)
    try:
        limit = config.serving.start_timeout_s
        try:
            await asyncio.to_thread(VllmServer(HOST, port).wait, limit, lambda: group.code is None)
        except ServerError as error:
            what = f"was not ready after {limit:g} s (serving.start_timeout_s)"
            if group.code is not None:
                what = f"exited with code {group.code} ({' '.join(group.last_lines(1))[:200]})"
            raise ServerError(f"vLLM for {name} {what}: see {log}") from error
        yield f"http://{HOST}:{port}/v1", served
    finally:
        # `end` is deliberately not called in a thread: Ctrl-C could interrupt the wait for a thread.
        group.end(lambda: _GRACE_S)


def _command(name: str, gpu: str | None, port: int, config: EvalConfig) -> tuple[Command, str]:
    base = base_model(name)
    weights = str(POLICY_DIR) if (base or name) == TINY else base or name
    served = "adapter" if base else weights
    arguments = [*PROGRAM, "--model", weights, "--host", HOST, "--port", str(port)]
    if base:
        arguments += ["--enable-lora", "--lora-modules", f"{served}={name}", "--max-lora-rank", str(_rank_bound(name))]
    environment = {"CUDA_VISIBLE_DEVICES": gpu if gpu is not None else ""}
    if gpu is None:
        arguments += ["--enforce-eager", "--dtype", "float32"]
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")  # GB
    return Command((*arguments, *config.serving.vllm_args), environment), served


def _rank_bound(folder: str) -> int:
    """Return the value of `--max-lora-rank` to use for the adapters in `folder`."""
    config = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
    rank = max([config.get("r") or 0, *(config.get("rank_pattern") or {}).values()])
    return next((bound for bound in _LORA_RANKS if bound >= rank), _LORA_RANKS[-1])


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
