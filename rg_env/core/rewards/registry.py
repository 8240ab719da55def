"""The reward registry: registering, weighting, gating and calling rewards. `rewards.builtin` has the built-in ones.

A reward function requests its inputs by parameter name: `rollout` (the whole `Rollout`, extracted and scored), or the
names of Verifiers: prompt, completion, answer (the gold answer), state, task, info, parser. Other parameters must have
defaults, and can be set with `options`. A reward returns a finite number, by convention in [0, 1]. It may be async; the
rollouts of a batch are then scored concurrently.
"""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, get_args, overload

from rg_env.core.event_loop import run_async
from rg_env.core.grading.rollout import Rollout
from rg_env.core.text import definition_line, is_number, shortened, user_error
from rg_env.errors import InputError, RewardError, unknown_name

RewardFunction = Callable[..., Any]
_F = TypeVar("_F", bound=RewardFunction)

PARAMETERS = ("rollout", "prompt", "completion", "answer", "state", "task", "info", "parser")
"""Parameter names that a reward function may use."""
DEFAULT_REWARDS = (("correctness", 1.0), ("format", 0.1))
GATES: dict[str, Callable[[Rollout], bool]] = {
    "answered": lambda rollout: rollout.extraction.status == "ok",
    "correct": lambda rollout: rollout.score.status == "correct",
    "not_correct": lambda rollout: rollout.score.status != "correct",
}
"""Conditions by name; a gated reward is 0 for rollouts that do not meet its condition."""
_KEYS = ("name", "weight", "when", "options")
_AT_LEAST_0 = ("max_tokens", "margin", "ngram")


class WeightedReward(NamedTuple):
    """One term of the weighted sum of rewards."""

    name: str
    function: RewardFunction
    weight: float
    when: str | None = None

    @property
    def is_async(self) -> bool:
        """Whether the function is async; if so, `value` blocks until it has finished."""
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004

    def value(self, rollout: Rollout, available: Mapping[str, Any]) -> float:
        """The unweighted reward; 0.0 if the gate is closed. Raises `RewardError` as `call_reward`."""
        return call_reward(self.name, self.function, rollout, available) if self._is_open(rollout) else 0.0

    async def avalue(self, rollout: Rollout, available: Mapping[str, Any]) -> float:
        """`value` for callers in an event loop."""
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
    """Register a reward function under its own name (`@reward`) or another (`@reward("name")`).

    Raises `InputError` if the name is taken or the signature is not supported.
    """
    if callable(name):
        return _register(_name_of(name), name)
    if not isinstance(name, str):
        raise InputError(f"@reward takes an optional name, not {name!r}")
    return lambda function: _register(name, function)


def _register(name: str, function: _F) -> _F:
    check_signature(name, function)
    known = _REGISTRY.get(name)
    # Re-running the same source (a notebook cell, a module executed twice) replaces a reward; another function fails.
    if known is not None and _origin(known) != _origin(function):
        raise InputError(f"reward {name!r} is already registered by {_origin(known)}: choose another name")
    _REGISTRY[name] = function
    return function


def get_reward(name: str) -> RewardFunction:
    """The registered reward function `name`. Raises `UnknownNameError`, which suggests similar names."""
    if name not in _REGISTRY:
        raise unknown_name("reward", name, _REGISTRY)
    return _REGISTRY[name]


def check_signature(name: str, function: RewardFunction) -> None:
    """Raise `InputError` if `function` needs a parameter that is not in `PARAMETERS`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise InputError(f"reward {name!r} has no readable signature: {error}") from error
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InputError(f"reward {name!r}: parameter {parameter.name!r} is positional-only: make it a keyword")
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.name not in PARAMETERS and parameter.default is parameter.empty:
            raise unknown_name(f"parameter of reward {name!r}", parameter.name, PARAMETERS)


def resolve_rewards(spec: object = None) -> list[WeightedReward]:
    """Resolve `spec` to weighted rewards; None means `DEFAULT_REWARDS`. Raises `InputError` if it is invalid.

    `spec` is a list of names, functions, (name or function, weight) pairs and mappings, or a mapping from name to
    weight or to such a mapping. Keys of a mapping: `name`; `weight` (default 1; 0: a metric only); `when`, a key of
    `GATES`; `options`, values for the function's own parameters.
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
    names = [item.name for item in resolved]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"reward {name!r} appears twice: names must be unique")
    return resolved


def _named(name: Any, value: Any) -> Any:
    """Convert an entry of a mapping by name to an entry of a list."""
    if not isinstance(value, Mapping):
        return name, value
    if value.get("name", name) != name:
        raise InputError(f"reward {name!r}: its mapping has another name, {shortened(value['name'])}")
    return {"name": name, **value}


def _resolve(item: Any) -> WeightedReward:
    if isinstance(item, tuple | list):
        if len(item) != 2:
            raise InputError(f"a reward with a weight must be a pair (reward, weight), not {item!r}")
        item = {"name": item[0], "weight": item[1]}
    elif not isinstance(item, Mapping):
        item = {"name": item}
    for key in item:
        if key not in _KEYS:
            raise unknown_name("key of a reward", key, _KEYS)
    if "name" not in item:
        raise InputError(f"a reward needs a name: {dict(item)!r}")
    named, weight, when = item["name"], item.get("weight", 1.0), item.get("when")
    if isinstance(named, str):
        name, function = named, get_reward(named)
    elif callable(named):
        name, function = _name_of(named), named
        check_signature(name, function)
    else:
        raise InputError(f"a reward must be a name or a function, not {named!r}")
    if not is_number(weight):
        raise InputError(f"reward {name!r}: weight must be a finite number, not {shortened(weight)}")
    if when is not None and (not isinstance(when, str) or when not in GATES):
        raise unknown_name(f"gate of reward {name!r}", when, GATES)
    return WeightedReward(name, _with_options(name, function, item.get("options")), float(weight), when)


def _with_options(name: str, function: RewardFunction, options: Any) -> RewardFunction:
    if options is None:
        return function
    if not isinstance(options, Mapping):
        raise InputError(f"reward {name!r}: options must be a mapping, not {shortened(options)}")
    own = {
        parameter.name: parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in PARAMETERS and parameter.default is not parameter.empty
    }
    for option, value in options.items():
        if option not in own:
            raise unknown_name(f"option of reward {name!r}", option, own).at("options", str(option))
        default, kind = own[option].default, ""
        if value is None and type(None) in get_args(own[option].annotation):
            continue
        if option in _AT_LEAST_0 and not (is_number(value) and value >= 0):
            kind = "a number from 0 up"
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
                    f"reward {name!r} needs {parameter.name!r}, which {where} does not have; available: "
                    f"{', '.join(offered)}"
                )


def call_reward(name: str, function: RewardFunction, rollout: Rollout, available: Mapping[str, Any]) -> float:
    """Call a reward function with its parameters from `rollout` and `available` (keys of `PARAMETERS`).

    Raises `RewardError`, which names the reward and the rollout, if the function raises or returns anything but a
    finite number.
    """
    with _failing(name, rollout) as where:
        value = _called(function, rollout, available)
        value = run_async(value) if inspect.isawaitable(value) else value
    return checked_value(name, value, where, function)


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
    except Exception as error:
        raise RewardError(f"reward {name!r} raised {user_error(error)}; {where}") from error


def checked_value(name: str, value: object, where: str, function: object = None) -> float:
    """`value` as a float. Raises `RewardError` unless it is a finite number (booleans and numpy scalars count).

    The message has the file and line of `function`, if it is the user's own.
    """
    try:
        number = value.item() if hasattr(value, "item") else value  # numpy, torch; raises if not scalar
        if isinstance(number, numbers.Real) and math.isfinite(number):
            return float(number)
    except (ValueError, RuntimeError, OverflowError):  # OverflowError: 10**400
        pass
    raise RewardError(
        f"reward {name!r} returned {shortened(value)}, not a finite number{definition_line(function)}; {where}"
    )


def describe(task: object, answer: object, text: object) -> str:
    """One line that identifies a rollout in an error message, its text shortened."""
    return f"task {task}, answer {shortened(answer)}, completion {shortened(text)}"


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _origin(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
