"""Requests to publish on the Hugging Face Hub, and checks of its availability and of model, repository and branch
names.

Config modules import this module, so it imports huggingface_hub only when a function needs it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Literal

from rg_env.core.processes import entered
from rg_env.core.text import one_line, reason_of
from rg_env.errors import InputError

_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)*")
_MOST = 96

LOGIN = "set HF_TOKEN in .env, or run `hf auth login` (with a write token: huggingface.co/settings/tokens)"
OptimizerState = Literal["none", "full"]


@dataclass(frozen=True)
class PushRequest:
    """A request to publish a model on the Hub."""

    path: Path
    """Folder that contains a run (whose last checkpoint is published), a checkpoint or a model."""
    repo_id: str
    private: bool = False
    optimizer_state: OptimizerState = "none"
    """"full" uploads everything needed to resume training, regardless of which trainer wrote the checkpoint."""
    revision: str | None = None
    """Branch to upload to. Default: the main branch."""
    base: str | None = None
    """Base model (a folder, or a name on the Hub). Default: the base model recorded by the checkpoint or its run."""

    @property
    def full(self) -> bool:
        return self.optimizer_state == "full"

    @property
    def arguments(self) -> list[str]:
        """Command-line arguments for `rg-env`."""
        given = {"--optimizer-state": "full" if self.full else None, "--revision": self.revision, "--base": self.base}
        options = [word for option, value in given.items() if value for word in (option, value)]
        return ["push", str(self.path), "--repo-id", self.repo_id, *(["--private"] if self.private else []), *options]

    @property
    def command(self) -> str:
        """The equivalent shell command."""
        return join([entered("rg-env"), *self.arguments])


def hub_answers() -> bool:
    """Whether the Hub can be reached. Without this check, libraries would retry each file and take almost a minute to
    fail."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return False
    try:
        urlopen(Request(ENDPOINT, method="HEAD"), timeout=5).close()
    except HTTPError:
        return True  # any HTTP response means that the Hub can be reached
    except (OSError, ValueError):
        return False
    return True


def note_on_model(name: str) -> str | None:
    """Return a note if a model on the Hub could not be checked, or None if the model exists in the cache or on the Hub.

    Raises:
        InputError: the Hub does not have the model, or does not grant access to it.
    """
    from huggingface_hub import model_info, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    shown = repr(one_line(name))
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return None
        if not hub_answers():
            return f"the model {shown} was not checked: it is not in the cache, and the Hub cannot be reached"
        model_info(name, timeout=5)
    except (RepositoryNotFoundError, HFValidationError):
        remedy = f"if the model is private, {LOGIN}"
        raise InputError(f"model.name: {shown} is neither a folder nor a model on the Hub; {remedy}") from None
    except (HfHubHTTPError, OSError) as error:
        return f"the model {shown} was not checked: {reason_of(error)}"
    return None


def repo_problem(repo_id: str) -> str | None:
    """Return the reason why `repo_id` is not a valid repository name, or None if it is valid."""
    parts = repo_id.split("/")
    is_plain = len(parts) == 2 and all(map(_PART.fullmatch, parts)) and len(repo_id) <= _MOST
    if is_plain and "--" not in repo_id and ".." not in repo_id and not repo_id.endswith(".git"):
        return None
    return (
        "is not a repository name: use USER/NAME with letters, digits, '-', '_' and '.', but without '--' or '..', "
        f"not ending in '.git', and with at most {_MOST} characters"
    )


def revision_problem(revision: str) -> str | None:
    """Return the reason why `revision` is not a valid name for a writable branch, or None if it is valid."""
    if not _BRANCH.fullmatch(revision) or ".." in revision or revision.endswith((".", ".lock")):
        return "is not a branch name: use letters, digits, '-', '_', '.' and '/'"
    if re.fullmatch(r"[0-9a-f]{40}", revision) or revision.startswith("refs/"):
        return "is a commit or a reference, which cannot be written to: use a branch"
    return None
