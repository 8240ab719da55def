"""Errors that rg_env raises. Each error class derives from `RGEnvError` and from a matching built-in exception.

    RGEnvError
    ├── InputError          (ValueError)       invalid user input; exit code 2
    │   ├── UnknownNameError (LookupError)     an unknown task, option, reward or column; suggests similar names
    │   ├── TooFewQuestionsError               a task has fewer distinct questions than requested; reports their number
    │   ├── ConfigError                        invalid keys or values in a config; lists all of them, one per line
    │   └── OutputFolderError (OSError)        the output folder is not writable, or contains another run
    ├── RewardError         (RuntimeError)     a reward function failed or returned a non-finite value
    ├── GenerationError     (RuntimeError)     rows cannot be generated: one took too long, or a process died
    ├── EngineError         (RuntimeError)     generation failed inside the embedded engine
    ├── ServerError         (ConnectionError)  the inference server is unreachable or misconfigured; exit code 2
    │   └── RefusedError                       the server rejected a request (HTTP 4xx); a retry would fail too
    ├── ExportError         (RuntimeError)     a check of a checkpoint or its export failed; nothing was exported
    ├── HubError            (ConnectionError)  an upload did not finish; rerunning the command resumes the upload
    ├── TrainingError       (RuntimeError)     a run cannot continue
    │   └── StoppedTogether                    a process failed; raised in all processes at the same point
    └── MissingExtraError   (ImportError)      an optional dependency is missing; shows how to install it; exit code 2

A message is one line that states the problem, its location and a fix. If a config or a data file has several mistakes,
each mistake has its own line. Commands print the message and exit with the error's `exit_code`.
"""

import difflib
from collections.abc import Iterable
from typing import Self


class RGEnvError(Exception):
    """Base class of all errors that rg_env raises."""

    exit_code = 1


class InputError(RGEnvError, ValueError):
    """Invalid user input, usually found before anything is started or written."""

    exit_code = 2
    keys: tuple[str, ...] = ()
    """Config keys that lead to the invalid value, outermost first. Empty if the error concerns the whole input."""

    def at(self, *keys: str) -> Self:
        """Set the keys that lead to the invalid value, and return the error."""
        self.keys = keys
        return self


class UnknownNameError(InputError, LookupError):
    """An unknown name."""


class TooFewQuestionsError(InputError):
    """A task has fewer distinct questions than requested. `found` is the number of distinct questions."""

    def __init__(self, message: str, found: int = 0):
        super().__init__(message)
        self.found = found


class ConfigError(InputError):
    """Invalid keys or values in a config. The message has one line per problem."""


class OutputFolderError(InputError, OSError):
    """The output folder is not writable, or contains another run."""


class RewardError(RGEnvError, RuntimeError):
    """A reward function raised an exception, or returned something other than a finite number."""


class GenerationError(RGEnvError, RuntimeError):
    """Rows cannot be generated because a row took too long, or a generation process died or did not start."""


class EngineError(RGEnvError, RuntimeError):
    """Generation failed inside the embedded engine."""


class ServerError(RGEnvError, ConnectionError):
    """The inference server is unreachable or misconfigured."""

    exit_code = 2


class RefusedError(ServerError):
    """The server rejected a request (HTTP 4xx). A retry would fail too."""


class ExportError(RGEnvError, RuntimeError):
    """A check of a checkpoint or its export failed, so nothing was exported."""


class HubError(RGEnvError, ConnectionError):
    """An upload to the Hugging Face Hub did not finish. Running the same command again resumes the upload."""


class TrainingError(RGEnvError, RuntimeError):
    """A training run cannot continue."""


class StoppedTogether(TrainingError):
    """A process of a run failed. All processes raise this error at the same point."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


class MissingExtraError(RGEnvError, ImportError):
    """An optional dependency is not installed, or cannot be used (for example, because it is too old)."""

    exit_code = 2


def from_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C caused `error`. Libraries that clean up after Ctrl-C may raise another error while handling the
    interrupt."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()  # exception chains can be circular
    while chain:
        if (link := chain.pop()) is None or id(link) in seen:
            continue
        if isinstance(link, KeyboardInterrupt):
            return True
        seen.add(id(link))
        chain += [link.__cause__, link.__context__]
    return False


def installed_version(package: str) -> str:
    """Return the version of `package`, or "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def install_command(extra: str) -> str:
    """Return the shell command that adds `extra` to this installation from the same source: a folder, wheel, Git
    repository or index."""
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(distribution("rg-env").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # the package is in a source folder on PYTHONPATH
        origin = {"url": Path(__file__).parents[1].as_uri()}
    address = origin.get("url", "")
    if address.startswith("file:") and "vcs_info" not in origin:
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}{shlex.quote(f'{unquote(urlsplit(address).path)}[{extra}]')}"
    source = f" @ {'git+' if 'vcs_info' in origin else ''}{address}" if address else ""
    return f"pip install 'rg-env[{extra}]{source}'"


def repository_command(extra: str) -> str:
    """Return the shell command that installs rg_env with `extra` on any machine. The command uses the repository in the
    package's metadata, because rg_env is not published on a package index."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("rg-env").get_all("Project-URL") or []
    except PackageNotFoundError:  # the package is run from source and is not installed
        urls = []
    address = next((url.partition(", ")[2] for url in urls if url.startswith("Repository,")), "REPOSITORY")
    return f"pip install 'rg-env[{extra}] @ git+{address}'"


def how_to_install(extra: str) -> str:
    """Return instructions for installing a missing `extra` with pip or, in a clone, with the setup script, which
    locates uv."""
    script = "./setup.sh --gpu" if extra == "vllm" else "./setup.sh"
    return f"run `{install_command(extra)}`, or `{script}` in a clone"


_ALMOST_THE_SAME = 0.9


def nearest(name: object, known: Iterable[str], cutoff: float = 0.65) -> list[str]:
    """Return up to three `known` names that are similar to `name`, most similar first. If any are almost identical to
    `name`, return only those names.

    If no name is similar, return names that contain `name` as a word, such as `batch_size` for `batch`.
    """
    known = sorted(known)
    for least in (_ALMOST_THE_SAME, cutoff):
        if found := difflib.get_close_matches(str(name), known, n=3, cutoff=least):
            return found
    return [each for each in known if f"_{name}_" in f"_{each}_"][:3]


def not_single_turn(name: str, why: str) -> InputError:
    """Return an error for an environment called `name` that the trainer cannot run."""
    return InputError(
        f"{name} {why}, but GRPOTrainer supports only single-turn environments; use prime-rl to train on it"
    )


def unknown_name(kind: str, name: object, known: Iterable[str], *, hint: str = "") -> UnknownNameError:
    """Return an `UnknownNameError` that suggests the most similar `known` names.

    Pass `hint` to replace the suggestion when the right name is known.
    """
    known = sorted(known)
    if not hint:
        if near := nearest(name, known):
            hint = f"did you mean {' or '.join(repr(n) for n in near)}?"
        elif len(known) <= 20:
            hint = f"available: {', '.join(known) or 'none'}"
        else:
            hint = (
                "run `rg-env tasks` to list all tasks"
                if kind == "task"
                else f"none of the {len(known)} known names is similar"
            )
    noun, of, owner = kind.partition(" of ")
    return UnknownNameError(f"unknown {noun} {name!r}{of}{owner}: {hint}")
