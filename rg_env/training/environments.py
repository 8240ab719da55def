"""What `GRPOTrainer` can train on, as the one `Environment` that it knows."""

from typing import Any

from rg_env.core.environment import Environment
from rg_env.core.registry import check_offered
from rg_env.core.rubric import OFFERED
from rg_env.errors import InputError


def as_environment(env: Any) -> Environment:
    """The environment itself, the plain one behind a `ReasoningGymEnv`, or an adapter around a Verifiers environment.

    Raises:
        InputError: something else, or an environment with several turns or tools.
    """
    if isinstance(env, Environment):
        return env
    plain = getattr(env, "environment", None)
    if isinstance(plain, Environment):
        check_offered(plain.rewards, OFFERED, "GRPOTrainer")
        return plain
    kinds = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    if "verifiers" in kinds:
        from rg_env.adapters.v0_training import VerifiersEnvironment

        return VerifiersEnvironment(env)
    raise InputError(
        f"env must be a ReasoningGym or Environment of rg_env, or a single-turn environment of Verifiers, not "
        f"{type(env).__name__}"
    )
