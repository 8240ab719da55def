"""Training: the trainer, the policy it trains, and what a run leaves behind. Needs the `train` extra.

Names are resolved lazily, so that `from rg_env.training import tiny` costs nothing.
"""

from importlib import import_module
from typing import Any

from rg_env.errors import MissingExtraError

_NAMES = {
    "Curriculum": "curriculum",
    "CurriculumConfig": "config_sections",
    "EvaluationPlan": "evaluation_plan",
    "GRPOConfig": "arguments",
    "GRPOTrainer": "trainer",
    "MonitorCallback": "monitor_callback",
    "MonitorsConfig": "config_monitors",
    "Policy": "policy",
    "LaunchOptions": "launch",
    "best_device": "policy",
    "default_config": "policy",
    "TrainConfig": "config",
    "evaluate_config": "from_config",
    "evaluate_only": "standalone_eval",
    "load_policy": "policy",
    "load_train_config": "config",
    "run_config": "from_config",
    "run_folder": "output",
    "run_name": "output",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rg_env"):
            raise
        raise MissingExtraError(
            f"training needs {error.name}, which is not installed: `pip install 'rg-env[train]'`, or `uv sync`"
        ) from error


def __dir__() -> list[str]:
    return sorted(_NAMES)
