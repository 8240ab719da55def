"""Environments: rows, their prompts, and rewards for answers. This module needs neither torch nor a training framework.

    env = ReasoningGym("leg_counting", num_train_examples=2000, num_eval_examples=200)
    env = Environment(train_rows, eval_rows, rewards=["correctness", my_reward])

    row = env.eval_rows[0]
    [scored] = env.score([env.rollout(row, "4 + 4 = 8 <answer>8</answer>")])
    scored.reward, scored.rewards, scored.metrics

The trainer accepts an environment directly. `rg_env.adapters` converts environments for other frameworks.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

from rg_env.core.config.files import OTHER_NAMES
from rg_env.core.data.dataset import build_rows, build_splits
from rg_env.core.data.manifest import Manifest
from rg_env.core.data.selection import DrawnRow
from rg_env.core.data.splits import OnFew, SplitBy
from rg_env.core.data.user_rows import check_text, distinct, own_text
from rg_env.core.grading.scoring import Grading, Rollout, task_of
from rg_env.core.processes import print_once
from rg_env.core.prompts import SYSTEM_PROMPT, Messages, Placement, build_messages, fold_system
from rg_env.core.rewards import OFFERED, Rubric, Scored, WeightedReward, check_offered, resolve_rewards
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import is_task_option, shipped_table
from rg_env.core.text import counted, listed, plain, shortened
from rg_env.errors import InputError, UnknownNameError, unknown_name

Row = Mapping[str, Any]
"""A row: `prompt` (chat messages, or text to continue), `answer` (the gold answer, which may be empty), `info`, and any
other columns from the user."""
_EXAMPLES_SEED = 1_000_003
"""Seed for few-shot examples, which differs from the usual seeds for training rows."""
_MOST_EXAMPLES = 100


@dataclass(frozen=True)
class PromptOptions:
    """Options that determine how questions become prompts and how answers are graded. The fields are also
    arguments of `ReasoningGym`.

    Raises `InputError` for invalid values.
    """

    system_prompt: str | None = SYSTEM_PROMPT
    prompt_placement: Placement = "system"
    preamble: str | None = None
    few_shot: int | Sequence[Mapping[str, Any]] | None = None
    grading: Grading = "hardened"
    chat_template_kwargs: Mapping[str, Any] | None = None
    opens_thinking: bool = False
    drawn: Mapping[str, Sequence[Messages]] = field(default_factory=dict)
    """Examples by task if `few_shot` is a number (see `with_examples`). This field is not an argument."""

    def __post_init__(self) -> None:
        if self.grading not in get_args(Grading):
            raise unknown_name("grading", self.grading, get_args(Grading))
        if not _is_chat(self.shots):
            raise InputError(
                f"few_shot must be a number of examples up to {_MOST_EXAMPLES}, or a list of messages with role and "
                f"content, not {shortened(self.shots)}"
            )
        if not isinstance(self.chat_template_kwargs, Mapping | None):
            raise InputError(f"chat_template_kwargs must be a mapping, not {shortened(self.chat_template_kwargs)}")
        for message in self.shots:
            check_text("few_shot", message["content"])
        if not isinstance(self.opens_thinking, bool):
            raise InputError(f"opens_thinking must be True or False, not {shortened(self.opens_thinking)}")
        check_text("system_prompt", self.system_prompt or "")
        check_text("preamble", self.preamble or "")
        build_messages("", self.system_prompt, self.prompt_placement)  # raises an error for an unknown placement

    @property
    def num_examples(self) -> int:
        """Number of examples to draw, or 0 if `few_shot` is a list of messages."""
        return self.few_shot if type(self.few_shot) is int and 0 < self.few_shot <= _MOST_EXAMPLES else 0

    @property
    def shots(self) -> Any:
        """The messages in `few_shot`, which are the same for all tasks."""
        return () if self.num_examples else self.few_shot or ()

    def with_examples(self, mixture: Mixture, split_by: SplitBy) -> "PromptOptions":
        """Return the options with examples drawn from the training questions of each task, if `few_shot` is a number.
        Examples are never evaluation questions, and their answers differ if possible."""
        if not self.num_examples:
            return self
        size = 4 * self.num_examples
        tasks = Mixture(tasks=tuple(task.model_copy(update={"weight": 1.0}) for task in mixture.tasks))
        rows = build_rows(tasks, "train", size * len(tasks.tasks), _EXAMPLES_SEED, split_by=split_by, on_few="cap")
        seen, found = Counter[tuple[str, str]](), list[tuple[int, str, Messages]]()
        for row in rows:
            task, answer = task_of(row["info"]), row["answer"]
            if answer.strip():  # some questions have no gold answer
                reply = {"role": "assistant", "content": f"<answer>{answer}</answer>"}
                found.append((seen[task, answer], task, [{"role": "user", "content": row["question"]}, reply]))
                seen[task, answer] += 1
        drawn: dict[str, list[Messages]] = {task.name: [] for task in tasks.tasks}
        for _, task, messages in sorted(found, key=lambda each: each[0]):
            if len(drawn[task]) < self.num_examples:
                drawn[task].append(messages)
        return replace(self, drawn=drawn)

    @property
    def info(self) -> dict[str, str]:
        """Entries that the options add to the `info` of each row."""
        return {"reply_prefix": "<think>"} if self.opens_thinking else {}

    def messages(self, question: str, task: str = "") -> list[dict[str, Any]]:
        """Return the chat messages that pose `question`, which is a question of `task`. A drawn example that is the
        question itself is left out."""
        # With few-shot examples and no preamble, a system prompt with the placement "user" is part of the first
        # example.
        folded = self.prompt_placement == "user" and not self.preamble
        placement = "system" if folded else self.prompt_placement
        messages: list[dict[str, Any]] = build_messages(question, self.system_prompt, placement, preamble=self.preamble)
        shots = [each for shot in self.drawn.get(task, ()) if shot[0]["content"] != question for each in shot]
        messages[-1:-1] = map(dict, shots or self.shots)
        return fold_system(messages) if folded else messages

    def to_examples(self, rows: Sequence[DrawnRow]) -> list[dict[str, Any]]:
        """Return rows with the columns question, answer, info (with the grading), prompt (messages) and example_id."""
        return [
            {
                **row,
                "info": {**row["info"], "grading": self.grading, **self.info},
                "prompt": self.messages(row["question"], task_of(row["info"])),
                "example_id": index,
            }
            for index, row in enumerate(rows)
        ]


class Environment:
    """Single-turn prompts and rewards for any data.

    Repeats of a row within a split are omitted, and their number is printed. A repeat may give its answer in another
    form (`1.0` for `1`).

    Args:
        train_rows: rows with `question` (text, prompted with `system_prompt`) or `prompt` (chat messages, or text to
            continue), and optionally `answer` (gold answer) and `info` (a mapping).
        eval_rows: the same for evaluation.
        rewards: anything that `resolve_rewards` accepts. By default, correctness (weight 1) and
            format with weight 0.1. An answer is correct if it equals the row's `answer` as a number or as text.
        system_prompt: instructions in addition to the question. This parameter and the following ones are explained
            at `ReasoningGym`.
        prompt_placement: position of `system_prompt`.
        preamble: additional text at the start of the system message.
        few_shot: messages before the question.
        chat_template_kwargs: variables of the model's chat template.
        opens_thinking: whether the model's chat template ends the prompt with `<think>`.

    Raises:
        InputError: a row or an option is invalid, a prompt has two different answers, a reward cannot be resolved, or
            both splits are empty.
    """

    manifest: dict[str, Any] | None = None
    """The rows' manifest (`manifest.json` in a run), or None for rows that rg_env did not draw."""
    mixture: Mixture | None = None
    """The Reasoning Gym tasks, or None for the user's own rows."""
    offered: ClassVar[Sequence[str]] = OFFERED
    """Parameter names that reward functions may use."""

    def __init__(
        self,
        train_rows: Iterable[Row] = (),
        eval_rows: Iterable[Row] = (),
        rewards: Any = None,
        *,
        system_prompt: str | None = SYSTEM_PROMPT,
        prompt_placement: Placement = "system",
        preamble: str | None = None,
        few_shot: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        opens_thinking: bool = False,
    ) -> None:
        self.prompt_options = PromptOptions(
            system_prompt,
            prompt_placement,
            preamble,
            few_shot,
            chat_template_kwargs=chat_template_kwargs,
            opens_thinking=opens_thinking,
        )
        if self.prompt_options.num_examples:
            raise InputError("few_shot can be a number only for tasks: for rows of your own, pass the messages")
        weighted = self._resolved(rewards)
        self.train_rows: Sequence[Row] = self._own_rows(train_rows, "train_rows")
        self.eval_rows: Sequence[Row] = self._own_rows(eval_rows, "eval_rows")
        if not self.train_rows and not self.eval_rows:
            raise InputError("train_rows and eval_rows are both empty, so there is nothing to do")
        self.rubric = Rubric.of_rows(weighted, [*self.train_rows, *self.eval_rows])
        self._note_missing_answers([*self.train_rows, *self.eval_rows])
        _note_library_rows([*self.train_rows, *self.eval_rows])

    def _resolved(self, rewards: Any) -> list[WeightedReward]:
        resolved = resolve_rewards(rewards)
        check_offered(resolved, self.offered, "this environment")
        return resolved

    def _note_missing_answers(self, rows: Sequence[Row]) -> None:
        missing = sum(not row["answer"] and "rg_task" not in row["info"] for row in rows)
        if missing and "correctness" in self.reward_weights:
            print_once(
                f"note: no answer in {missing:,} of {counted(len(rows), 'row')}: their correctness is 0, and "
                "accuracy is not measured"
            )

    def _own_rows(self, rows: Iterable[Row], name: str) -> list[dict[str, Any]]:
        given = enumerate(prompted_rows(rows, name, self.prompt_options))
        return distinct(((f"{name}[{index}]", repr(row["prompt"]), row) for index, row in given), name)

    def __repr__(self) -> str:
        tasks = "" if self.mixture is None else f"{listed(self.mixture.names)}, "
        rows = f"{len(self.train_rows)} training and {len(self.eval_rows)} evaluation rows"
        return f"{type(self).__name__.lstrip('_')}({tasks}{rows}, rewards {self.reward_weights})"

    @property
    def rewards(self) -> Sequence[WeightedReward]:
        """The rewards, each with its name, function, weight and gate."""
        return self.rubric.rewards

    @functools.cached_property
    def reward_weights(self) -> dict[str, float]:
        """The rewards' weights by name, in order."""
        return {reward.name: reward.weight for reward in self.rewards}

    @property
    def system_prompt(self) -> str | None:
        """Instructions in addition to the question."""
        return self.prompt_options.system_prompt

    @functools.cached_property
    def has_accuracy(self) -> bool:
        """Whether rollouts are graded as right or wrong, in which case `score` reports the metric `accuracy`."""
        return any(metric.name == "accuracy" for metric in self.rubric.metrics)

    def rollout(
        self,
        row: Row,
        text: str,
        *,
        token_ids: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        completion_tokens: int | None = None,
        truncated: bool | None = None,
        prefix: str = "",
    ) -> Rollout:
        """Return a rollout of `row` with the completion `text`. `completion_tokens` defaults to the number of
        `token_ids`, if any are given. `prefix` is the start of the model's turn that is already in the prompt.

        Raises `InputError` if `row` is not a row of the environment, or `text` is not text."""
        if not isinstance(row, Mapping) or not all(key in row for key in ("prompt", "answer", "info")):
            raise InputError(f"rollout takes a row of the environment, such as env.train_rows[0], not {shortened(row)}")
        if not isinstance(text, str):
            raise InputError(f"a completion must be text, not {shortened(text)}")
        count = (len(token_ids) or None) if completion_tokens is None else completion_tokens
        return Rollout(
            row["prompt"], text, row["answer"], row["info"], count, truncated, token_ids, logprobs, row, prefix
        )

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        """Score rollouts and return the results in the same order.

        Raises:
            RewardError: a reward raises an exception or does not return a finite number. The error message names the
                reward and the rollout.
            InputError: `rollouts` contains anything else, or a rollout's `info` is invalid.
        """
        given = list(rollouts) if isinstance(rollouts, Iterable) else [None]
        if not all(isinstance(each, Rollout) for each in given):
            raise InputError(
                f"score takes a list of rollouts, such as [env.rollout(row, text)], not {shortened(rollouts)}"
            )
        return self.rubric.score(given)


def _note_library_rows(rows: Iterable[Row]) -> None:
    """Print a note if rows look like the library's entries but lack what their tasks' graders need."""
    found = {
        str(metadata["source_dataset"])
        for row in rows
        if "rg_task" not in row["info"]
        for metadata in (row.get("metadata"), row["info"], row["info"].get("metadata"))
        if isinstance(metadata, Mapping) and metadata.get("source_dataset") in shipped_table()
    }
    if found:
        print_once(
            f"note: the rows of Reasoning Gym's {listed(sorted(found))} are graded by comparing answers as text, not "
            "by the tasks' graders; to use these, see rg_env.ReasoningGym, rg_env.grade and `rg-env score`"
        )


def unknown_parameters(names: Iterable[str], known: Collection[str]) -> UnknownNameError:
    """Return the error for unknown parameters of an environment."""

    def hint(name: str) -> str:
        if ours := OTHER_NAMES["environment"].get(name):
            return ours if " " in ours else f"use {ours!r} instead"
        option = f"this is an option of a task; use gym={{'name': TASK, 'config': {{{name!r}: VALUE}}}}"
        return option if is_task_option(name) else ""

    kind = "parameter of the environment"
    return UnknownNameError("; ".join(str(unknown_name(kind, name, known, hint=hint(name))) for name in names))


def _checked_names(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap `init` to raise `UnknownNameError` for an unknown keyword, and to accept numbers of numpy."""
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def call(*args: Any, **kwargs: Any) -> None:
        if unknown := [name for name in kwargs if name not in known]:
            raise unknown_parameters(unknown, known)
        init(*map(plain, args), **plain(kwargs))

    return call


class ReasoningGym(Environment):
    """Reasoning Gym tasks, with training and evaluation rows that, by default, never share a problem.

    Args:
        gym: anything that `Mixture.parse` accepts: a task name, a mapping, or a list of these.
        num_train_examples: number of training rows.
        num_eval_examples: number of evaluation rows.
        seed: seed for the training rows.
        eval_seed: seed for the evaluation rows.
        rewards: anything that `resolve_rewards` accepts. The default is correctness with weight 1 and format with
            weight 0.1.
        system_prompt: instructions in addition to the question.
        prompt_placement: position of `system_prompt`. With `"system"`, `system_prompt` is the system message. With
            `"user"`, `system_prompt` precedes the question in the user turn, for chat templates that reject a system
            role. With `"user_after"`, `system_prompt` follows the question.
        preamble: additional text at the start of the system message, before `system_prompt` if `prompt_placement` is
            `"system"`.
        few_shot: messages before the question, or a number of examples. The examples are training questions of the
            same task, each with its gold answer in `<answer>` tags, and are never evaluation questions.
        grading: `"hardened"` for right or wrong, `"partial"` for partial credit for real progress, or `"upstream"` for
            the library's own formulas.
        manifest: a run's `manifest.json`, or its contents. Raises `InputError` if the rows differ from that run's rows.
        split_by: whether a row's `"problem"` or its `"question"` decides its split.
        on_few: what to do if a task has fewer distinct questions than requested: `"repeat"` training questions and
            reduce the evaluation split, `"cap"` both splits, or raise an `"error"`.
        chat_template_kwargs: variables of the model's chat template, such as `{"enable_thinking": False}`.
        opens_thinking: whether the model's chat template ends the prompt with `<think>`, so that a completion without
            `</think>` has no answer. rg_env's trainer and evaluations of local models read this from the template, and
            vLLM servers report it. Other frameworks do not show environments the rendered prompt.

    Raises:
        InputError: an argument is invalid.
        GenerationError: a draw takes too long, or a generation process cannot be started or dies.
    """

    mixture: Mixture
    manifest: dict[str, Any]

    @_checked_names
    def __init__(
        self,
        gym: Any = "leg_counting",
        num_train_examples: int = 2000,
        num_eval_examples: int = 200,
        *,
        seed: int = 0,
        eval_seed: int = 0,
        rewards: Any = None,
        system_prompt: str | None = SYSTEM_PROMPT,
        prompt_placement: Placement = "system",
        preamble: str | None = None,
        few_shot: int | Sequence[Mapping[str, Any]] | None = None,
        grading: Grading = "hardened",
        manifest: str | Path | Manifest | None = None,
        split_by: SplitBy = "problem",
        on_few: OnFew = "repeat",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        opens_thinking: bool = False,
    ) -> None:
        # Cheap checks run before rows are built.
        self.mixture = Mixture.parse(gym)
        weighted = self._resolved(rewards)
        self.prompt_options = PromptOptions(
            system_prompt, prompt_placement, preamble, few_shot, grading, chat_template_kwargs, opens_thinking
        )
        self.grading = self.prompt_options.grading
        self.rubric = Rubric.of_tasks(weighted, self.mixture, self.grading)
        if num_train_examples == 0 and num_eval_examples == 0:
            raise InputError("num_train_examples and num_eval_examples are both 0, so there is nothing to do")
        train, evaluation, self.manifest = build_splits(
            self.mixture,
            num_train_examples,
            num_eval_examples,
            seed,
            eval_seed,
            split_by=split_by,
            on_few=on_few,
            manifest=manifest,
        )
        self.prompt_options = self.prompt_options.with_examples(self.mixture, split_by)
        self.train_rows, self.eval_rows = self.to_examples(train), self.to_examples(evaluation)

    def to_examples(self, rows: Sequence[DrawnRow]) -> list[dict[str, Any]]:
        """Convert drawn rows to examples with this environment's prompt and grading.

        Raises `InputError` for rows that rg_env did not draw."""
        if others := [row for row in rows if "info" not in row]:
            raise InputError(
                f"to_examples takes drawn rows, not {shortened(others[0])}: for your own rows, use rg_env.Environment"
            )
        return self.prompt_options.to_examples(rows)


load_environment = ReasoningGym
"""The value of `rg_env.load_environment` if Verifiers is not installed."""


def prompted_rows(rows: Iterable[Row], name: str, options: PromptOptions) -> list[dict[str, Any]]:
    """Normalize rows to the columns prompt, answer (text), info and example_id, and keep their other columns.

    Raises:
        InputError: a row is invalid. The error message contains `name` and the row's index.
    """
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable) or hasattr(rows, "iterrows"):
        raise InputError(f"{name} must be a list of rows, not {shortened(rows)}{_as_rows(rows)}")
    return [_row(row, f"{name}[{index}]", index, options) for index, row in enumerate(rows)]


def _as_rows(data: object) -> str:
    """Return the advice on how to make a list of rows of `data`."""
    if isinstance(data, str | Path):
        return ": read the file first, as in [json.loads(line) for line in open(FILE)]"
    if hasattr(data, "iterrows"):
        return ': pass DATA.to_dict("records")'
    if isinstance(data, Mapping) and data and not {"question", "prompt"} & data.keys():
        return f": choose one of its parts, as in DATA[{next(iter(data))!r}]"
    return ""


def _row(row: object, where: str, index: int, options: PromptOptions) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise InputError(f"{where} must be a mapping with a question or a prompt, not {shortened(row)}")
    prompt, answer, info = (row.get(key) for key in ("prompt", "answer", "info"))
    if prompt is None and row.get("question") is None:
        columns = ", ".join(map(str, row))
        advice = f"{columns}: rename its columns to question and answer" if columns else "nothing"
        raise InputError(f"{where} has neither a prompt nor a question; it has {advice}")
    prompt = options.messages(own_text(row["question"], f"{where}: question")) if prompt is None else prompt
    if not prompt or not (isinstance(prompt, str) or _is_chat(prompt)):
        raise InputError(
            f"{where}: prompt must be text, or a list of messages with role and content (text), not {shortened(prompt)}"
        )
    own_text(prompt if isinstance(prompt, str) else "".join(each["content"] for each in prompt), f"{where}: prompt")
    missing = answer is None or (isinstance(answer, str) and not answer)
    answer = "" if missing else own_text(answer, f"{where}: answer", numbers=True)
    if not isinstance(info, Mapping | None):
        raise InputError(f"{where}: info must be a mapping, not {shortened(info)}")
    known = {"prompt": prompt, "answer": answer, "info": {**(info or {}), **options.info}}
    return {**row, **known, "example_id": row.get("example_id", index)}


def _is_chat(value: object) -> bool:
    """Whether `value` is a list of messages with role and content."""
    return isinstance(value, Sequence) and all(
        isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        for message in value
    )
