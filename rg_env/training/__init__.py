"""GRPO training, with its configuration, checkpoints and reporting. This package needs the `train` extra.

Names are imported on first use, so `import rg_env.training` is cheap.
"""

import logging
from importlib import import_module
from typing import Any

from rg_env.errors import MissingExtraError, how_to_install

_MODULES = {
    "core.data.user_rows": ["load_rows", "split_rows"],
    "core.run_folder": ["run_name"],
    "inference.models": ["Policy", "best_device", "load_policy"],
    "training.algorithms.logprobs": ["token_logps"],
    "training.collectives": ["choose_folder"],
    "training.config.grpo": ["GRPOConfig", "default_config"],
    "training.config.load": ["load_train_config"],
    "training.config.schema": ["CurriculumConfig", "EngineConfig", "LoggingConfig", "MonitorsConfig", "TrainConfig"],
    "training.curriculum": ["Curriculum"],
    "training.evaluation": ["EvaluationPlan", "evaluate_only"],
    "training.from_config": ["evaluate_config", "run_config"],
    "training.monitors": ["MonitorCallback"],
    "training.run": ["train"],
    "training.trainer": ["GRPOTrainer"],
}
_NAMES = {name: f"rg_env.{module}" for module, names in _MODULES.items() for name in names}

# Suppress the warning that DeepSpeed logs when it is first imported on a machine without a GPU: rg_env works without
# one.
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
