"""Frozen questions (the evaluation rows of an environment), and models' answers to them, in evaluations and training.

    questions = Questions(ReasoningGym("maze", 0, 100))
    answers = TaskAnswers("tiny", questions, Sampling(), times=4)
    answers.add(replies, answers.rollouts(replies))       # score the replies, and add their records

`rg-env eval` scores each answer immediately and appends the answer's record to `rollouts.jsonl`. Results are computed
only from these records, so an interrupted evaluation can resume with just the missing answers. Record format:

{"model", "draw": "sampled" or "greedy", "part", "task": name or label, "level", "row": hash of the question, "problem":
 index of the question, "rollout": index of the answer, "question", "answer": gold answer, "completion", "reasoning",
 "prompt_tokens", "completion_tokens", "truncated", "extracted", "score", "correct", "reward", "rewards": {name: value},
 "status", "detail", "error", "seconds"}

A call that ultimately failed counts as a wrong answer, with the status "failed" and the reason in `error`.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from rg_env.core.data.manifest import hash_of_rows, split_hash
from rg_env.core.data.splits import question_hash
from rg_env.core.data.user_rows import in_order
from rg_env.core.environment import Environment, ReasoningGym, Row
from rg_env.core.files import opened_to_append
from rg_env.core.grading.scoring import Rollout, lenient_correct, score, task_of
from rg_env.core.rewards import RolloutRecord, question_of, record_of
from rg_env.core.run_folder import damaged, json_lines
from rg_env.errors import InputError, OutputFolderError
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.results import EvaluatedEnvironment, TaskPart
from rg_env.inference.protocol import Sampling

ROLLOUTS = "rollouts.jsonl"
FAILED = "failed"
"""Status of a failed call."""
_CONSTANTS = 3
"""Number of gold answers to try as the constant answer, starting with the most frequent."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Evaluation rows of an environment, identified by index."""

    env: Environment
    part: TaskPart | None = None
    """The questions' role in a training run, or None outside a training run."""
    label: str | None = None
    """Name used in reports, or None if each row is reported under its task."""
    floor: float | None = None
    """Accuracy of the best constant answer, or None if it was not measured."""
    task: str | None = None
    """Task to include, or None for all rows."""

    @property
    def rows(self) -> Sequence[Row]:
        """All evaluation rows of the environment."""
        return self.env.eval_rows

    @cached_property
    def numbers(self) -> list[int]:
        """Indices of the included rows."""
        return [number for number, row in enumerate(self.rows) if self.task in (None, task_of(row["info"]))]

    @cached_property
    def hashes(self) -> list[str]:
        """Hashes of the environment's questions."""
        return [question_hash(question_of(row)) for row in self.rows]

    @cached_property
    def tasks(self) -> list[str]:
        """Tasks of the environment's rows, in alphabetical order."""
        return sorted({task_of(row["info"]) for row in self.rows})

    @property
    def name(self) -> str:
        """Name used in reports."""
        return self.label or self.task or task_of(self.rows[0]["info"])

    def by_task(self) -> "list[Questions]":
        """Split the questions by the names used in reports, in alphabetical order."""
        if self.label:
            return [self]
        return [replace(self, task=task) for task in self.tasks]

    def among(self, keys: Collection[str]) -> frozenset[int]:
        """Return the indices of the questions whose hash or problem is in `keys` (see `trained.trained_on`)."""
        return frozenset(
            number
            for number in self.numbers
            if self.hashes[number] in keys or self.rows[number]["info"].get("problem") in keys
        )

    def prompt(self, number: int, system_prompt: str | None = None) -> Any:
        """Return a row's prompt. If given, `system_prompt` replaces the environment's system prompt."""
        row = self.rows[number]
        if system_prompt is None:
            return row["prompt"]
        return replace(self.env.prompt_options, system_prompt=system_prompt).messages(
            row["question"], task_of(row["info"])
        )

    def described(self) -> EvaluatedEnvironment:
        """Return a description of the environment for results."""
        return EvaluatedEnvironment(
            part=self.part,
            label=self.label,
            tasks=self.tasks,
            n=len(self.rows),
            manifest_sha256=None if self.env.manifest is None else split_hash(self.env.manifest, "eval"),
            prompts_sha256=hash_of_rows(self.rows),
        )


def own_rows(env: Environment) -> dict[str, list[str]] | None:
    """Return hashes of the user's own rows, in row order, for a run's manifest: one for each training question, and one
    for each pair of an evaluation question and its answer. Return None for generated rows, whose hashes are in the
    environment's manifest."""
    if env.manifest is not None:
        return None
    train = [question_hash(question_of(row)) for row in env.train_rows]
    return {"train": train, "eval": list(map(hash_with_answer, env.eval_rows))}


def hash_with_answer(row: Row) -> str:
    """Return the hex SHA-256 of a row's question and gold answer."""
    return question_hash(json.dumps([question_of(row), row["answer"]]))


def draw(config: EvalConfig, name: str) -> Questions:
    """Draw the questions for the entry called `name` in `tasks`, or from `data` if `name` is the data's name. The
    questions are the same on every machine.

    Raises:
        InputError: Reasoning Gym rejects the options, the task has too few questions, or the data cannot be read.
        GenerationError: a draw takes too long, or a generation process cannot be started or dies.
    """
    how = {"rewards": config.rewards, **config.prompt.arguments}
    if config.data and name == config.data_name:
        rows = in_order(config.data.rows(), config.eval_seed)
        return Questions(Environment(eval_rows=rows[: config.count(name)], **how), label=name)
    env = ReasoningGym(
        config.mixture(name),
        num_train_examples=0,
        num_eval_examples=config.count(name),
        eval_seed=config.eval_seed,
        grading=config.grading,
        split_by=config.split_by,
        **how,
    )
    return Questions(env, label=name, floor=None if env.rubric.in_workers else _floor(env))


def _floor(env: Environment) -> float:
    golds = Counter(row["answer"] for row in env.eval_rows if row["answer"].strip())
    shares = [
        sum(score(f"<answer>{gold}</answer>", row["info"]).status == "correct" for row in env.eval_rows)
        / len(env.eval_rows)
        for gold, _ in golds.most_common(_CONSTANTS)
    ]
    return max(shares, default=0.0)


# Answers


AnswerKey = tuple[str, int, int]
"""Draw ("sampled" or "greedy"), index of the question, and index of the answer."""


class Answer(NamedTuple):
    """Record fields used to compute results."""

    correct: bool | None = None
    reward: float = 0.0
    status: str | None = None
    truncated: bool | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None
    """Reason why the call failed."""
    lenient: bool | None = None
    """Whether the answer is correct if it is read leniently, or None if this was not requested."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Answer":
        """Return the answer in a record."""
        values: Any = map(record.get, cls._fields)
        return cls(*values)


class ChatRequest(NamedTuple):
    """A prompt (messages, or text for a local model) and sampling settings."""

    prompt: Any
    sampling: Sampling


@dataclass(frozen=True)
class Reply:
    """A model's answer, or the reason why the call failed."""

    text: str = ""
    reasoning: str | None = None
    """Reasoning, if the server separates it from the answer."""
    truncated: bool | None = None
    """Whether the token limit cut off the answer, or None if the server does not report this."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    refusal: str | None = None
    model: str | None = None
    """Name of the model, as reported by the server."""
    token_ids: Sequence[int] = ()
    """IDs of the sampled tokens. This field is set only for models in this process."""
    logprobs: Sequence[float] = ()
    """Log-probabilities of the sampled tokens."""
    prefix: str = ""
    """Start of the model's turn that is already in the prompt (see `PromptEncoder.prefix`)."""
    error: str | None = None
    """Reason why the call failed permanently or on every attempt, or None if there is an answer."""
    seconds: float | None = field(default=None, compare=False)
    """Duration of the call in seconds, or None for calls in a batch."""


class TaskAnswers:
    """One model's answers to a task's questions, keyed by (draw, question index, answer index).

    Args:
        times: number of sampled answers per question.
        greedy: whether there is also one greedy answer per question.
        left_out: indices of questions to skip for this model.
        system_prompt: the model's own system prompt, which replaces the environment's system prompt.
        lenient: whether to record in addition whether answers are correct if they are read leniently.
        trial: minimum number of sampled answers after which `end_trial` decides about the rest. 0 means no trial.
    """

    def __init__(
        self,
        model: str,
        questions: Questions,
        sampling: Sampling,
        times: int = 1,
        greedy: bool = False,
        *,
        left_out: frozenset[int] = frozenset(),
        system_prompt: str | None = None,
        lenient: bool = False,
        trial: int = 0,
    ):
        self.model, self.task, self.questions, self.sampling = model, questions.name, questions, sampling
        self.times, self.greedy, self.system_prompt, self.lenient = times, greedy, system_prompt, lenient
        self.numbers = [number for number in questions.numbers if number not in left_out]
        sampled = [("sampled", number, k) for number in self.numbers for k in range(times)]
        self.keys = dict.fromkeys(sampled + [("greedy", number, 0) for number in self.numbers if greedy])
        self.trial = dict.fromkeys(sampled[: ceil(trial / times) * times])
        """Keys of the answers to the first questions, which are generated before the others."""
        self.by_key: dict[AnswerKey, Answer] = {}
        """The answers so far."""
        self.on_record: Callable[[RolloutRecord], Any] = lambda record: None
        """Function that is called with each new record."""

    @property
    def left_out(self) -> int:
        """Number of questions skipped for this model."""
        return len(self.questions.numbers) - len(self.numbers)

    @property
    def failed(self) -> int:
        """Number of calls that ultimately failed."""
        return sum(answer.error is not None for answer in self.by_key.values())

    def missing(self) -> list[AnswerKey]:
        """Return the keys of missing answers, including the keys of failed calls."""
        return [key for key in self.keys if key not in self.by_key or self.by_key[key].error is not None]

    def end_trial(self) -> None:
        """Skip the other questions if the first ones are answered, and no answer so far has the required form."""
        formless = all(answer.status == "no_answer" for answer in self.by_key.values())
        if self.trial and self.trial.keys() <= self.by_key.keys() and formless:
            self.keys = self.trial

    def of(self, number: int, draw: str = "sampled") -> list[Answer]:
        """Return the answers to a question, in order. For a skipped question, return an empty list."""
        return [self.by_key[draw, number, k] for k in range(self.times) if (draw, number, k) in self.by_key]

    def request(self, key: AnswerKey) -> ChatRequest:
        """Return the request for an answer."""
        sampling = replace(self.sampling, temperature=0.0) if key[0] == "greedy" else self.sampling
        return ChatRequest(self.questions.prompt(key[1], self.system_prompt), sampling)

    def rollouts(self, replies: Mapping[AnswerKey, Reply]) -> dict[AnswerKey, Rollout]:
        """Create rollouts from the successful replies, for `add`."""
        names = ("token_ids", "logprobs", "completion_tokens", "truncated", "prefix")
        return {
            key: self.questions.env.rollout(
                self.questions.rows[key[1]], reply.text, **{name: getattr(reply, name) for name in names}
            )
            for key, reply in replies.items()
            if not reply.error
        }

    def add(self, replies: Mapping[AnswerKey, Reply], rollouts: Mapping[AnswerKey, Rollout]) -> None:
        """Score the rollouts, and add a record for each reply.

        Raises:
            RewardError: a reward raised an error or did not return a finite number.
        """
        env = self.questions.env
        scored = dict(zip(rollouts, env.score(list(rollouts.values())), strict=True))
        wrong = {"score": 0.0, "correct": False, "reward": 0.0, "rewards": dict.fromkeys(env.reward_weights, 0.0)}
        unknown = dict.fromkeys(("completion_tokens", "truncated", "extracted"))
        failed = {"completion": "", **unknown, **wrong, "status": FAILED, "detail": ""}
        for (draw, number, k), reply in replies.items():
            key, row = (draw, number, k), self.questions.rows[number]
            record = {
                "model": self.model,
                "reasoning": reply.reasoning,
                "prompt_tokens": reply.prompt_tokens,
                "draw": draw,
                "part": self.questions.part,
                "row": self.questions.hashes[number],
                "problem": number,
                "rollout": k,
                "question": question_of(row),
                "answer": row["answer"],
                **(record_of(rollouts[key], scored[key]) if key in rollouts else failed),
                **({"lenient": key in rollouts and lenient_correct(rollouts[key])} if self.lenient else {}),
                "task": self.task,
                "error": reply.error,
                "seconds": reply.seconds,
            }
            if reply.refusal and not record["detail"]:
                record["detail"] = f"refusal: {reply.refusal}"
            self.on_record(record)
            self.load(record)

    def load(self, record: RolloutRecord) -> bool:
        """Load a record, replacing any earlier record for the same answer. Return False if the record is for another
        question or answer."""
        key = record["draw"], record["problem"], record["rollout"]
        if key not in self.keys or self.questions.hashes[key[1]] != record["row"]:
            return False
        self.by_key[key] = Answer.of(record)
        return True


@contextmanager
def record_file(path: Path, answer_sets: Sequence[TaskAnswers]) -> Iterator[int]:
    """Load a file's records into `answer_sets`, and append new records to the file. Yield the number of records that do
    not belong to any of these sets. Only one process at a time may write to the file.

    Raises:
        InputError: the file cannot be opened, or is damaged.
        OutputFolderError: the file was removed while records were being appended.
        OSError: a record cannot be written, for example because the disk is full.
    """

    def append(record: RolloutRecord) -> None:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        try:
            file.write(text.encode("utf-8", "backslashreplace") + b"\n")
            file.flush()  # if the write is interrupted, the partial line will be dropped when the file is opened again
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        if not os.fstat(file.fileno()).st_nlink:
            raise OutputFolderError(f"{path} was removed during the evaluation, so its rollouts are lost")

    try:
        file = opened_to_append(path)
        file.seek(0)
        file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
    except OutputFolderError:
        raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    by_name, unmatched = {(each.model, each.task): each for each in answer_sets}, 0
    try:
        for record in json_lines(path):
            try:
                answers = by_name.get((record["model"], record["task"]))
                unmatched += answers is None or not answers.load(record)
            except (KeyError, TypeError) as error:
                raise damaged(path, f"a record is incomplete or malformed: {error}") from error
        for each in answer_sets:
            each.on_record = append
        yield unmatched
    finally:
        with contextlib.suppress(OSError):  # an error here must not hide the error that ended the evaluation
            file.close()
