"""Reading and checking the config of a training run.

    config = load_train_config("configs/train/tiny.yaml", ["training.learning_rate=2e-6"])

Everything that can be known without the model is checked here, and neither torch nor reasoning_gym is imported for it.
"""

from collections.abc import Sequence
from pathlib import Path

from rg_env.core.config.files import Document
from rg_env.core.config.parsing import Problem, config_error, parse_config, read_config
from rg_env.core.distributed_env import world_size
from rg_env.core.user_code import import_user_code
from rg_env.errors import InputError
from rg_env.training.config.checks import problems
from rg_env.training.config.schema import TrainConfig


def load_train_config(file: str | Path, overrides: Sequence[str] = (), *, processes: int | None = None) -> TrainConfig:
    """Read, resolve and check the config of a run, which `processes` train together (default: as many as this is one
    of).

    Raises:
        InputError: a file cannot be read; `processes` is not given, and what a launcher sets is no number.
        ConfigError: wrong keys, types, ranges, names or combinations: all that there are; or what `imports` names
            cannot be imported.
    """
    return checked_config(read_config(file, overrides), processes=processes)


def checked_config(document: Document, *, processes: int | None = None) -> TrainConfig:
    """The config that `document` holds. Raises as `load_train_config`."""
    config = parse_config(document, TrainConfig)
    try:
        import_user_code(config.imports)
    except InputError as error:
        raise config_error(document, [Problem(("imports",), str(error))]) from error
    if found := problems(config, processes or world_size()):
        raise config_error(document, found)
    return config
