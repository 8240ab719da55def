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

    Accepts an `Environment`, a `ReasoningGymEnv`, or a Verifiers environment: a v0 `SingleTurnEnv`, a v1 `Taskset` (its
    tasks become the training rows) or an `Env` with one agent.

    Raises:
        InputError: `env` has an unsupported type, or the trainer cannot run it, for example because it needs multiple
            turns, tools or a sandbox.
    """
    if isinstance(env, Environment):
        return env
    plain = getattr(env, "environment", None)
    if isinstance(plain, Environment) and getattr(env, "own_rubric", None) is None:
        check_offered(plain.rewards, OFFERED, "GRPOTrainer")
        return plain
    modules = [base.__module__ for base in type(env).__mro__]
    if any(module.startswith("verifiers.v1.") for module in modules):
        from rg_env.adapters.v1_training import environment_of

        return environment_of(env)
    if any(module.partition(".")[0] == "verifiers" for module in modules):
        from rg_env.adapters.v0 import VerifiersEnvironment

        return VerifiersEnvironment(env)
    raise InputError(
        f"env must be an rg_env ReasoningGym or Environment, or a single-turn Verifiers environment, not "
        f"{type(env).__name__}"
    )
