"""A rollout as it stands in `rollouts.jsonl`: what was asked, answered, extracted, scored and paid.

{"model", "task": name or label, "row": hash of the question, "problem": its number, "rollout": number of the answer,
 "question", "answer": the gold one, "completion", "reasoning", "prompt_tokens", "completion_tokens", "truncated",
 "extracted", "score", "correct", "reward", "rewards": {name: value}, "status", "detail", "error", "seconds"}

A call that failed for good is a wrong answer, with the status "failed" and its reason under `error`.

`rollouts.jsonl`: a line a rollout, appended as soon as it is made; what a crash broke off is taken away again.

The answers to external benchmarks are kept in the same way, under keys of their own.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rg_env.core.grading.extraction import extract
from rg_env.core.grading.scoring import score_extraction_async
from rg_env.core.rewards.builtin import Rollout, WeightedReward
from rg_env.core.text import is_count, is_number
from rg_env.errors import InputError, OutputFolderError
from rg_env.evaluation.counts import FAILED, STATUSES
from rg_env.evaluation.questions import TaskQuestions
from rg_env.evaluation.requests import Reply

_FAILED: dict[str, Any] = {
    "completion": "",
    "reasoning": None,
    "prompt_tokens": None,
    "completion_tokens": None,
    "truncated": None,
    "extracted": None,
    "score": 0.0,
    "correct": False,
    "reward": 0.0,
    "status": FAILED,
    "detail": "",
}


class Records:
    """Makes the records of an evaluation with these rewards."""

    def __init__(self, rewards: Sequence[WeightedReward]):
        self._rewards = rewards

    async def of(
        self,
        model: str,
        task: TaskQuestions,
        number: int,
        rollout: int,
        messages: list[dict[str, Any]],
        reply: Reply | None,
        error: str | None,
    ) -> dict[str, Any]:
        """The record of an answer to question `number`; without a `reply`, of the `error` of its call.

        Raises:
            RewardError: a reward raised or returned no finite number.
        """
        row = task.rows[number]
        asked = {
            "model": model,
            "task": task.name,
            "row": task.hashes[number],
            "problem": number,
            "rollout": rollout,
            "question": row["question"],
            "answer": row["answer"],
        }
        if reply is None:
            return {**asked, **_FAILED, "rewards": {each.name: 0.0 for each in self._rewards}, "error": error}
        score = await score_extraction_async(extract(reply.text), row["info"])
        made = Rollout.of(
            prompt=messages,
            completion=reply.text,
            answer=row["answer"],
            info=row["info"],
            completion_tokens=reply.completion_tokens,
            truncated=reply.truncated,
            score=score,
        )
        paid = self._paid(made)
        return {
            **asked,
            "completion": reply.text,
            "reasoning": reply.reasoning,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "truncated": reply.truncated,
            "extracted": score.answer,
            "score": score.value,
            "correct": score.status == "correct",
            "reward": sum(each.weight * paid[each.name] for each in self._rewards),
            "rewards": paid,
            "status": score.status,
            "detail": score.detail or (f"refusal: {reply.refusal}" if reply.refusal else ""),
            "error": None,
        }

    def _paid(self, rollout: Rollout) -> dict[str, float]:
        available: Mapping[str, Any] = {
            "prompt": rollout.prompt,
            "completion": [{"role": "assistant", "content": rollout.text}],
            "answer": rollout.answer,
            "state": {},
            "info": rollout.info,
            "parser": None,
        }
        return {each.name: each.value(rollout, available) for each in self._rewards}


_MOST_TOKENS = 2**62
Checks = Mapping[str, Callable[[Any], bool]]
"""By key, whether a value fits."""


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_answer(value: object) -> bool:
    """Yes, no, or not known."""
    return value is None or isinstance(value, bool)


def are_tokens(value: object) -> bool:
    """A count that the tally can hold, or not known."""
    return value is None or is_count(value, _MOST_TOKENS)


_NEEDED: Checks = {
    "model": is_text,
    "task": is_text,
    "row": is_text,
    "rollout": is_count,
    "status": lambda value: value in STATUSES,
    "reward": is_number,
    "truncated": is_answer,
    "prompt_tokens": are_tokens,
    "completion_tokens": are_tokens,
}


class RolloutFile:
    """Reads what there is, then appends. One at a time writes into a file.

    Raises:
        InputError: it cannot be opened, or holds something else than rollouts.
    """

    def __init__(self, path: Path, needed: Checks = _NEEDED):
        self.path, self._needed = path, needed
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "RolloutFile":
        try:
            self._file = self.path.open("a+b")
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise InputError(f"another evaluation is writing {self.path}: wait for its end, or end it") from error
        except OSError:  # a file system without locks
            pass
        try:
            self._end_at_last_line()
        except OSError as error:  # no file, but a device
            self._file.close()
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._file
        with contextlib.suppress(*([OSError] if kind else [])):  # on a full disk it was told before
            self._file.close()

    def records(self) -> Iterator[dict[str, Any]]:
        """What was written before, in order. One at a time is in memory."""
        yield from read_rollouts(self.path, self._needed)

    def append(self, record: dict[str, Any]) -> None:
        """A whole line at once: an interrupt leaves all of it, or what the next start takes away.

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
            raise OutputFolderError(f"{self.path} was removed during the evaluation: its rollouts are lost, begin anew")

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


def read_rollouts(path: Path, needed: Checks = _NEEDED) -> Iterator[dict[str, Any]]:
    """The records of a file, one after another; a last line that does not end is none.

    Args:
        needed: the keys that each of them has, and what stands there.

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


def _record(line: bytes, where: str, needed: Checks) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not record.keys() >= needed.keys():
        raise InputError(f"{where} is no rollout of rg-env eval: take the line out, and go on")
    if wrong := next((name for name, fits in needed.items() if not fits(record[name])), None):
        raise InputError(f"{where} is damaged ({wrong}): take the line out, and go on with --resume")
    return record
