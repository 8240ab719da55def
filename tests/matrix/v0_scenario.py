"""Script that runs in the environment of each release with the v0 API: `python v0_scenario.py SPEC` prints JSON.

SPEC is JSON with the server's `url`, the environment's `options`, `calls` (additional options by name) and the number
of `examples`. The result of a call is an error in one line, or the reward and metrics of each question.
"""

import asyncio
import json
import sys
from typing import Any

import rg_env

HEAVY_IMPORTS = sorted({"torch", "verifiers", "reasoning_gym"} & set(sys.modules))

import verifiers as vf  # noqa: E402
from openai import AsyncOpenAI  # noqa: E402


@rg_env.reward
def breaks(rollout: Any) -> float:
    raise KeyError("five")


def client_for(url: str) -> Any:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    wrap = getattr(vf, "OpenAIChatCompletionsClient", None)  # required since 0.1.14
    return wrap(client) if wrap else client


def evaluated(options: dict[str, Any], url: str, examples: int) -> Any:
    env = vf.load_environment("rg-env", **options)
    arguments = {"client": client_for(url), "model": "m", "num_examples": examples, "rollouts_per_example": 2}
    return per_question(asyncio.run(env.evaluate(**arguments)))


def per_question(result: Any) -> list[dict[str, Any]]:
    """Return one entry per rollout, from any result type: an object, a mapping of lists, or a mapping with outputs."""
    if isinstance(result, dict) and "outputs" in result:
        rows = [dict(each) for each in result["outputs"]]
        metrics = [each.get("metrics") or {} for each in rows]
    else:
        get = result.get if isinstance(result, dict) else lambda name, default=None: getattr(result, name, default)
        rows = [{"prompt": p, "reward": r} for p, r in zip(get("prompt"), get("reward"), strict=True)]
        by_name = get("metrics") or {}
        metrics = [{name: values[i] for name, values in by_name.items()} for i in range(len(rows))]
    return [
        {
            "question": text_of(row["prompt"][-1]),
            "reward": row["reward"],
            "metrics": found,
            "error": str(row["error"]) if row.get("error") else None,
        }
        for row, found in zip(rows, metrics, strict=True)
    ]


def text_of(message: Any) -> str:
    content = message["content"] if isinstance(message, dict) else message.content
    return str(content)


def v1_errors() -> list[str]:
    """Return the error for each name of the v1 API that this release lacks."""
    errors = []
    for name in rg_env.__all__:
        try:
            getattr(rg_env, name)
        except rg_env.MissingExtraError as error:
            errors.append(str(error))
        except AttributeError:  # 0.2 has harnesses instead of environments
            assert name == "SingleTurnEnv"
    return errors


def main() -> None:
    spec = json.loads(sys.argv[1])
    results: dict[str, Any] = {}
    for name, options in spec["calls"].items():
        try:
            results[name] = evaluated({**spec["options"], **options}, spec["url"], spec["examples"])
        except (rg_env.RGEnvError, RuntimeError) as error:
            # `vf.load_environment` wraps errors in a RuntimeError.
            cause = error if isinstance(error, rg_env.RGEnvError) else error.__cause__
            if not isinstance(cause, rg_env.RGEnvError):
                raise
            results[name] = f"{type(cause).__name__}: {cause}"
    printed = {"version": vf.__version__, "heavy_imports": HEAVY_IMPORTS, "results": results, "v1_errors": v1_errors()}
    print(json.dumps(printed))


if __name__ == "__main__":
    main()
