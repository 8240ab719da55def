"""Functions that take the parameters of another, without a second list of them."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from rg_env.errors import unknown_name

P = ParamSpec("P")
T = TypeVar("T")


def with_parameters_of(target: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """A decorator for a function that passes its arguments on to `target`: it gets the signature of `target`, and
    raises `UnknownNameError` for a keyword that `target` lacks."""
    signature = inspect.signature(target)
    takes_all = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in signature.parameters and not takes_all:
                    raise unknown_name("parameter of the environment", name, signature.parameters)
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate
