"""The models of an evaluation, ready to be asked: endpoints over HTTP, or local ones in this process.

Servers that vLLM runs on this machine's GPUs are endpoints too, once they are up (see `evaluation.servers`).
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import openai

from rg_env.core.prompts import fold_system, rejects_system_role
from rg_env.core.text import one_line, reason_of
from rg_env.errors import InputError, MissingExtraError
from rg_env.evaluation.config import TINY, EvalConfig, EvalModel
from rg_env.evaluation.questions import TaskQuestions

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LIST_TIMEOUT_S = 20.0
DEFAULT_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True)
class Ready:
    """A model that can be asked."""

    client: Any
    """With the surface of `openai.AsyncOpenAI`."""
    served_name: str
    concurrency: int
    timeout_s: float | None
    """For one call; None: it ends by itself."""
    folds: bool = False
    """Whether system messages go into the question: the chat template has no place for them."""

    def put(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The chat as this model takes it."""
        return fold_system(messages) if self.folds else messages


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
async def endpoint(model: EvalModel, config: EvalConfig) -> AsyncIterator[Ready]:
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
    if key and not (key.isascii() and key.isprintable() and key == key.strip()):  # httpx would tell the key
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
        yield Ready(client, model.model, concurrency, config.requests.timeout_s)


async def _check_served(client: openai.AsyncOpenAI, name: str, address: str) -> None:
    """Raise `InputError` where the server tells that it will not answer; most tell which models they have."""
    try:
        listed = await client.with_options(timeout=_LIST_TIMEOUT_S).models.list()
        names = [each.id for each in listed.data if isinstance(each.id, str)]
    except openai.AuthenticationError as error:
        raise InputError(f"{address} refuses the key: HTTP {error.status_code}") from error
    except openai.APIConnectionError as error:
        raise InputError(f"nothing answers at {address}: {_reason(error)}") from error
    except Exception:  # no list, or none that can be read: a call will tell
        return
    # Some list "models/NAME", and take NAME.
    if names and not any(each == name or each.endswith(f"/{name}") for each in names):
        shown = ", ".join(one_line(each) for each in names[:5]) + (
            f" and {len(names) - 5} more" if len(names) > 5 else ""
        )
        raise InputError(f"{address} does not serve {name!r}: it has {shown}")


def _reason(error: openai.APIConnectionError) -> str:
    if isinstance(error, openai.APITimeoutError):
        return f"no list of models within {_LIST_TIMEOUT_S:g} s"
    return reason_of(error.__cause__ or error)


@asynccontextmanager
async def embedded(model: EvalModel, config: EvalConfig, asked: list[TaskQuestions]) -> AsyncIterator[Ready]:
    """A local model by the embedded engine. Loads it, and frees it in the end.

    Raises:
        InputError: it cannot be loaded, or answers as long as asked for do not fit.
    """
    from rg_env.inference.embedded.engine import EmbeddedEngine
    from rg_env.inference.embedded.server import InProcessClient
    from rg_env.inference.models import best_device

    policy = load(model.model)
    policy.model.to(best_device())
    engine = EmbeddedEngine(policy.model, policy.tokenizer, model_name=model.model, seed=config.seed)
    folds = rejects_system_role(policy.tokenizer)
    ready = Ready(InProcessClient(engine), model.model, engine.max_batch_size, timeout_s=None, folds=folds)
    _check_fits(engine, ready, model, config, asked)
    try:
        yield ready
    finally:
        engine.cancel()
        await ready.client.close()


def load(name: str) -> Any:
    """The `Policy` of a folder, of a name on the hub, or of adapters with the model that they were made for."""
    from rg_env.inference.models import load_policy, with_adapters

    base = base_model(name)
    return load_policy(name) if base is None else with_adapters(load_policy(base), name)


def require_torch() -> None:
    """Raise `MissingExtraError` where what serves a model in this process is not installed."""
    for package in ("torch", "transformers", "peft"):
        if find_spec(package) is None:
            raise MissingExtraError(
                f"a model served here needs {package}, which is not installed: `pip install 'rg-env[train]'`; or name "
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


def _check_fits(engine: Any, ready: Ready, model: EvalModel, config: EvalConfig, asked: list[TaskQuestions]) -> None:
    from rg_env.inference.protocol import BadRequest, ChatRequest

    for task in asked:
        longest = max(range(len(task.rows)), key=lambda number: len(task.rows[number]["question"]))
        messages = ready.put(task.messages(longest, model.system_prompt))
        try:
            length = len(engine.prompt_ids(ChatRequest(model=ready.served_name, messages=messages)))
        except BadRequest as error:
            raise InputError(f"{model.model}: {task.name}: {error}") from error
        max_tokens = config.sampling_of(task.name).max_tokens
        if length + max_tokens > engine.max_context:
            raise InputError(
                f"{model.model} has a context of {engine.max_context} tokens, and a prompt of {task.name} takes "
                f"{length}: sampling.max_tokens={max_tokens} does not fit: at most "
                f"{engine.max_context - length}"
            )
