"""Importing the user's own code: modules and .py files that register tasks and rewards.

    import_user_code(["my_package.rewards", "tasks/robots.py"], base=Path("configs/train"))

A config lists modules and files under `imports:`, and a script calls `import_user_code` directly. No other user code is
ever imported. A hash of each imported source is recorded, so that worker processes import the same code (`import_same`)
and cached rows are not reused after the source has changed (`core.data.row_cache`).

A .py file is imported as a module named after the file. The file's folder is not added to `sys.path`. To share code
between files, put the shared code in an installed package or on PYTHONPATH. A file that is already loaded, such as the
running script, is not loaded again.

Tasks are datasets registered with Reasoning Gym by the user's module:

    register_dataset("robots", RobotsDataset, RobotsConfig, RobotsCurriculum)     # reasoning_gym.factory

A user's task needs:

- A config dataclass with the fields `seed` and `size`, and with a default for every field.
- Items that depend only on (config, seed + index), so that the same spec yields the same rows on every machine.
- A `score_answer(answer, entry)` method that accepts the entry after a round trip through JSON, in which tuples become
  lists and keys become strings.

Generate each item on demand because datasets are created with a `size` of 20,000. `score_answer` runs in a worker
process with a time limit of `core.grading.scoring.UPSTREAM_WALL_S` seconds, which does not include the dataset's
`__init__`.
"""

import contextlib
import dataclasses
import hashlib
import hmac
import importlib
import importlib.util
import json
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from rg_env.core.files import regular
from rg_env.core.tasks import library
from rg_env.core.tasks.task_table import SET_BY_ROWS, add_user_task, is_user_task, make_entry, shipped_table
from rg_env.core.text import one_line, shortened, user_error
from rg_env.errors import InputError

CATEGORY = "user"
_KEY_BYTES = 32

_sources: dict[str, str] = {}
"""Source hash of each imported file (by absolute path) or module (by name)."""


def import_user_code(names: Sequence[str], base: str | Path = ".") -> None:
    """Import modules ("my_package.tasks") and .py files (paths relative to the folder `base`).

    Tasks that the imported code registers with Reasoning Gym are added to the task table.

    Raises:
        InputError: a module or file does not exist, raises an error (reported with file and line), or registers an
            invalid task.
    """
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        advice = f": write [{names!r}]" if isinstance(names, str) else ""
        raise InputError(f"imports must be a list of modules and .py files, not {shortened(names)}{advice}")
    for name in names:
        key = os.path.abspath(os.path.join(base, name)) if name.endswith(".py") else name
        if key not in _sources:
            module = _imported(key)
            _register_new_tasks(key)
            _sources[key] = _hash_of(module)


def sources() -> dict[str, str]:
    """Return the SHA-256 hash of each imported module's or file's source. For a module in a package, the hash covers
    all .py files in the top-level package."""
    return dict(_sources)


def import_unchanged(expected: Mapping[str, str]) -> None:
    """Import the modules, and the .py files that have the same content as when `sources` returned `expected`. Other
    files, and imports that fail, are left out."""
    for name, source in expected.items():
        with contextlib.suppress(InputError, OSError):
            data = regular(name).read_bytes() if name.endswith(".py") else b""
            if not data or hashlib.sha256(b"%d:" % len(data) + data).hexdigest() == source:
                import_user_code([name])


def import_same(expected: Mapping[str, str]) -> None:
    """Import, in a child process, the modules and files that `sources` returned in the parent.

    Raises:
        InputError: an import fails (see `import_user_code`), or a source has been edited since it was imported in the
            parent.
    """
    for name, source in expected.items():
        import_user_code([name])
        if _sources[name] != source:
            raise InputError(f"{name} was edited while the program was running: restart the program")


def _imported(name: str) -> ModuleType:
    is_file = name.endswith(".py")
    if is_file and not os.path.isfile(name):
        raise InputError(f"imports: there is no file {name}")
    if not is_file and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        raise InputError(f"imports: {name!r} is neither a module (my_package.tasks) nor a path that ends in .py")
    try:
        return _from_file(name) if is_file else importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # includes SystemExit and user-defined BaseExceptions
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"imports: there is no module {name!r}; install it, put its folder on PYTHONPATH, or name its .py file"
            ) from error
        raise InputError(f"imports: {name} cannot be imported: {user_error(error)}") from error


def _from_file(path: str) -> ModuleType:
    """Return the module defined by the file, which is run unless it is already loaded."""
    base, real = os.path.basename(path), os.path.realpath(path)
    for loaded in list(sys.modules.values()):
        file = getattr(loaded, "__file__", None)
        if isinstance(file, str) and os.path.basename(file) == base and os.path.realpath(file) == real:
            return loaded
    module = ModuleType(_free_name(path))
    module.__file__ = path
    # Register the module before it runs because dataclasses and pickle look it up in `sys.modules`.
    sys.modules[module.__name__] = module
    try:
        # No bytecode file is written, because its timestamp is accurate only to a second, and it would clutter the
        # folder.
        exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _free_name(path: str) -> str:
    """Return a module name for the file: the file's stem, with a hash if another module has that name."""
    stem = re.sub(r"\W", "_", Path(path).stem)
    if stem in sys.modules or importlib.util.find_spec(stem) is not None:
        return f"{stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    return stem


def _hash_of(module: ModuleType) -> str:
    """Return a hash of all .py files in the module's top-level package, or of the module's own file. A module without a
    file has the hash of empty input."""
    outermost = sys.modules.get(module.__name__.partition(".")[0], module)
    folders = [Path(folder) for folder in getattr(outermost, "__path__", ())]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py")) if file.is_file()]
    if not files and isinstance(getattr(module, "__file__", None), str):
        files = [Path(str(module.__file__))]
    digest = hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        digest.update(b"%d:" % len(data) + data)
    return digest.hexdigest()


# Seals


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` (JSON values) with a seal that distinguishes this user's runs from downloaded folders.

    A run's folder names files outside of itself: code that was imported, and data. An evaluation uses them only if they
    are sealed, because a stranger's folder could name any file. The seal is an HMAC with a key that never leaves this
    user's state folder (`rg-env/key` in `XDG_STATE_HOME` or `~/.local/state`). Without such a folder, there is no seal.
    """
    key = _seal_key(create=True)
    return {**values, "seal": _seal(values, key)} if key else dict(values)


def opened(values: object) -> dict[str, Any]:
    """Return the values without their seal, or {} unless this user sealed them."""
    if not isinstance(values, Mapping) or not isinstance(seal := values.get("seal"), str):
        return {}
    rest = {name: value for name, value in values.items() if name != "seal"}
    key = _seal_key()
    try:
        return rest if key and hmac.compare_digest(seal.encode(), _seal(rest, key).encode()) else {}
    except (TypeError, ValueError):  # not JSON values
        return {}


def _seal(values: Mapping[str, Any], key: bytes) -> str:
    return hmac.new(key, json.dumps(values, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _seal_key(*, create: bool = False) -> bytes | None:
    try:
        file = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "rg-env" / "key"
        if create and not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb") as new:
                new.write(secrets.token_bytes(_KEY_BYTES))
        status = file.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:  # someone else could have read or written it
            return None
        key = file.read_bytes()
        return key if len(key) == _KEY_BYTES else None
    except (OSError, RuntimeError):  # a missing home folder causes a RuntimeError
        return None


# Tasks


def _register_new_tasks(source: str) -> None:
    """Add to the task table the tasks that the user's code in `source` registered with the library."""
    factory = sys.modules.get("reasoning_gym.factory")
    for task, classes in factory.DATASETS.items() if factory else ():
        if is_user_task(task) or all(cls.__module__.partition(".")[0] == "reasoning_gym" for cls in classes):
            continue
        if not isinstance(task, str) or not re.fullmatch(r"\w[\w.-]{0,79}", task) or task in shipped_table():
            raise InputError(
                f"imports: {source} registers a task with the invalid name {task!r}: use letters, digits, '_', '-' and "
                "'.', and do not reuse the name of a library task"
            )
        add_user_task(task, _entry_of(task, source, classes[1]))


def _entry_of(task: str, source: str, config_cls: Any) -> Any:
    where = f"imports: task {task!r} from {source}"
    fields = {field.name for field in dataclasses.fields(config_cls)}
    for name in SET_BY_ROWS:
        if name not in fields:
            raise InputError(f"{where}: its config {config_cls.__name__} lacks the required field {name!r}")
    try:
        return make_entry(task, CATEGORY, {})
    except Exception as error:  # the user's classes may lack defaults, or have a curriculum with unknown fields
        raise InputError(
            f"{where}: its config {config_cls.__name__} or its curriculum cannot be read: "
            f"{type(error).__name__}: {one_line(error)}"
        ) from error


class _Item(BaseModel):
    question: str = Field(pattern=r"\S")
    answer: str | None
    metadata: dict[Any, Any] = {}


def checked_entry(task: str, entry: object) -> dict[str, Any]:
    """Validate an item of the user's dataset, and convert it to a JSON-compatible entry with question, answer and
    metadata.

    Raises:
        InputError: the item is invalid. The error message names the task and its class.
    """
    cls = library.dataset_class(task)[0]
    where = f"task {task!r} ({cls.__module__}.{cls.__qualname__}): an item"
    if not isinstance(entry, Mapping):
        raise InputError(f"{where} must be a dict with question and answer, not {shortened(entry)}")
    try:
        _Item.model_validate(dict(entry), strict=True)
        whole: dict[str, Any] = json.loads(
            json.dumps({**entry, "metadata": entry.get("metadata", {})}, default=library.to_plain)
        )
    except ValidationError as error:
        first = error.errors()[0]
        what = f"{'.'.join(map(str, first['loc']))} = {shortened(first['input'])}: {first['msg']}"
        raise InputError(f"{where} has an invalid or missing value: {what}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where} cannot be written as JSON: {error}") from error
    return whole
