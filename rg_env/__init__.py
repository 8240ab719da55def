"""Reasoning Gym's tasks as a Verifiers environment with composable rewards, and a GRPO trainer.

    env = rg_env.load_environment("leg_counting")                # same arguments and rows with any Verifiers release
    env = vf.load_environment("rg-env", gym="leg_counting")      # the same object, through Verifiers up to 0.3.1

    vf-eval rg-env -m MODEL                                      # Verifiers 0.4, with its v1 API (rg_env.adapters.v1)

`load_environment` returns a `ReasoningGymEnv`: a Verifiers environment for the v0 API if the installed release has that
API (up to 0.3.1), otherwise for the v1 API. Without Verifiers, `load_environment` returns a plain `ReasoningGym`.
`GRPOTrainer` accepts every object that `load_environment` returns.

Public names are resolved on first use (PEP 562), so `import rg_env` is instant and does not import torch, verifiers or
reasoning_gym. If a dependency is not installed, everything that does not need it still works.

The package has layers: core -> tiny -> adapters and inference -> evaluation -> training -> publish -> jobs -> cli. A
module may import only from its own layer and earlier layers. Adapters and inference do not import each other. A test
enforces these rules.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rg_env.errors import EngineError as EngineError
from rg_env.errors import InputError as InputError
from rg_env.errors import MissingExtraError, RGEnvError, installed_version
from rg_env.errors import OutputFolderError as OutputFolderError
from rg_env.errors import RewardError as RewardError
from rg_env.errors import ServerError as ServerError
from rg_env.errors import TrainingError as TrainingError
from rg_env.errors import UnknownNameError as UnknownNameError

if TYPE_CHECKING:
    from rg_env.adapters.v1 import ReasoningGymEnv as ReasoningGymEnv
    from rg_env.adapters.v1 import ReasoningGymTaskset as ReasoningGymTaskset
    from rg_env.adapters.v1 import SingleTurnEnv as SingleTurnEnv
    from rg_env.adapters.v1 import SingleTurnHarness as SingleTurnHarness
    from rg_env.adapters.v1 import load_environment as load_environment
    from rg_env.core.environment import Environment as Environment
    from rg_env.core.environment import ReasoningGym as ReasoningGym
    from rg_env.core.grading.extraction import extract as extract
    from rg_env.core.grading.scoring import Rollout as Rollout
    from rg_env.core.grading.scoring import Score as Score
    from rg_env.core.rewards import reward as reward
    from rg_env.core.user_code import import_user_code as import_user_code
    from rg_env.evaluation.rescore import grade as grade

# Verifiers' v1 loader reads this list and accepts exactly one taskset, one harness and one environment.
__all__ = ["ReasoningGymTaskset", "SingleTurnEnv", "SingleTurnHarness"]
_MODULES = {
    # For the last two names, `_path_of` may return adapters.v0 or core.environment instead.
    "adapters.v1": [
        "ReasoningGymTaskset",
        "SingleTurnEnv",
        "SingleTurnHarness",
        "load_environment",
        "ReasoningGymEnv",
    ],
    "core.environment": ["Environment", "ReasoningGym"],
    "core.grading.extraction": ["extract"],
    "core.grading.scoring": ["Rollout", "Score"],
    "core.rewards.registry": ["reward"],
    "core.user_code": ["import_user_code"],
    "evaluation.rescore": ["grade"],
}
_LAZY = {name: f"rg_env.{module}" for module, names in _MODULES.items() for name in names}
_ERRORS = [name for name, value in vars().items() if isinstance(value, type) and issubclass(value, RGEnvError)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return installed_version("rg-env")
    if name in _LAZY:
        return getattr(_module_of(name), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _module_of(name: str) -> ModuleType:
    path = _path_of(name)
    try:
        return import_module(path)
    except (AttributeError, ImportError, TypeError) as error:
        if not path.startswith("rg_env.adapters.v") or isinstance(error, RGEnvError):
            raise
        # An AttributeError would make Verifiers' loader report that this package does not export a taskset.
        raise MissingExtraError(f"rg_env.{name} {_cause(path)}: {error}") from error


def _path_of(name: str) -> str:
    """Return the path of the module that defines a public name. The path may depend on the Verifiers release."""
    path = _LAZY[name]
    if name not in ("load_environment", "ReasoningGymEnv"):
        return path
    if _has("verifiers", "SingleTurnEnv"):
        return "rg_env.adapters.v0"
    return "rg_env.core.environment" if name == "load_environment" and not _has("verifiers", "__name__") else path


def _cause(path: str) -> str:
    """Return the reason an adapter cannot be imported, with a remedy if one is known."""
    found = installed_version("verifiers")
    if not found:
        return "needs verifiers, which is not installed (run `pip install verifiers`, or use rg_env.ReasoningGym)"
    if path.startswith("rg_env.adapters.v1") and not _has("verifiers.v1", "TaskData"):
        return f"needs the v1 API of Verifiers, which verifiers {found} lacks (install 0.2.1 or later)"
    return f"cannot be imported with verifiers {found}"


def _has(module: str, name: str) -> bool:
    """Whether a Verifiers module defines `name`, or cannot be imported because of another package."""
    try:
        return hasattr(import_module(module), name)
    except ImportError as error:
        return not (error.name or "").startswith("verifiers")


def __dir__() -> list[str]:
    return sorted([*_LAZY, *_ERRORS, "__version__", "__doc__", "__name__", "__path__"])
