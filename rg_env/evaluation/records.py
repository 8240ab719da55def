"""The record of a rollout, and the file that an evaluation appends its records to.

{"model", "draw": "sampled" or "greedy", "part", "task": name or label, "level", "row": hash of the question, "problem":
 its number, "rollout": number of the answer, "question", "answer": the gold one, "completion", "reasoning",
 "prompt_tokens", "completion_tokens", "truncated", "extracted", "score", "correct", "reward", "rewards": {name: value},
 "status", "detail", "error", "seconds"}

`record_of` makes what follows from rollout and score; whoever asked adds the rest. A call that failed for good is a
wrong answer with the status "failed" and its reason under `error`. Answers to external benchmarks are kept in a file of
the same kind, with keys of their own.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rg_env.core.grading.rollout import Rollout
from rg_env.core.grading.rubric import Scored
from rg_env.errors import InputError, OutputFolderError

LEVEL = "rg_level"
"""Key of a row's `info`: the curriculum level of its question, as text."""


def record_of(rollout: Rollout, scored: Scored) -> dict[str, Any]:
    """A scored rollout as JSON values."""
    level, correct = rollout.info.get(LEVEL), scored.metrics.get("accuracy")
    score = rollout.score if "status/wrong" in scored.metrics else None
    prompt = rollout.prompt
    return {
        "task": rollout.task,
        **({} if level is None else {"level": int(level)}),
        "question": rollout.row.get("question") or (prompt if isinstance(prompt, str) else prompt[-1]["content"]),
        "answer": rollout.answer,
        "completion": rollout.text,
        "completion_tokens": rollout.completion_tokens,
        "truncated": rollout.truncated,
        "extracted": score.answer if score else None,
        "score": score.value if score else None,
        "correct": None if correct is None else correct == 1.0,
        "reward": scored.reward,
        "rewards": scored.rewards,
        "status": score.status if score else None,
        "detail": score.detail if score else "",
    }


class RecordFile:
    """Reads the records of a file, then appends to it. One process at a time may write.

    Args:
        needed: keys that each record must have.

    Raises:
        InputError: it cannot be opened, or another evaluation is writing it.
    """

    def __init__(self, path: Path, needed: frozenset[str]):
        self.path, self._needed = path, needed
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "RecordFile":
        try:
            self._file = self.path.open("a+b")
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.close()
            raise InputError(f"cannot write {self.path}: not a regular file")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise InputError(f"another evaluation is writing {self.path}: wait until it ends, or stop it") from error
        except OSError:  # a file system without locks
            pass
        self._remove_broken_end()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._file
        with contextlib.suppress(*([OSError] if kind else [])):  # a full disk was reported before
            self._file.close()

    def append(self, record: dict[str, Any]) -> None:
        """Write a whole line at once: after an interrupt it is there, or the next start removes what is there of it.

        Raises:
            OutputFolderError: the file was removed.
            OSError: the disk is full.
        """
        assert self._file
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        try:
            self._file.write(text.encode("utf-8", "backslashreplace") + b"\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        if not os.fstat(self._file.fileno()).st_nlink:
            raise OutputFolderError(f"{self.path} was removed during the evaluation: its rollouts are lost")

    def records(self) -> Iterator[dict[str, Any]]:
        """The records written before, in order, one at a time in memory. Raises `InputError` for a damaged line."""
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = json.loads(line)
                    missing = self._needed - record.keys()
                except (ValueError, AttributeError):
                    missing = self._needed
                if missing:
                    raise InputError(f"{self.path}:{number} is damaged: remove the line and use --resume")
                yield record

    def _remove_broken_end(self) -> None:
        """Cut off a last line without an end."""
        assert self._file
        self._file.seek(0)
        whole = 0
        for line in self._file:
            whole += len(line) if line.endswith(b"\n") else 0
        self._file.truncate(whole)
