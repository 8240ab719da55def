"""`rollouts.jsonl`: a line a rollout, appended as soon as it is made; what a crash broke off is taken away again.

The answers to external benchmarks are kept in the same way, under keys of their own.
"""

import json
import os
from collections.abc import Iterator, Set
from pathlib import Path
from typing import IO, Any

from rg_env.errors import InputError

_NEEDED = {"model", "task", "row", "rollout", "status", "reward", "truncated", "prompt_tokens", "completion_tokens"}


class RolloutFile:
    """Reads what there is, then appends. One at a time writes into a file.

    Raises:
        InputError: it cannot be opened, or holds something else than rollouts.
    """

    def __init__(self, path: Path, needed: Set[str] = _NEEDED):
        self.path, self._needed = path, needed
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "RolloutFile":
        try:
            self._file = self.path.open("a+b")
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error
        self._end_at_last_line()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file
        self._file.close()

    def records(self) -> Iterator[dict[str, Any]]:
        """What was written before, in order. One at a time is in memory."""
        yield from read_rollouts(self.path, self._needed)

    def append(self, record: dict[str, Any]) -> None:
        """A whole line at once: an interrupt leaves all of it, or what the next start takes away."""
        assert self._file
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self._file.write(text.encode("utf-8", "backslashreplace") + b"\n")
        self._file.flush()

    def _end_at_last_line(self) -> None:
        """Cut off a last line that does not end."""
        assert self._file
        end = self._file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 2**16)
            self._file.seek(start)
            block = self._file.read(end - start)
            if (found := block.rfind(b"\n")) >= 0:
                self._file.truncate(start + found + 1)
                return
            end = start
        self._file.truncate(0)


def read_rollouts(path: Path, needed: Set[str] = _NEEDED) -> Iterator[dict[str, Any]]:
    """The records of a file, one after another; a last line that does not end is none.

    Args:
        needed: the keys that each of them has.

    Raises:
        InputError: it cannot be read; a line is damaged.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                yield _record(line, f"{path}:{number}", needed)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _record(line: bytes, where: str, needed: Set[str]) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not record.keys() >= needed:
        raise InputError(f"{where} is no rollout of rg-env eval: take the line out, and go on")
    return record
