"""The errors rg_env raises. All of them can be caught as `RGEnvError`, and each also as the stdlib type it refines.

    RGEnvError
    ├── InputError          (ValueError)       what the user gave cannot work; exit code 2
    │   ├── UnknownNameError (LookupError)     a task, option, reward or column that does not exist; names the nearest
    │   ├── TooFewQuestionsError               a task has fewer distinct questions than requested; with the number
    │   ├── ConfigError                        a config with wrong keys or values: all of them, a line each
    │   └── OutputFolderError (OSError)        the output folder cannot be written, or holds another run
    ├── RewardError         (RuntimeError)     a reward function raised or returned no finite number; exit code 2
    ├── GenerationError     (RuntimeError)     rows cannot be generated: a draw takes too long, a process died
    ├── EngineError         (RuntimeError)     generation failed inside the embedded engine
    ├── ServerError         (ConnectionError)  the inference server is missing, or is not what it should be; exit code 2
    │   └── RefusedError                       it refuses a request (HTTP 4xx), and would refuse it again
    ├── ExportError         (RuntimeError)     the export is not the trained model; nothing is left of it
    ├── HubError            (ConnectionError)  an upload did not finish; the same command resumes it
    ├── TrainingError       (RuntimeError)     a run cannot continue
    │   └── StoppedTogether                    the same, on all processes of a run at the same point
    └── MissingExtraError   (ImportError)      an optional dependency is not installed; gives the command; exit code 2

Messages are one line (`ConfigError`: one per mistake): what is wrong, where, how to fix it. Commands print it and exit
with `exit_code`.
"""

import difflib
from collections.abc import Iterable
from typing import Self


class RGEnvError(Exception):
    """Root of all errors of this package."""

    exit_code = 1


class InputError(RGEnvError, ValueError):
    """What the user gave cannot work; nothing was started or written."""

    exit_code = 2
    keys: tuple[str, ...] = ()
    """Keys of the wrong value in the given mapping, from the top down. Empty: the error is about the whole."""

    def at(self, *keys: str) -> Self:
        """The same error, with its place."""
        self.keys = keys
        return self


class UnknownNameError(InputError, LookupError):
    """A name that does not exist, where a list of names does."""


class TooFewQuestionsError(InputError):
    """A task has fewer distinct questions than requested: `found`."""

    def __init__(self, message: str, found: int = 0):
        super().__init__(message)
        self.found = found


class ConfigError(InputError):
    """A config with wrong keys or values; the message has a line for each."""


class OutputFolderError(InputError, OSError):
    """The output folder cannot be written, or holds another run."""


class RewardError(RGEnvError, RuntimeError):
    """A reward function raised, or returned something other than a finite number."""

    exit_code = 2


class GenerationError(RGEnvError, RuntimeError):
    """Rows cannot be generated: a draw takes too long, or a generation process died."""


class EngineError(RGEnvError, RuntimeError):
    """Generation failed inside the embedded engine."""


class ServerError(RGEnvError, ConnectionError):
    """The inference server is missing, or is not what it should be."""

    exit_code = 2


class RefusedError(ServerError):
    """The server refuses a request (HTTP 4xx): it would refuse it again."""


class ExportError(RGEnvError, RuntimeError):
    """The export is not the trained model; nothing is left of it."""


class HubError(RGEnvError, ConnectionError):
    """An upload to the Hugging Face Hub did not finish; the same command resumes it."""


class TrainingError(RGEnvError, RuntimeError):
    """A training run cannot continue."""


class StoppedTogether(TrainingError):
    """A run cannot continue because its main process failed. All processes raise it at the same point."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


class MissingExtraError(RGEnvError, ImportError):
    """An optional dependency is not installed."""

    exit_code = 2


def from_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C is behind `error`: libraries that clean up after it can raise something else over it."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()  # chains can be circles
    while chain:
        if (link := chain.pop()) is None or id(link) in seen:
            continue
        if isinstance(link, KeyboardInterrupt):
            return True
        seen.add(id(link))
        chain += [link.__cause__, link.__context__]
    return False


def installed_version(package: str) -> str:
    """The version of an installed package; "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def install_command(extra: str) -> str:
    """The shell command that installs rg_env with `extra`, from the repository that the package's metadata names: it is
    on no package index."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("rg-env").get_all("Project-URL") or []
    except PackageNotFoundError:  # run from its sources
        urls = []
    address = next((url.partition(", ")[2] for url in urls if url.startswith("Repository,")), "REPOSITORY")
    return f"pip install 'rg-env[{extra}] @ git+{address}'"


def how_to_install(extra: str) -> str:
    """The remedy for a missing `extra`: pip's command, or the clone's script, which finds uv by itself."""
    script = "./setup.sh --gpu" if extra == "vllm" else "./setup.sh"
    return f"`{install_command(extra)}`, or `{script}` in a clone"


def nearest(name: object, known: Iterable[str], cutoff: float = 0.5) -> list[str]:
    """At most three of the `known` names that are similar to `name`, the most similar first."""
    return difflib.get_close_matches(str(name), sorted(known), n=3, cutoff=cutoff)


def unknown_name(kind: str, name: object, known: Iterable[str], *, hint: str = "") -> UnknownNameError:
    """An `UnknownNameError` that offers the nearest of the `known` names.

    `hint` replaces the offer where the right name is known for certain.
    """
    known = sorted(known)
    if not hint:
        if near := nearest(name, known):
            hint = f"did you mean {' or '.join(repr(n) for n in near)}?"
        elif len(known) <= 16:
            hint = f"there are: {', '.join(known) or 'none'}"
        else:
            hint = "none is near; `rg-env tasks` lists the tasks" if kind == "task" else f"there are {len(known)} names"
    return UnknownNameError(f"unknown {kind} {name!r}: {hint}")
