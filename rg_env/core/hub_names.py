"""What repositories and branches on the Hub may be called. Imports nothing, for configs are checked with it."""

import re

_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)*")
_MOST = 96


def repo_problem(repo_id: str) -> str | None:
    """Why this is no name of a repository; None if it is one."""
    parts = repo_id.split("/")
    if len(parts) != 2 or not all(map(_PART.fullmatch, parts)):
        return "is no repository: USER/NAME, of letters, digits, '-', '_' and '.'"
    if "--" in repo_id or ".." in repo_id or repo_id.endswith(".git") or len(repo_id) > _MOST:
        return f"is no repository that the Hub takes: no '--' or '..', no '.git' at its end, {_MOST} characters at most"
    return None


def revision_problem(revision: str) -> str | None:
    """Why this is no name of a branch that can be written to; None if it is one."""
    if not _BRANCH.fullmatch(revision) or ".." in revision or revision.endswith((".", ".lock")):
        return "is no name of a branch: letters, digits, '-', '_', '.' and '/'"
    if re.fullmatch(r"[0-9a-f]{40}", revision) or revision.startswith("refs/"):
        return "is a commit or a reference, which nothing can be written to: name a branch"
    return None
