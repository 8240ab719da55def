"""Helpers for tests of Verifiers' v0 API, with differences between releases such as 0.1.6 and 0.3.1 removed.

If the installed release lacks that API, modules that import this one are skipped. `tests/matrix` runs them with
releases that have the API.
"""

import asyncio
import gc
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import verifiers as vf
from openai import AsyncOpenAI

__all__ = ["evaluated", "functions", "generated", "names", "vf", "weights"]

if not hasattr(vf, "SingleTurnEnv"):
    pytest.skip("needs verifiers up to 0.3.1: tests/matrix runs it there", allow_module_level=True)


def evaluated(env: Any, url: str, **options: Any) -> SimpleNamespace:
    """Return the prompts, completions, rewards and metrics of `env.evaluate` with a server."""
    return _run(env.evaluate, url, **({} if _WRAP else {"use_tqdm": False}), **options)


def generated(env: Any, url: str, rows: Any) -> SimpleNamespace:
    """Return the prompts, completions, rewards and metrics of `env.generate` with a server."""
    return _run(env.generate, url, rows, **({} if _WRAP else {"use_tqdm": False}))


_WRAP = getattr(vf, "OpenAIChatCompletionsClient", None)  # required since 0.1.14


def _run(call: Any, url: str, *args: Any, **options: Any) -> SimpleNamespace:
    async def run() -> Any:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await call(*args, client=_WRAP(client) if _WRAP else client, model="fake", **options)

    try:
        found = asyncio.run(run())
    finally:
        gc.collect()  # log errors from the remains of a failed batch now, not during another test
    if not isinstance(found, Mapping):
        return SimpleNamespace(
            prompt=found.prompt, completion=found.completion, reward=found.reward, metrics=found.metrics
        )
    outputs = found["outputs"]
    metrics = {name: [each["metrics"][name] for each in outputs] for name in outputs[0]["metrics"]}
    columns = {name: [each[name] for each in outputs] for name in ("prompt", "completion", "reward")}
    return SimpleNamespace(**columns, metrics=metrics)


def functions(rubric: Any) -> list[Any]:
    """Return the reward functions of a rubric, or of all rubrics in a group."""
    return _of(rubric, "reward_funcs")


def names(rubric: Any) -> list[str]:
    """Return the names of a rubric's reward functions."""
    return _of(rubric, "reward_func_names")


def weights(rubric: Any) -> list[float]:
    """Return the weights of a rubric's reward functions."""
    return _of(rubric, "reward_weights")


def _of(rubric: Any, name: str) -> list[Any]:
    get = getattr(rubric, f"get_{name}", None) or getattr(rubric, f"_get_{name}")  # 0.1.6, 0.3.1
    return list(get())
