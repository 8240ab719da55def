"""Graders of the induction tasks."""

from rg_env.core.graders import forms
from rg_env.core.graders.common import word
from rg_env.core.graders.types import Config, Entry, Grader

_MAX_TEXT = 1_000
"""Ten numbers take a tenth of it."""


def acre(answer: str, entry: Entry, config: Config) -> float:
    """The word, `on`, `off` or `undetermined`, in any letter case, in quotation marks or not."""
    return word(answer.strip().strip("\"'"), entry, config)


def list_functions(answer: str, entry: Entry, config: Config) -> float:
    """The same numbers in the same order, with brackets or, unless the list is empty, without."""
    numbers = forms.numbers(answer.replace("{,}", "")) if len(answer) <= _MAX_TEXT else None
    if numbers is None or not (numbers or "[" in answer):
        return 0.0
    return float(numbers == forms.numbers(entry["answer"]))


GRADERS: dict[str, Grader] = {"acre": acre, "list_functions": list_functions}
