"""Reward functions (their registration, weights, gates and calls), the rubrics that combine them, and the built-in
rewards.

    @reward                       # or @reward("short_name")
    def ends_well(rollout):
        return float(rollout.text.endswith("</answer>"))

    rewards=[("correctness", 1.0), ("ends_well", 0.2), some_function,
             {"name": "length", "weight": 0.1, "when": "correct", "options": {"max_tokens": 256}}]

Rewards are weighted and summed. A reward is a named function of a rollout. The function requests inputs by parameter
name. The available names are `rollout` (the complete `Rollout`, extracted and scored) and the names that Verifiers
uses: prompt, completion, answer (the gold answer), state, task, info and parser. Other parameters must have defaults
and can be set with `options`. A reward returns a number, which must be from -1e100 to 1e100 and by convention is in
[-1, 1]. A reward may be async. With async rewards, the rollouts of a batch are scored concurrently, in an event loop on
a background thread. The background loop also works in a notebook and keeps connections to judge models open.

A rubric contains an environment's rewards and its metrics: accuracy, accuracy per task, and answer statuses. A rubric
grades the answers before it calls rewards:

    [scored] = rubric.score([rollout])
    scored.reward, scored.rewards, scored.metrics

Length rewards use the number of tokens that the server reports. If the server does not report this number, length
rewards estimate it with `CHARACTERS_PER_TOKEN`, except for `brevity`, which raises an error.
"""

import asyncio
import functools
import inspect
import math
import numbers
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar, get_args, overload

from pydantic import ValidationError

from rg_env.core.config.parsing import DEFAULT_REWARDS, RewardConfig, input_error
from rg_env.core.event_loop import is_canceled, run_async, run_each
from rg_env.core.grading.scoring import Grading, Rollout, Status, in_worker, partial_score, threads
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.text import definition_line, is_number, shortened, user_error
from rg_env.errors import InputError, RewardError, unknown_name

RewardFunction = Callable[..., Any]
_F = TypeVar("_F", bound=RewardFunction)

PARAMETERS = ("rollout", "prompt", "completion", "answer", "state", "task", "info", "parser")
"""Parameter names that a reward function can use."""
OFFERED = ("rollout", "prompt", "completion", "answer", "task", "info")
"""Parameter names that every environment provides. Only Verifiers' v0 API also provides `state` and `parser`."""
GATES: dict[str, Callable[[Rollout], bool]] = {
    "answered": lambda rollout: rollout.extraction.status == "ok",
    "correct": lambda rollout: rollout.score.status == "correct",
    "not_correct": lambda rollout: rollout.score.status != "correct",
}
"""Conditions by name. A gated reward is 0 for rollouts that do not meet its condition."""
_MAX_VALUE = 1e100
_AT_LEAST_0 = ("max_tokens", "margin", "ngram")


class WeightedReward(NamedTuple):
    """One term in the weighted sum of rewards."""

    name: str
    function: RewardFunction
    weight: float
    when: str | None = None

    @property
    def is_async(self) -> bool:
        """Whether the function is async, in which case `value` blocks until the call has finished."""
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004

    def value(self, rollout: Rollout, available: Mapping[str, Any]) -> float:
        """Return the unweighted reward, which is 0.0 if the rollout does not meet the condition `when`.

        `available` contains the other arguments, keyed by their names in `PARAMETERS`. Raises a `RewardError` that
        names the reward and the rollout if the function raises an exception or does not return a finite number.
        """
        if not self._is_open(rollout):
            return 0.0
        with _failing(self.name, rollout) as where:
            value = _called(self.function, rollout, available)
            value = run_async(value) if inspect.isawaitable(value) else value
        return checked_value(self.name, value, where, self.function)

    async def avalue(self, rollout: Rollout, available: Mapping[str, Any]) -> float:
        """Return the same reward as `value`, but await an async function in the caller's event loop."""
        if not self._is_open(rollout):
            return 0.0
        with _failing(self.name, rollout) as where:
            value = _called(self.function, rollout, available)
            value = await value if inspect.isawaitable(value) else value
        return checked_value(self.name, value, where, self.function)

    def _is_open(self, rollout: Rollout) -> bool:
        return not self.when or GATES[self.when](rollout)


_REGISTRY: dict[str, RewardFunction] = {}


@overload
def reward(name: _F) -> _F: ...
@overload
def reward(name: str) -> Callable[[_F], _F]: ...
def reward(name: Any) -> Any:
    """Register a reward function under its own name (`@reward`) or another name (`@reward("name")`).

    Raises `InputError` if the name is already taken or the signature is not supported.
    """
    if callable(name):
        return _register(_name_of(name), name)
    if not isinstance(name, str):
        raise InputError(f"@reward takes an optional name, not {name!r}")
    return lambda function: _register(name, function)


def _register(name: str, function: _F) -> _F:
    check_signature(name, function)
    known = _REGISTRY.get(name)
    # Running the same source again (such as a notebook cell) replaces a reward. Any other function with the same name
    # is an error.
    if known is not None and _origin(known) != _origin(function):
        raise InputError(f"reward {name!r} is already registered by {_origin(known)}: choose another name")
    _REGISTRY[name] = function
    return function


def get_reward(name: str) -> RewardFunction:
    """Return the reward function registered as `name`. For an unknown name, raises an `UnknownNameError` that
    suggests similar names."""
    if name not in _REGISTRY:
        raise unknown_name("reward", name, _REGISTRY)
    return _REGISTRY[name]


def check_signature(name: str, function: RewardFunction) -> None:
    """Raise `InputError` if `function` requires a parameter that is not in `PARAMETERS`, has a positional-only
    parameter, or has no readable signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise InputError(f"reward {name!r} has no readable signature: {error}") from error
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InputError(f"reward {name!r}: {parameter.name!r} is positional-only; make it a keyword parameter")
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.name not in PARAMETERS and parameter.default is parameter.empty:
            raise unknown_name(f"parameter of reward {name!r}", parameter.name, PARAMETERS)


def resolve_rewards(spec: object = None) -> list[WeightedReward]:
    """Resolve `spec` to weighted rewards. None means `DEFAULT_REWARDS`. Raises `InputError` if `spec` is invalid.

    `spec` can be a list whose items are names, functions, (name or function, weight) pairs, or settings. `spec` can
    also be a mapping from each name to its weight or settings. Settings are a mapping that can have the keys `name`,
    `weight` (1 by default; with 0, the reward is only logged), `when` (a key of `GATES`) and `options` (values for the
    function's own parameters).
    """
    if spec is None:
        spec = DEFAULT_REWARDS
    if isinstance(spec, Mapping):
        spec = [_named(key, value) for key, value in spec.items()]
    elif isinstance(spec, str) or callable(spec):
        spec = [spec]
    if not isinstance(spec, Sequence) or not spec:
        raise InputError(f"rewards must be a list of names, functions or (name, weight) pairs, not {spec!r}")
    resolved = [_resolve(item) for item in spec]
    for name, times in Counter(item.name for item in resolved).items():
        if times > 1:
            raise InputError(f"reward {name!r} appears twice, but names must be unique")
    return resolved


def _named(name: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return name, value
    if value.get("name", name) != name:
        raise InputError(f"reward {name!r}: its mapping has a different name, {shortened(value['name'])}")
    return {"name": name, **value}


def _resolve(item: Any) -> WeightedReward:
    if isinstance(item, tuple | list):
        if len(item) != 2:
            raise InputError(f"a reward with a weight must be a pair (reward, weight), not {item!r}")
        item = {"name": item[0], "weight": item[1]}
    elif not isinstance(item, Mapping):
        item = {"name": item}
    named = item.get("name")
    if isinstance(named, str):
        name, function = named, get_reward(named)
    elif callable(named):
        name, function = _name_of(named), named
        check_signature(name, function)
    else:
        raise InputError(f"a reward must be a name or a function, or a mapping with a name, not {shortened(item)}")
    values = {key: value for key, value in item.items() if key != "name" and value is not None}
    try:
        config = RewardConfig.model_validate(values)
    except ValidationError as error:
        raise input_error(RewardConfig, error, values, f"reward {name!r}: ") from error
    return WeightedReward(name, _with_options(name, function, config.options), config.weight, config.when)


def _with_options(name: str, function: RewardFunction, options: Mapping[str, Any]) -> RewardFunction:
    parameters = inspect.signature(function).parameters.values()
    own = {each.name: each for each in parameters if each.name not in PARAMETERS and each.default is not each.empty}
    for option, value in options.items():
        if option not in own:
            raise unknown_name(f"option of reward {name!r}", option, own).at("options", str(option))
        default, kind = own[option].default, ""
        if value is None and type(None) in get_args(own[option].annotation):
            continue
        if option in _AT_LEAST_0 and not (is_number(value) and value >= 0):
            kind = "a number of at least 0"
        elif is_number(default) and not is_number(value):
            kind = "a finite number"
        elif isinstance(default, bool) and not isinstance(value, bool):
            kind = "true or false"
        if kind:
            problem = f"reward {name!r}: option {option!r} must be {kind}, not {shortened(value)}"
            raise InputError(problem).at("options", option)
    return functools.partial(function, **options) if options else function


def check_offered(rewards: Sequence[WeightedReward], offered: Collection[str], where: str) -> None:
    """Raise `InputError` if a reward requires a parameter that `where` does not provide."""
    for name, function, *_ in rewards:
        for parameter in inspect.signature(function).parameters.values():
            wanted = parameter.name in PARAMETERS and parameter.default is parameter.empty
            if wanted and parameter.name not in offered:
                raise InputError(
                    f"reward {name!r} needs {parameter.name!r}, which {where} does not provide; available: "
                    f"{', '.join(offered)}"
                )


def _called(function: RewardFunction, rollout: Rollout, available: Mapping[str, Any]) -> Any:
    offered = {**available, "rollout": rollout, "task": rollout.task}
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    wanted = {parameter.name for parameter in parameters}
    return function(**(offered if takes_all else {key: value for key, value in offered.items() if key in wanted}))


@contextmanager
def _failing(name: str, rollout: Rollout) -> Iterator[str]:
    """Yield a description of the rollout, and convert errors within the block to `RewardError`."""
    where = describe(rollout.task, rollout.score.answer, rollout.text)
    try:
        yield where
    except RewardError as error:
        raise RewardError(f"reward {name!r}: {error}; {where}") from error
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_canceled():
            raise  # the caller canceled the scoring
        raise RewardError(f"reward {name!r} raised {user_error(error)}; {where}") from error


def checked_value(name: str, value: object, where: str, function: object = None) -> float:
    """Return `value` as a float. Raises `RewardError` unless `value` is a number from -1e100 to 1e100. Within this
    range, sums cannot overflow. Booleans, and scalars from numpy and torch, count as numbers.

    The error message contains the file and line of `function` if the user defined it.
    """
    try:
        # `item` converts numpy and torch scalars and one-element arrays, and raises an error for other arrays and
        # tensors.
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, numbers.Real) and abs(float(number)) <= _MAX_VALUE:
            return float(number)
    except (ValueError, RuntimeError, OverflowError):
        pass
    line = definition_line(function)
    raise RewardError(f"reward {name!r} returned {shortened(value)}, not a finite number up to 1e100{line}; {where}")


def describe(task: object, answer: object, text: object) -> str:
    """Return one line that identifies a rollout in an error message, with the rollout's text shortened."""
    return f"task {task}, answer {shortened(answer)}, completion {shortened(text)}"


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _origin(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"


# Rubrics


@dataclass(frozen=True)
class Metric:
    """A metric that is 1 for rollouts with `status` and 0 for other rollouts. With `task`, the metric applies only to
    rollouts from that task."""

    name: str
    """`accuracy`, `accuracy/<task>` or `status/<status>`."""
    status: Status = "correct"
    task: str | None = None

    def of(self, rollout: Rollout) -> float | None:
        """Return 0 or 1, or None for a rollout from another task."""
        return None if self.task not in (None, rollout.task) else float(rollout.score.status == self.status)

    def value(self, rollout: Rollout) -> float:
        """Return the metric's value for frameworks that average every metric over all rollouts, including those from
        other tasks.

        Rollouts from other tasks cannot have NaN as their value, because 0 * NaN is NaN and the weighted sums would
        also be NaN. The value is therefore 0 for rollouts from other tasks, and 1 divided by the task's share of rows
        for a correct rollout from the task. With these values, the mean over an entire dataset is exact. Over a batch,
        the mean is unbiased and may exceed 1.
        """
        if not self.of(rollout):
            return 0.0
        return 1.0 if self.task is None else float(1 / Fraction(rollout.info["share"]))


class Scored(NamedTuple):
    """One rollout's reward and metrics."""

    reward: float
    """Weighted sum of `rewards`."""
    rewards: dict[str, float]
    """Unweighted rewards by name."""
    metrics: dict[str, float]
    """`accuracy`, `accuracy/<task>` and `status/<status>`, each 0 or 1. Metrics that do not apply to the rollout are
    omitted."""


@dataclass(frozen=True)
class Rubric:
    """Scores rollouts. A rubric is picklable if its rewards are."""

    rewards: Sequence[WeightedReward]
    metrics: Sequence[Metric]
    in_workers: bool = False
    """Whether worker processes grade answers, in which case `grade` uses them in parallel."""

    def __post_init__(self) -> None:
        names = {metric.name for metric in self.metrics}
        for reward in self.rewards:
            if reward.name in names:
                raise InputError(f"reward {reward.name!r} has the same name as a metric: choose another name")

    @classmethod
    def of_tasks(cls, rewards: Sequence[WeightedReward], mixture: Mixture, grading: Grading) -> "Rubric":
        """Return a rubric with metrics for accuracy, accuracy per task in a mixture, and each status other than
        "correct" that is possible under `grading`.

        Raises `InputError` if a reward has the same name as one of these metrics.
        """
        workers = any(in_worker(task, grading) for task in mixture.names)
        never = {"correct"} | ({"partial"} if grading == "hardened" else set()) | (set() if workers else {"timed_out"})
        by_task = [Metric(f"accuracy/{task}", task=task) for task in mixture.names] if len(mixture.tasks) > 1 else []
        statuses = [Metric(f"status/{status}", status) for status in get_args(Status) if status not in never]
        return cls(rewards, [Metric("accuracy"), *by_task, *statuses], workers)

    @classmethod
    def of_rows(cls, rewards: Sequence[WeightedReward], rows: Sequence[Mapping[str, Any]]) -> "Rubric":
        """Return a rubric for the user's own rows, with metrics for accuracy and statuses if every row has an answer.
        Raises the same errors as `of_tasks`."""
        statuses: list[Status] = ["wrong", "no_answer", "too_long"]
        metrics = [Metric("accuracy"), *(Metric(f"status/{status}", status) for status in statuses)]
        return cls(rewards, metrics if all(row["answer"] for row in rows) else [])

    def grade(self, rollouts: Sequence[Rollout]) -> None:
        """Grade all rollouts, in parallel if workers are used. Grading also caches `Rollout.score`.

        Raises `InputError` if a rollout's `info` is invalid.
        """
        pending = [threads().submit(getattr, rollout, "score") for rollout in rollouts] if self.in_workers else []
        try:
            for future in pending:
                future.result()
        finally:  # also runs after Ctrl-C; pending calls are dropped, and running calls end within a few seconds
            for future in pending:
                future.cancel()
        for rollout in rollouts:
            _ = rollout.score

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        """Score rollouts and return the results in the same order.

        Raises:
            RewardError: a reward raises an exception or does not return a finite number. The error message names the
                reward and the rollout.
            InputError: a rollout's `info` is invalid.
        """
        self.grade(rollouts)
        if any(reward.is_async for reward in self.rewards):
            values = run_each(self._values, rollouts)
        else:
            values = [{reward.name: reward.value(each, offered(each)) for reward in self.rewards} for each in rollouts]
        return [self._scored(*each) for each in zip(rollouts, values, strict=True)]

    async def _values(self, rollout: Rollout) -> dict[str, float]:
        return {reward.name: await reward.avalue(rollout, offered(rollout)) for reward in self.rewards}

    def _scored(self, rollout: Rollout, values: dict[str, float]) -> Scored:
        total = sum(reward.weight * values[reward.name] for reward in self.rewards)
        found = {metric.name: metric.of(rollout) for metric in self.metrics}
        return Scored(total, values, {name: value for name, value in found.items() if value is not None})


def offered(rollout: Rollout, completion: Any = None) -> dict[str, Any]:
    """Return the arguments for rewards, keyed by name, except `rollout` and `task`. If `completion` is given, it
    replaces the message made from the rollout's text."""
    return {
        "prompt": rollout.prompt,
        "completion": [{"role": "assistant", "content": rollout.text}] if completion is None else completion,
        "answer": rollout.answer,
        "info": rollout.info,
    }


# Built-in rewards

BREVITY_TOKENS = 512
"""Completion length in tokens at which `brevity` reaches 0."""
CHARACTERS_PER_TOKEN = 4.0
_TAG = re.compile(r"</?(?:think|answer)>")
_THINK_THEN_ANSWER = ["<think>", "</think>", "<answer>", "</answer>"]


@reward
def correctness(rollout: Rollout) -> float:
    """Return the grade: 1 if the answer is correct, otherwise 0. With `grading="partial"` or `"upstream"`, the grade
    can be partial credit in [0, 1]."""
    return rollout.score.value


@reward
def partial(rollout: Rollout) -> float:
    """Return partial credit in [0, 1] for real progress, such as correct cells in a sudoku, regardless of `grading`.
    For your own data, this reward is the same as `correctness`."""
    if rollout.score.progress is not None:
        return rollout.score.progress
    if "rg_task" not in rollout.info:  # the row is from the user's own data
        return correctness(rollout)
    return partial_score(rollout.extraction, rollout.info)


@reward("format")
def answer_format(rollout: Rollout) -> float:
    """Return 1 for a completion with a well-formed, non-blank answer, and 0 for any other completion."""
    return float(rollout.extraction.status == "ok")


@reward
def think_format(rollout: Rollout, *, opened: bool = False) -> float:
    """Return 1 for one <think> block followed by one non-blank <answer> block, and 0 for any other completion.

    Only whitespace may precede or separate the blocks. Text may follow the blocks, but it must not contain <think> or
    <answer> tags.

    Set `opened` if the chat template ends the prompt with <think>, as it does for R1-style models. The completion then
    starts inside the block.
    """
    text = f"<think>{rollout.text}" if opened else rollout.text
    tags = list(_TAG.finditer(text))
    if [tag.group() for tag in tags] != _THINK_THEN_ANSWER or rollout.extraction.status != "ok":
        return 0.0
    before, between = text[: tags[0].start()], text[tags[1].end() : tags[2].start()]
    return float(not before.strip() and not between.strip())


@reward
def tag_count(rollout: Rollout, *, opened: bool = False) -> float:
    """Return 0.25 for each of the tags <think>, </think>, <answer> and </answer> that occurs exactly once, at any
    position.

    `opened` has the same meaning as in `think_format`.
    """
    tags = [*(["<think>"] if opened else []), *_TAG.findall(rollout.text)]
    return sum(tags.count(tag) == 1 for tag in _THINK_THEN_ANSWER) / 4


@reward
def brevity(rollout: Rollout) -> float:
    """Return a value that falls linearly from 1 at 0 tokens to 0 at `BREVITY_TOKENS` for a correct answer, and 0 for
    any other answer.

    Raises `RewardError` if the answer is correct and the server did not report the number of completion tokens.
    """
    if rollout.score.status != "correct":
        return 0.0
    if rollout.completion_tokens is None:
        raise RewardError("the server reported no usage, so the number of completion tokens is unknown")
    return max(0.0, 1.0 - rollout.completion_tokens / BREVITY_TOKENS)


@reward
def length(rollout: Rollout, *, max_tokens: float = 512) -> float:
    """Return a value that falls linearly from 1 at 0 tokens to 0 at `max_tokens`, for any completion.

    This reward encourages guessing without reasoning, unless it is gated by `when: correct`.
    """
    return 1.0 - _used(rollout, max_tokens)


@reward
def cosine(
    rollout: Rollout,
    *,
    max_tokens: float = 512,
    correct_short: float = 1.0,
    correct_long: float = 0.5,
    wrong_short: float = -1.0,
    wrong_long: float = -0.5,
    exceeded: float | None = -10.0,
) -> float:
    """Return a value that follows half a cosine wave from the `short` value at 0 tokens to the `long` value at
    `max_tokens`.

    Correct and wrong completions have separate values. By default, a short completion scores higher than a long one if
    it is correct, and lower if it is wrong. At `max_tokens` and above, the value is `exceeded`, or the `long` value if
    `exceeded` is None.

    Source: Yeo et al., 2025, arXiv:2502.03373, where the five values are r_0^c, r_L^c, r_0^w, r_L^w and r_e. The paper
    uses 2, 1, -10, 0 and -10. In rg_env, only `exceeded` defaults to the paper's value. The other defaults are within
    [-1, 1], like the values of other rewards.
    """
    used = _used(rollout, max_tokens)
    if used == 1.0 and exceeded is not None:
        return exceeded
    correct = rollout.score.status == "correct"
    short, long = (correct_short, correct_long) if correct else (wrong_short, wrong_long)
    return long + (short - long) * (1 + math.cos(math.pi * used)) / 2


@reward
def repetition_penalty(rollout: Rollout, *, ngram: float = 4) -> float:
    """Return the negated share of word n-grams that repeat earlier n-grams, in [-1, 0] (Yeo et al., 2025)."""
    words = rollout.text.split()
    size = max(1, int(ngram))
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(grams)) / len(grams) - 1.0 if grams else 0.0


@reward
def overlong_penalty(rollout: Rollout, *, max_tokens: float = 512, margin: float = 128) -> float:
    """Return a value that is 0 up to `max_tokens - margin` and then falls linearly to -1 at `max_tokens`.

    This reward is the soft overlong punishment from DAPO (Yu et al., 2025, arXiv:2503.14476).
    """
    over = _length(rollout) - (max_tokens - margin)
    return -min(1.0, max(0.0, over / margin)) if margin > 0 else -float(over > 0)


def _length(rollout: Rollout) -> float:
    if rollout.completion_tokens is not None:
        return float(rollout.completion_tokens)
    return len(rollout.text) / CHARACTERS_PER_TOKEN


def _used(rollout: Rollout, max_tokens: float) -> float:
    return min(1.0, _length(rollout) / max_tokens) if max_tokens > 0 else 1.0
