"""Reasoning Gym's tasks as a Verifiers environment, with composable rewards, and GRPO training on it.

    import verifiers as vf
    env = vf.load_environment("rg-env", gym="leg_counting")      # or rg_env.load_environment(gym=...)

Public names are resolved when first used (PEP 562), so that `import rg_env` is instant and needs none of torch,
verifiers or reasoning_gym: an environment without one of them can still use what does not need it.

The layer rule: imports point one way, core -> adapters and inference -> evaluation -> training -> cli. A module may
import from its own layer and from those before it (adapters and inference do not know each other); a test enforces it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rg_env.errors import (
    EngineError,
    InputError,
    MissingExtraError,
    OutputFolderError,
    RewardError,
    RGEnvError,
    ServerError,
    TrainingError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from rg_env.adapters.v0 import ReasoningGymEnv as ReasoningGymEnv
    from rg_env.adapters.v0 import load_environment as load_environment
    from rg_env.core.imports import import_user_code as import_user_code
    from rg_env.core.rewards import Rollout as Rollout
    from rg_env.core.rewards import reward as reward
    from rg_env.core.scoring import Score as Score

# There is no `__all__` on purpose: the loader of verifiers v1 reads it and wants its own names there, and no other.
_LAZY = {
    "load_environment": "rg_env.adapters.v0",
    "ReasoningGymEnv": "rg_env.adapters.v0",
    "import_user_code": "rg_env.core.imports",
    "reward": "rg_env.core.rewards",
    "Rollout": "rg_env.core.rewards",
    "Score": "rg_env.core.scoring",
}
_ERRORS = (
    EngineError,
    InputError,
    MissingExtraError,
    OutputFolderError,
    RewardError,
    RGEnvError,
    ServerError,
    TrainingError,
    UnknownNameError,
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("rg-env")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_LAZY, *(error.__name__ for error in _ERRORS), "__version__", "__doc__", "__name__", "__path__"])
