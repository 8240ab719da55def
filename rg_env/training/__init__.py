"""Training: the trainer, the policy it trains, and what a run leaves behind. Needs the `train` extra.

Names are resolved lazily: `import rg_env.training` costs nothing.
"""

from importlib import import_module
from typing import Any

from rg_env.errors import MissingExtraError

_NAMES = {
    "Curriculum": "rg_env.training.curriculum",
    "CurriculumConfig": "rg_env.training.config_sections",
    "EvaluationPlan": "rg_env.training.evaluation_plan",
    "EngineConfig": "rg_env.training.config_sections",
    "GRPOConfig": "rg_env.training.grpo_config",
    "LoggingConfig": "rg_env.training.config_sections",
    "GRPOTrainer": "rg_env.training.trainer",
    "MonitorCallback": "rg_env.training.monitor_callback",
    "MonitorsConfig": "rg_env.training.config_monitors",
    "Policy": "rg_env.inference.policy",
    "LaunchOptions": "rg_env.training.launch",
    "best_device": "rg_env.inference.policy",
    "default_config": "rg_env.training.default_arguments",
    "TrainConfig": "rg_env.training.config",
    "evaluate_config": "rg_env.training.config_run",
    "evaluate_only": "rg_env.training.standalone_eval",
    "load_policy": "rg_env.inference.policy",
    "load_train_config": "rg_env.training.config_loading",
    "run_config": "rg_env.training.config_run",
    "run_folder": "rg_env.training.output",
    "run_name": "rg_env.training.output",
    "train": "rg_env.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_NAMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rg_env"):
            raise
        raise MissingExtraError(
            f"training needs {error.name}, which is not installed: `pip install 'rg-env[train]'`, or `uv sync`"
        ) from error


def __dir__() -> list[str]:
    return sorted(_NAMES)
