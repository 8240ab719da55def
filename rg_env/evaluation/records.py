"""Rollout records, and the file an evaluation appends them to.

{"model", "draw": "sampled" or "greedy", "part", "task": name or label, "level", "row": hash of the question, "problem":
 its index, "rollout": index of the answer, "question", "answer": gold answer, "completion", "reasoning",
 "prompt_tokens", "completion_tokens", "truncated", "extracted", "score", "correct", "reward", "rewards": {name: value},
 "status", "detail", "error", "seconds"}

`record_of` makes the part that depends on rollout and score; the runner adds the rest. A call that failed permanently
is a wrong answer with the status "failed" and the reason in `error`. Answers to external benchmarks are stored in a
file of the same kind, with their own keys.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from rg_env.core.grading.scoring import Rollout
from rg_env.core.rewards import Scored
from rg_env.core.run_folder import damaged, json_lines
from rg_env.errors import InputError, OutputFolderError

LEVEL = "rg_level"
"""Key in a row's `info` for the question's curriculum level, as a string."""
FAILED = "failed"
"""Status of a failed call."""


class Answer(NamedTuple):
    """Record fields used to compute results."""

    correct: bool | None = None
    reward: float = 0.0
    status: str | None = None
    truncated: bool | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    text: str = ""
    """The answer's text; only for external benchmarks, which are graded at the end."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Answer":
        """The answer in a record."""
        return cls(*(record[name] for name in cls._fields[:-1]))


def record_of(rollout: Rollout, scored: Scored) -> dict[str, Any]:
    """A scored rollout as a JSON-compatible dict."""
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
    """A file of records to read and append to. Only one process at a time may write.

    Raises:
        InputError: the file cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file: IO[bytes]

    def __enter__(self) -> "RecordFile":
        try:
            if self.path.exists() and not self.path.is_file():  # a device may never end
                raise InputError(f"cannot write {self.path}: not a regular file")
            self._file = self.path.open("a+b")
            self._file.seek(0)
            self._file.truncate(sum(len(line) for line in self._file if line.endswith(b"\n")))  # drop a partial line
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._file.close()
        except OSError:  # do not hide the error that ended the evaluation
            if kind is None:
                raise

    def append(self, record: dict[str, Any]) -> None:
        """Append a record. A partial line, if the write is interrupted, is dropped when the file is opened again.

        Raises:
            OutputFolderError: the file was removed.
            OSError: the disk is full.
        """
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        try:
            self._file.write(text.encode("utf-8", "backslashreplace") + b"\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        if not os.fstat(self._file.fileno()).st_nlink:
            raise OutputFolderError(f"{self.path} was removed during the evaluation: its rollouts are lost")

    def records(self, *needed: str) -> Iterator[dict[str, Any]]:
        """Iterate over the records, in order, with one in memory at a time.

        Raises:
            InputError: a line is damaged, or does not have all keys in `needed`.
        """
        for record in json_lines(self.path):
            if missing := [key for key in needed if key not in record]:
                raise damaged(self.path, f"a record has no {missing[0]!r}")
            yield record
