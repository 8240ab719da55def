"""Adapters between rg_env and other frameworks, in both directions.

`rg_env.core` does not depend on any framework. `as_environment` imports only the adapter that an object needs, and
never imports torch.
"""

from typing import Any

from rg_env.core.environment import Environment
from rg_env.core.rewards import OFFERED, check_offered
from rg_env.errors import InputError


def as_environment(env: Any) -> Environment:
    """Convert `env` to an `Environment`.

    Accepts an `Environment`, a `ReasoningGymEnv`, or a Verifiers v1 environment: a `Taskset` (its tasks become the
    training rows) or an `Env` with one agent.

    Raises:
        InputError: `env` has an unsupported type, or the trainer cannot run it, for example because it needs multiple
            turns, tools or a sandbox, or because it was written for Verifiers' v0 API.
    """
    if isinstance(env, Environment):
        return env
    name, plain = type(env).__name__, getattr(env, "environment", None)
    if isinstance(plain, Environment):
        if getattr(env, "own_rubric", None) is not None:
            raise InputError(f"GRPOTrainer does not call {name}'s own rubric: pass reward functions as rewards=[...]")
        check_offered(plain.rewards, OFFERED, "GRPOTrainer")
        return plain
    modules = [base.__module__ for base in type(env).__mro__]
    if any(module.startswith("verifiers.v1.") for module in modules):
        from rg_env.adapters.v1_training import environment_of

        return environment_of(env)
    if any(module.partition(".")[0] == "verifiers" for module in modules):
        raise InputError(
            f"{name} uses Verifiers' v0 API, which GRPOTrainer does not support: pass its rows and reward functions to "
            "rg_env.Environment(train_rows, eval_rows, rewards), or a v1 Taskset (Verifiers 0.4)"
        )
    raise InputError(
        f"env must be an rg_env ReasoningGym or Environment, or a single-turn Verifiers v1 environment, not {name}"
    )
