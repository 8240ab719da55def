"""The models of an evaluation: endpoints over HTTP, vLLM's servers on this machine, and models in this process.

async with endpoint(model, config) as ready: await ready.reply(request)
async with serving("outputs/RUN/checkpoint-25", "0", folder, config) as (url, name): ...     # is an endpoint then
async with embedded("tiny", config) as model: model.replies(requests)
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

import httpx
import openai

from rg_env.core.processes import Command, ProcessGroup
from rg_env.core.prompts import fold_system, rejects_system_role
from rg_env.core.text import one_line, reason_of
from rg_env.errors import InputError, MissingExtraError, ServerError, install_command
from rg_env.evaluation.config import TINY, EvalConfig, EvalModel, RequestsConfig
from rg_env.evaluation.requests import Reply, ask
from rg_env.inference.machine import Machine
from rg_env.inference.prompts import PromptEncoder
from rg_env.inference.protocol import Completion, Sampling
from rg_env.inference.vllm.client import PROGRAM, VllmServer
from rg_env.tiny import POLICY_DIR

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LIST_TIMEOUT_S = 20.0
DEFAULT_KEY = "OPENAI_API_KEY"
HOST = "127.0.0.1"
_GRACE_S = 15.0
_POLL_S = 1.0
_LORA_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM's `--max-lora-rank` accepts, from its default on."""


class Request(NamedTuple):
    """What a model is asked: a prompt (messages; text for a local model only), and how to sample the answer."""

    prompt: Any
    sampling: Sampling


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server that is ready."""

    client: openai.AsyncOpenAI
    served_name: str
    config: RequestsConfig
    folds: bool = False
    """Whether system messages go into the question: the chat template of the model served has no place for them."""

    async def reply(self, request: Request) -> Reply:
        """The reply to one request. Raises as `requests.ask`."""
        prompt, sampling = request
        settings = {name: getattr(sampling, name) for name in ("temperature", "top_p", "max_tokens")}
        messages = fold_system(prompt) if self.folds else prompt
        body = {"model": self.served_name, "messages": messages, **settings}
        return await ask(self.client, body, tries=self.config.tries, timeout_s=self.config.timeout_s)


Kind = Literal["endpoint", "hub", "folder", "adapter", "tiny"]


def kind_of(model: EvalModel) -> Kind:
    """What it is, by its entry and the disk."""
    if model.url is not None:
        return "endpoint"
    if model.model == TINY:
        return "tiny"
    if (Path(model.model) / "adapter_config.json").is_file():
        return "adapter"
    return "folder" if Path(model.model).exists() else "hub"


@asynccontextmanager
async def endpoint(model: EvalModel, config: EvalConfig, *, folds: bool = False) -> AsyncIterator[Endpoint]:
    """An OpenAI-compatible server.

    Raises:
        InputError: its key is missing; nothing answers there; it does not serve the model.
    """
    address = model.url or ""
    here = urlsplit(address).hostname in _LOOPBACK
    key = os.environ.get(model.key_variable or DEFAULT_KEY)
    if not key and (model.key_variable or not here):
        raise InputError(
            f"{address}: the environment has no {model.key_variable or DEFAULT_KEY}: set it to the endpoint's key, or "
            "name another variable as key_variable"
        )
    if key and not (key.isascii() and key.isprintable() and key == key.strip()):  # httpx would show the key
        raise InputError(
            f"{address}: the key in {model.key_variable or DEFAULT_KEY} has spaces around it, a line break or letters "
            "that no key has: set it to the bare key"
        )
    concurrency = config.requests.concurrency
    http = openai.DefaultAsyncHttpxClient(
        limits=httpx.Limits(max_connections=concurrency + 4, max_keepalive_connections=concurrency + 4),
        trust_env=not here,  # what the environment names as proxy is not for this machine
    )
    client = openai.AsyncOpenAI(
        base_url=address,
        api_key=key if key and (model.key_variable or not here) else "none",
        max_retries=0,
        timeout=config.requests.timeout_s,
        http_client=http,
    )
    async with client:
        await _check_served(client, model.model, address)
        yield Endpoint(client, model.model, config.requests, folds)


async def _check_served(client: openai.AsyncOpenAI, name: str, address: str) -> None:
    """Raise `InputError` if the server says that it will not answer; most list their models."""
    try:
        listed = await client.with_options(timeout=_LIST_TIMEOUT_S).models.list()
        names = [each.id for each in listed.data if isinstance(each.id, str)]
    except openai.AuthenticationError as error:
        raise InputError(f"{address} refuses the key: HTTP {error.status_code}") from error
    except openai.APIConnectionError as error:
        timed_out = isinstance(error, openai.APITimeoutError)
        reason = f"no list of models within {_LIST_TIMEOUT_S:g} s" if timed_out else reason_of(error.__cause__ or error)
        raise InputError(f"nothing answers at {address}: {reason}") from error
    except Exception:  # no list, or an unreadable one: a call will show
        return
    # Some list "models/NAME", and take NAME.
    if names and not any(each == name or each.endswith(f"/{name}") for each in names):
        shown = ", ".join(one_line(each) for each in names[:5]) + (
            f" and {len(names) - 5} more" if len(names) > 5 else ""
        )
        raise InputError(f"{address} does not serve {name!r}: it has {shown}")


@asynccontextmanager
async def embedded(name: str, config: EvalConfig) -> AsyncIterator["LocalModel"]:
    """A local model by the embedded engine. Loads it, and stops generating in the end.

    Raises:
        InputError: it cannot be loaded.
    """
    from rg_env.inference.embedded.engine import EmbeddedEngine
    from rg_env.inference.models import best_device, load_policy, with_adapters

    base = base_model(name)
    policy = load_policy(name) if base is None else with_adapters(load_policy(base), name)
    policy.model.to(best_device())
    engine = EmbeddedEngine(policy.model, policy.tokenizer, model_name=name, seed=config.seed)
    try:
        yield LocalModel(name, engine, PromptEncoder(policy.tokenizer), engine.max_batch_size)
    finally:
        engine.cancel()


class Generates(Protocol):
    """An engine: tokens in, tokens out."""

    @property
    def max_context(self) -> int: ...

    @property
    def end_ids(self) -> Collection[int]: ...

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """One completion for each prompt (token ids), in order."""


@dataclass(frozen=True)
class LocalModel:
    """A model whose engine is in this process: that of an evaluation, or that of a trainer."""

    name: str
    engine: Generates
    encoder: PromptEncoder
    batch_size: int | None = None
    """Requests answered at once; None: all of them."""

    def replies(self, requests: Sequence[Request]) -> list[Reply | str]:
        """The replies in order; in place of one that cannot be given, why. Raises what the engine raises."""
        found: dict[int, Reply | str] = {}
        prompts: dict[int, list[int]] = {}
        by_sampling: dict[Sampling, list[int]] = {}
        for number, (prompt, sampling) in enumerate(requests):
            try:
                ids = self.encoder(prompt)
            except Exception as error:  # templates raise whatever Jinja raises
                found[number] = f"the chat template refuses these messages: {reason_of(error)}"
                continue
            if len(ids) + (sampling.max_tokens or 1) > self.engine.max_context:
                found[number] = f"{len(ids)} tokens of prompt and max_tokens={sampling.max_tokens} exceed the context"
                continue
            prompts[number] = ids
            by_sampling.setdefault(sampling, []).append(number)
        ends = frozenset(self.engine.end_ids)
        for sampling, numbers in by_sampling.items():
            completions = self.engine.generate([prompts[number] for number in numbers], sampling)
            texts = self.encoder.decode([each.token_ids for each in completions], ends)
            for number, each, text in zip(numbers, completions, texts, strict=True):
                found[number] = Reply(
                    text,
                    truncated=each.finish_reason == "length",
                    prompt_tokens=len(prompts[number]),
                    completion_tokens=len(each.token_ids),
                    token_ids=each.token_ids,
                    logprobs=each.logprobs,
                )
        return [found[number] for number in range(len(requests))]

    def check_fits(self, label: str, prompts: Iterable[Any], max_tokens: int | None) -> None:
        """Raise `InputError` if the longest prompt and `max_tokens` exceed the context."""
        longest = max(len(self.encoder(prompt)) for prompt in prompts)
        if (room := self.engine.max_context - longest) < (max_tokens or 1):
            raise InputError(
                f"{self.name} has a context of {self.engine.max_context} tokens, and a prompt of {label} takes "
                f"{longest}: max_tokens={max_tokens} does not fit: lower it to at most {room}, or choose an easier task"
            )


def require_torch() -> None:
    """Raise `MissingExtraError` where what serves a model in this process is not installed."""
    for package in ("torch", "transformers", "peft"):
        if find_spec(package) is None:
            raise MissingExtraError(
                f"a model served here needs {package}, which is not installed: `{install_command('train')}`; or name "
                "an endpoint, MODEL@URL"
            )


def folds_system(name: str) -> bool:
    """Whether the chat template of a local model has no place for system messages.

    Raises:
        InputError: its configuration or tokenizer cannot be loaded.
    """
    from rg_env.inference.models import describe_model

    base = base_model(name) or name
    return base != TINY and rejects_system_role(describe_model(base).tokenizer)


def base_model(name: str) -> str | None:
    """The model that the adapters in the folder `name` were made for; None: it holds no adapters.

    Raises:
        InputError: they do not say.
    """
    file = Path(name) / "adapter_config.json"
    if not file.is_file():
        return None
    try:
        base = json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} names no model that the adapters belong to") from error
    return str(base)


def default_gpus() -> tuple[str, ...]:
    """The GPUs of this machine that may be used."""
    return Machine.here().gpus


def can_serve() -> bool:
    """Whether vLLM is installed, and has a GPU here."""
    machine = Machine.here()
    return bool(machine.vllm) and bool(machine.gpus) and "cpu" not in str(machine.vllm)


@asynccontextmanager
async def serving(name: str, gpu: str | None, folder: Path, config: EvalConfig) -> AsyncIterator[tuple[str, str]]:
    """A server for the model `name` on `gpu` (None: on the CPU): its address, and the name that it answers to.

    Adapters are served with the model that they were made for.

    Raises:
        ServerError: it does not come up; its log is in `folder`.
        MissingExtraError: vLLM is not installed.
    """
    Machine.here().check_installed()
    port, log = _free_port(), folder / f"vllm-{gpu if gpu is not None else 'cpu'}.log"
    command, served = _command(name, gpu, port, config)
    group = await asyncio.to_thread(ProcessGroup, command, log)
    try:
        server, start = VllmServer(HOST, port), time.monotonic()
        while (problem := await asyncio.to_thread(server.health_problem, 5.0)) is not None:
            if group.code is not None:
                last = " ".join(group.last_lines(1))[:200]
                raise ServerError(f"vLLM for {name} ended with code {group.code} ({last}): see {log}")
            if time.monotonic() - start > config.serving.start_timeout_s:
                raise ServerError(
                    f"vLLM for {name} is not ready after {config.serving.start_timeout_s:g} s ({problem}): see {log}, "
                    "or give a longer serving.start_timeout_s"
                )
            await asyncio.sleep(_POLL_S)
        yield f"http://{HOST}:{port}/v1", served
    finally:
        # Not in a thread: Ctrl-C must not interrupt it.
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
    """The value of `--max-lora-rank` for the adapters in `folder`."""
    config = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
    rank = max([config.get("r") or 0, *(config.get("rank_pattern") or {}).values()])
    return next((bound for bound in _LORA_RANKS if bound >= rank), _LORA_RANKS[-1])


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
