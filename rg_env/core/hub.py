"""The Hugging Face Hub: its availability, valid names of models, repositories and branches, and the push command.

Config modules import this module, so it imports huggingface_hub only when a function needs it.
"""

import re
from pathlib import Path
from typing import Literal

from rg_env.core.text import one_line, reason_of
from rg_env.errors import InputError

_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)*")
_MOST = 96

LOGIN = "set HF_TOKEN in .env, or run `hf auth login` (with a write token: huggingface.co/settings/tokens)"
OptimizerState = Literal["none", "full"]


def push_arguments(
    path: Path,
    repo_id: str,
    private: bool = False,
    optimizer_state: OptimizerState = "none",
    revision: str | None = None,
    card: Path | None = None,
) -> list[str]:
    """Return the command-line arguments of `rg-env` that publish a model, as `rg_env.publish.push.push` does."""
    state = ["--optimizer-state", optimizer_state] if optimizer_state != "none" else []
    branch = ["--revision", revision] if revision else []
    text = ["--card", str(card)] if card else []
    return ["push", str(path), "--repo-id", repo_id, *(["--private"] if private else []), *state, *branch, *text]


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
