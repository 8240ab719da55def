"""What a repository says of itself, in `rg_env.json`: which run it holds, and which of its files are ours.

By that a later push knows whether it may write there, and what it may take away.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rg_env.core.json_values import json_values, text_of, whole_of

MARKER = "rg_env.json"
_FORMAT = "rg_env.pushed/1"


@dataclass(frozen=True)
class Marker:
    """Of a repository that was pushed."""

    run: str
    """Which run, or which weights: see `record.Record.id`."""
    step: int | None
    card: str
    """Git's hash of the card: one that differs was edited there."""
    files: tuple[str, ...]
    """Paths that were pushed."""

    def as_json(self) -> bytes:
        values: dict[str, Any] = {"format": _FORMAT, "run": self.run, "step": self.step, "card": self.card}
        return (json.dumps({**values, "files": list(self.files)}, indent=1, ensure_ascii=True) + "\n").encode()


def read_marker(content: bytes) -> Marker | None:
    """None: it is not one of ours."""
    try:
        values = json_values(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        return None
    run, card, files = text_of(values.get("run")), text_of(values.get("card")), values.get("files")
    if run is None or card is None or not isinstance(files, list) or not all(isinstance(each, str) for each in files):
        return None
    return Marker(run, whole_of(values.get("step")), card, tuple(files))


def git_hash(content: bytes) -> str:
    """Git's name of a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def weights_id(files: Sequence[tuple[str, str]]) -> str:
    """Which weights these are, where no run tells: of the names of their files, and their SHA-256."""
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()
