"""Registration, resolution and calls of reward functions.

    @reward                       # or @reward("short_name")
    def ends_well(rollout):
        return float(rollout.text.endswith("</answer>"))

A reward is a named function of a rollout. The function requests inputs by parameter name. The available names are
`rollout` (the complete `Rollout`, extracted and scored) and the names that Verifiers uses: prompt, completion, answer
(the gold answer), state, task, info and parser. Other parameters must have defaults and can be set with `options`. A
reward returns a number, which must be from -1e38 to 1e38 and by convention is in [-1, 1]. A reward may be async.
"""

import asyncio
import functools
import inspect
import numbers
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, get_args, overload

from pydantic import ValidationError

from rg_env.core.config.parsing import DEFAULT_REWARDS, RewardConfig, input_error
from rg_env.core.event_loop import is_canceled, run_async
from rg_env.core.grading.scoring import Rollout
from rg_env.core.text import definition_line, is_number, shortened, user_error
from rg_env.errors import InputError, RewardError, nearest, unknown_name

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
_MAX_VALUE = 1e38
_VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_VERL = {"data_source": "task", "solution_str": "rollout.text", "ground_truth": "answer", "extra_info": "info"}
"""Parameters of verl's reward functions, with what they are here."""
_BATCH = {"completions": "rollout.text", "prompts": "rollout.prompt", "completion_ids": "rollout.token_ids"}
"""Parameters of reward functions for TRL, each with one rollout's value."""
_ONE_ROLLOUT = "a reward scores one rollout and returns a number"
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
        return self._checked(value, where)

    async def avalue(self, rollout: Rollout, available: Mapping[str, Any]) -> float:
        """Return the same reward as `value`, but await an async function in the caller's event loop."""
        if not self._is_open(rollout):
            return 0.0
        with _failing(self.name, rollout) as where:
            value = _called(self.function, rollout, available)
            value = await value if inspect.isawaitable(value) else value
        return self._checked(value, where)

    def _checked(self, value: object, where: str) -> float:
        found = checked_value(self.name, value, where, self.function)
        if abs(self.weight * found) > _MAX_VALUE:
            raise RewardError(
                f"reward {self.name!r} returned {found:g}, above 1e38 with its weight {self.weight:g}; {where}"
            )
        return found

    def _is_open(self, rollout: Rollout) -> bool:
        return not self.when or GATES[self.when](rollout)


_REGISTRY: dict[str, RewardFunction] = {}


@overload
def reward(name: _F) -> _F: ...
@overload
def reward(name: str | None = None) -> Callable[[_F], _F]: ...
def reward(name: Any = None) -> Any:
    """Register a reward function under its own name (`@reward` or `@reward()`) or another name (`@reward("name")`).

    Raises `InputError` if the name is already taken or the signature is not supported.
    """
    if name is None:
        return reward
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
        own = "decorate your own with @reward (in a config, list its file under imports)"
        hint = "" if nearest(name, _REGISTRY) else f"available: {', '.join(sorted(_REGISTRY))}; {own}"
        raise unknown_name("reward", name, _REGISTRY, hint=hint)
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
        if parameter.kind in _VARIABLE:
            continue
        if parameter.name in _BATCH:
            needed = [each.name for each in parameters if each.default is each.empty and each.kind not in _VARIABLE]
            call = ", ".join(f"{each}=[{_BATCH.get(each, f'rollout.row[{each!r}]')}]" for each in needed)
            raise InputError(
                f"reward {name!r} takes a batch ({parameter.name!r}), as in TRL, but {_ONE_ROLLOUT}: wrap "
                f"it, as in `def NAME(rollout): return {name}({call})[0]`"
            )
        if parameter.name in _VERL and parameter.default is parameter.empty:
            call = ", ".join(f"{each.name}={_VERL[each.name]}" for each in parameters if each.name in _VERL)
            raise InputError(
                f"reward {name!r} takes {parameter.name!r}, as in verl: wrap it, as in "
                f"`def NAME(rollout, task, answer, info): return {name}({call})`"
            )
        if parameter.name not in PARAMETERS and parameter.default is parameter.empty:
            raise unknown_name(f"parameter of reward {name!r}", parameter.name, PARAMETERS)


def resolve_rewards(spec: object = None) -> list[WeightedReward]:
    """Resolve `spec` to weighted rewards. None means `DEFAULT_REWARDS`. Raises `InputError` if `spec` is invalid.

    `spec` can be a list whose items are names, functions, (name or function, weight) pairs, or settings. `spec` can
    also be a mapping from each name to its weight or settings. Settings are a `RewardConfig`, or a mapping that can
    have the keys `name`, `weight` (1 by default; with 0, the reward is only logged), `when` (a key of `GATES`) and
    `options` (values for the function's own parameters).
    """
    if spec is None:
        spec = DEFAULT_REWARDS
    if isinstance(spec, Mapping) and spec:
        spec = [_named(key, value) for key, value in spec.items()]
    elif isinstance(spec, str) or callable(spec):
        spec = [spec]
    if not isinstance(spec, Sequence) or not spec:
        raise InputError(
            f"rewards must be a list of names, functions or (name, weight) pairs, or a mapping of names to weights, "
            f"not {shortened(spec)}"
        )
    resolved = [_resolve(item) for item in spec]
    for name, times in Counter(item.name for item in resolved).items():
        if times > 1:
            raise InputError(
                f"reward {name!r} appears twice, but names must be unique: list it once, or register the second "
                "function under another name with rg_env.reward(NAME)"
            )
    return resolved


def _named(name: Any, value: Any) -> Any:
    if callable(value):
        raise InputError(
            f"reward {name!r}: a mapping has weights, not functions: list functions, or register this one by "
            f"rg_env.reward({name!r})(function) and set its weight here"
        )
    if isinstance(value, RewardConfig):
        value = value.model_dump()
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
        is_list = isinstance(error, AttributeError | TypeError) and "'list'" in str(error)
        hint = "; if it takes the prompt or completion for text: these are lists of messages, so use rollout.text"
        raise RewardError(f"reward {name!r} raised {user_error(error)}{hint if is_list else ''}; {where}") from error


def checked_value(name: str, value: object, where: str, function: object = None) -> float:
    """Return `value` as a float. Raises `RewardError` unless `value` is a number from -1e38 to 1e38, which float32
    can hold. Booleans, and scalars from numpy and torch, count as numbers.

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
    hint = f" ({_ONE_ROLLOUT})" if isinstance(value, list | tuple) else ""
    line = definition_line(function)
    raise RewardError(
        f"reward {name!r} returned {shortened(value)}, not a finite number up to 1e38{hint}{line}; {where}"
    )


def describe(task: object, answer: object, text: object) -> str:
    """Return one line that identifies a rollout in an error message, with the rollout's text shortened."""
    return f"task {task}, answer {shortened(answer)}, completion {shortened(text)}"


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _origin(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
