"""The trainer, its configuration, and a run's files. Needs the `train` extra.

Names are imported on first use, so that `import rg_env.training` is cheap.
"""

import logging
from importlib import import_module
from typing import Any

from rg_env.errors import MissingExtraError, how_to_install

_NAMES = {
    "Curriculum": "rg_env.training.curriculum",
    "CurriculumConfig": "rg_env.training.config.schema",
    "EvaluationPlan": "rg_env.training.evaluation",
    "EngineConfig": "rg_env.training.config.schema",
    "GRPOConfig": "rg_env.training.config.grpo",
    "LoggingConfig": "rg_env.training.config.schema",
    "GRPOTrainer": "rg_env.training.trainer",
    "MonitorCallback": "rg_env.training.monitors",
    "MonitorsConfig": "rg_env.training.config.schema",
    "Policy": "rg_env.inference.models",
    "best_device": "rg_env.inference.models",
    "choose_folder": "rg_env.training.collectives",
    "default_config": "rg_env.training.config.grpo",
    "TrainConfig": "rg_env.training.config.schema",
    "evaluate_config": "rg_env.training.from_config",
    "evaluate_only": "rg_env.training.evaluation",
    "load_policy": "rg_env.inference.models",
    "load_rows": "rg_env.core.data.user_rows",
    "load_train_config": "rg_env.training.config.load",
    "run_config": "rg_env.training.from_config",
    "run_name": "rg_env.core.run_folder",
    "split_rows": "rg_env.core.data.user_rows",
    "token_logps": "rg_env.training.algorithms.logprobs",
    "train": "rg_env.training.run",
}

# On machines without a GPU, DeepSpeed's first import logs a warning, although rg_env works correctly there.
logging.getLogger("DeepSpeed").addFilter(lambda record: record.funcName != "get_accelerator")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_NAMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rg_env"):
            raise
        what = f"training needs {error.name}, which is not installed: {how_to_install('train')}"
        raise MissingExtraError(what) from None


def __dir__() -> list[str]:
    return sorted(_NAMES)
