"""What to publish on the Hugging Face Hub, and valid names there. Imports none of its library: configs use it."""

import re
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Literal

_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)*")
_MOST = 96

LOGIN = "HF_TOKEN in .env, or `hf auth login` (with a write token: huggingface.co/settings/tokens)"
OptimizerState = Literal["none", "full"]


@dataclass(frozen=True)
class PushRequest:
    """What to publish, and where."""

    path: Path
    """A run (its last checkpoint), a checkpoint, or a model folder."""
    repo_id: str
    private: bool = False
    optimizer_state: OptimizerState = "none"
    """"full": with everything that training resumes from, of any trainer."""
    revision: str | None = None
    """A branch; default: the main one."""
    base: str | None = None
    """The model that was trained, if the checkpoint does not name it: a folder, or a name on the Hub."""

    @property
    def full(self) -> bool:
        return self.optimizer_state == "full"

    @property
    def arguments(self) -> list[str]:
        """Those of `rg-env`."""
        words = ["push", str(self.path), "--repo-id", self.repo_id]
        words += ["--private"] if self.private else []
        words += ["--optimizer-state", "full"] if self.full else []
        words += ["--revision", self.revision] if self.revision else []
        return words + (["--base", self.base] if self.base else [])

    @property
    def command(self) -> str:
        """The same as a shell command."""
        return join(["rg-env", *self.arguments])


def repo_problem(repo_id: str) -> str | None:
    """Why this is not a name of a repository; None if it is."""
    parts = repo_id.split("/")
    if len(parts) != 2 or not all(map(_PART.fullmatch, parts)):
        return "is not a repository: USER/NAME, of letters, digits, '-', '_' and '.'"
    if "--" in repo_id or ".." in repo_id or repo_id.endswith(".git") or len(repo_id) > _MOST:
        return f"is not a valid repository: no '--' or '..', no '.git' at its end, {_MOST} characters at most"
    return None


def revision_problem(revision: str) -> str | None:
    """Why this is not a name of a branch that can be written to; None if it is."""
    if not _BRANCH.fullmatch(revision) or ".." in revision or revision.endswith((".", ".lock")):
        return "is not a name of a branch: letters, digits, '-', '_', '.' and '/'"
    if re.fullmatch(r"[0-9a-f]{40}", revision) or revision.startswith("refs/"):
        return "is a commit or a reference, which cannot be written to: name a branch"
    return None
