"""Sections that configs of training and of evaluation share, and the types of their fields."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from rg_env.core.config import Section
from rg_env.core.prompts import SYSTEM_PROMPT, Placement

_MOST = 2**31 - 1  # what every library takes for a count
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Share = Annotated[float, Field(ge=0, le=1)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
From0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _path(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a null character, which no name and no path has")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_path)]


class TaskOptions(Section):
    """How hard a task's questions are."""

    config: dict[str, Any] = Field(default_factory=dict)
    """Options of the task (`rg-env tasks NAME` lists them)."""
    level: Count | None = None
    """Level of difficulty of all attributes of the task's curriculum."""
    levels: dict[str, Count] = Field(default_factory=dict)
    """Levels of single attributes."""


def named(example: str, remedy: str) -> Callable[[Any], Any]:
    """What takes a name, or a list of names and of mappings with a name, for the mapping of names that it stands for.

    `example` of such a mapping, and the `remedy` for a name that stands twice, are for its errors.
    """

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            return value
        entries: dict[str, Any] = {}
        for item in value:
            rest = dict(item) if isinstance(item, Mapping) else {}
            name = rest.pop("name", None) if rest else item
            if not isinstance(name, str):
                raise ValueError(f"a list of tasks holds names, or mappings with a name: [a, {example}]")
            if name in entries:
                raise ValueError(f"task {name!r} stands twice: {remedy}")
            entries[name] = rest
        return entries

    return read


class PromptConfig(Section):
    """How a question is put."""

    system_prompt: str = SYSTEM_PROMPT
    """How to answer; the answer is read from the last <answer>...</answer> outside of thinking. Empty: the question
    alone."""
    placement: Placement = "system"
    """Where `system_prompt` stands: "system" message, or in the "user" turn before ("user") or after the question
    ("user_after")."""
    preamble: str = ""
    """A system message besides, before a `system_prompt` that stands there; empty: none."""


class RewardConfig(Section):
    """One reward, under its name. A number alone is its weight."""

    weight: Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)] = 1.0
    """In the sum; below 0 it is a penalty."""
    when: Literal["answered", "correct", "not_correct"] | None = None
    """Pays for such completions alone."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the reward function."""


def _weighted(value: Any) -> Any:
    """A number alone is a reward's weight."""
    if not isinstance(value, Mapping):
        return value
    return {name: {"weight": each} if type(each) in (int, float) else each for name, each in value.items()}


Rewards = Annotated[dict[str, RewardConfig], BeforeValidator(_weighted)]
"""Rewards by name."""


def default_rewards() -> dict[str, RewardConfig]:
    """The format is worth little, so that no form pays more than being right."""
    return {"correctness": RewardConfig(weight=1.0), "format": RewardConfig(weight=0.1)}
