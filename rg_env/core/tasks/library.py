"""Access to reasoning_gym: importing it, building its datasets, and converting values to JSON and back.

Only this module imports `reasoning_gym`, and only when one of its functions is called, because the import takes about
2.5 s. If a user's options cause an error in the library, the caller receives an `InputError` that names the task and
its options.
"""

import contextlib
import dataclasses
import datetime
import importlib.util
import io
import json
import random
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from rg_env.core.text import reason_of, shortened, user_error
from rg_env.errors import InputError

_IMPORT = threading.Lock()
NOT_A_TASK = "composite"
"""The library's own mixture, which is registered like a task. `Mixture` replaces it."""


def factory() -> ModuleType:
    """Return `reasoning_gym.factory` with every task registered."""
    with _IMPORT, warnings.catch_warnings():  # one thread would restore the filters while another still imports
        # cellpylib, a dependency of game_of_life, causes warnings about invalid escapes and about literals compared
        # with `is`.
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        import reasoning_gym.factory
    return reasoning_gym.factory


def import_only(task: str, module: str) -> None:
    """Import only the `module` for `task`, in a few tenths of a second instead of 2.5 s.

    matplotlib (a dependency of one task) and sympy account for most of the full import time. Use this function only in
    child processes that generate rows or check options, because it creates the packages without running their
    `__init__`, which would import everything. If the partial import fails, the entire library is imported.
    """
    try:
        for depth in (1, 2):  # reasoning_gym and reasoning_gym.<category>
            package = ".".join(module.split(".")[:depth])
            if package not in sys.modules:
                sys.modules[package] = _package_without_init(package)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("reasoning_gym.coaching")  # must precede factory because each imports the other
            importlib.import_module(module)
        if task in factory().DATASETS:
            return
    except ImportError:
        pass
    for name in [name for name in sys.modules if name.partition(".")[0] == "reasoning_gym"]:
        del sys.modules[name]
    factory()


def _package_without_init(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"no package {name}")
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    return package


def task_names() -> list[str]:
    """Return the task names in the installed library, sorted."""
    return sorted(name for name in factory().DATASETS if name != NOT_A_TASK)


def dataset_class(task: str) -> tuple[type[Any], type[Any]]:
    """Return the library's dataset class and config class for `task`, which must exist."""
    dataset_cls, config_cls = factory().DATASETS[task]
    return dataset_cls, config_cls


def curriculum_levels(task: str) -> dict[str, list[dict[str, Any]]]:
    """Return, for each attribute of the task's curriculum, the options that each level sets. The result is empty if the
    task does not have a curriculum."""
    module = factory()
    if not module.has_curriculum(task):
        return {}
    levels: dict[str, list[dict[str, Any]]] = {}
    for name, attribute in module.create_curriculum(task).attributes.items():
        assert attribute.default_level == 0, "rg_env.core.tasks.task_table assumes level 0 for unnamed attributes"
        names = ("field_name", "lower_field_name", "upper_field_name")  # of a scalar, or of a range
        fields = [getattr(attribute, each) for each in names if hasattr(attribute, each)]
        levels[name] = []
        for level in range(len(attribute.levels)):
            curriculum = module.create_curriculum(task)
            curriculum.set_attr_level(name, level)
            config = curriculum.generate_configuration()
            levels[name].append({field: getattr(config, field) for field in fields})
    return levels


def create(task: str, config: Mapping[str, Any], *, seed: int, size: int) -> Any:
    """Create the library's dataset for `task` with `config`. Raises `InputError` if the library rejects the options."""
    library_config = task_config(task, config, seed=seed, size=size)
    try:
        with quiet():
            return dataset_class(task)[0](config=library_config)
    except Exception as error:  # the library can raise any exception, mostly assertions without a message
        raise bad_options(task, config, error) from error


def task_config(task: str, config: Mapping[str, Any], **rows: int) -> Any:
    """Create the library's config object for `task`. `rows` contains the config's `seed` and `size`, which default to
    the library's own values. Raises `InputError` if the library rejects the options."""
    config_cls = dataset_class(task)[1]
    try:
        defaults = config_cls()
        typed = {option: from_plain(value, getattr(defaults, option)) for option, value in config.items()}
        library_config = config_cls(**typed, **rows)
        if hasattr(library_config, "validate"):
            library_config.validate()
    except Exception as error:
        raise bad_options(task, config, error) from error
    return library_config


def bad_options(task: str, config: Mapping[str, Any], error: BaseException) -> InputError:
    """Return a one-line `InputError` for options that the library rejected."""
    is_library = dataset_class(task)[0].__module__.startswith("reasoning_gym.")
    reason = reason_of(error) if is_library else user_error(error)
    options = json.dumps(dict(config), default=to_plain)
    return InputError(f"task {task!r} does not work with config {options}: {reason}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the library's side effects: printing (codeio) and changes to the global random states (list_functions
    draws from Python's, and pool_matrix seeds numpy's)."""
    state = random.getstate()
    numpy_random = sys.modules["numpy"].random if "numpy" in sys.modules else None
    numpy_state = numpy_random.get_state() if numpy_random else None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        random.setstate(state)
        if numpy_random:
            numpy_random.set_state(numpy_state)


def to_plain(value: Any) -> Any:
    """Return the JSON form of dates, sets, dataclasses and numpy values, as the `default` hook for `json.dumps`."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return value.tolist()
    return str(value)


def from_plain(value: Any, default: Any) -> Any:
    """Return an option's `value` from a config, converted to the type of the library's `default` for that option."""
    if isinstance(value, str) and type(default) in (int, float):
        raise InputError(f"{shortened(value)} must be a number, like the default {default}")
    if isinstance(value, str) and isinstance(default, datetime.date | datetime.time):
        return type(default).fromisoformat(value)
    if isinstance(value, list) and isinstance(default, tuple):
        return tuple(value)
    if isinstance(value, Mapping) and dataclasses.is_dataclass(default) and not isinstance(default, type):
        return dataclasses.replace(default, **value)
    return value
