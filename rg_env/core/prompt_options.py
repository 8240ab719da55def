"""How rows are prompted and graded: arguments that every adapter takes, checked in one place.

asking = Asking.of(prompt_placement="user", grading="partial")
asking.put_rows(rows)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from rg_env.core.data.selection import Row
from rg_env.core.grading.scoring import Grading
from rg_env.core.prompts import SYSTEM_PROMPT, Placement, build_messages, fold_system
from rg_env.core.text import shortened
from rg_env.errors import InputError, unknown_name


@dataclass(frozen=True)
class Asking:
    """How questions are put, and how answers to them are graded. `of` makes one from an adapter's arguments."""

    system_prompt: str | None
    placement: Placement
    preamble: str | None
    few_shot: tuple[Mapping[str, Any], ...]
    grading: Grading

    @classmethod
    def of(
        cls,
        *,
        system_prompt: str | None = SYSTEM_PROMPT,
        prompt_placement: Placement = "system",
        preamble: str | None = None,
        few_shot: object = None,
        partial_credit: bool = False,
        grading: str = "hardened",
    ) -> "Asking":
        """The arguments mean what `adapters.v0.ReasoningGymEnv` says; `few_shot`: messages before the question.

        Raises `InputError` for what cannot work.
        """
        graded = _grading(grading, partial_credit)
        shots = _few_shot(few_shot)
        check_text("system_prompt", system_prompt or "")
        check_text("preamble", preamble or "")
        build_messages("", system_prompt, prompt_placement)  # tells a placement that there is not
        return cls(system_prompt, prompt_placement, preamble, shots, graded)

    def messages(self, question: str) -> list[dict[str, Any]]:
        """The chat that puts `question`."""
        # Before examples, a system prompt of the user's turn stands in the first of them.
        folded = self.placement == "user" and not self.preamble
        placement = "system" if folded else self.placement
        messages: list[dict[str, Any]] = build_messages(question, self.system_prompt, placement, preamble=self.preamble)
        messages[-1:-1] = map(dict, self.few_shot)
        return fold_system(messages) if folded else messages

    def put_rows(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Rows with the columns question, answer, info (with the grading), prompt (messages) and example_id."""
        return [
            {
                **row,
                "info": {**row["info"], "grading": self.grading},
                "prompt": self.messages(row["question"]),
                "example_id": index,
            }
            for index, row in enumerate(rows)
        ]


def _few_shot(messages: Any) -> tuple[Mapping[str, Any], ...]:
    if messages is None:
        return ()
    if not isinstance(messages, Sequence) or not all(
        isinstance(message, Mapping) and {"role", "content"} <= set(message) for message in messages
    ):
        raise InputError(f"few_shot must be a list of messages with role and content, not {shortened(messages)}")
    for message in messages:
        check_text("few_shot", message["content"])
    return tuple(dict(message) for message in messages)


def check_text(name: str, text: object) -> None:
    """Raise `InputError` unless `text` is text that can be written as UTF-8."""
    if not isinstance(text, str):
        raise InputError(f"{name} must be text, not {shortened(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} holds characters that cannot be written as UTF-8: {error}") from error


def _grading(grading: str, partial_credit: bool) -> Grading:
    if not isinstance(partial_credit, bool):
        raise InputError(f"partial_credit must be true or false, not {shortened(partial_credit)}")
    if grading not in get_args(Grading):
        raise unknown_name("grading", grading, get_args(Grading))
    if grading == "upstream" and partial_credit:
        raise InputError("grading='upstream' has partial credit of its own: leave partial_credit out")
    return "partial" if partial_credit else cast("Grading", grading)
