"""Prompts and chat templates."""

from typing import Any

import pytest

from rg_env.core.prompts import SYSTEM_PROMPT, build_messages, fold_system, rejects_system_role
from rg_env.errors import InputError, UnknownNameError


class FakeTokenizer:
    """Renders messages plainly; `drop` leaves system messages out, `refuse` raises on them, `broken` always."""

    name_or_path = "models/fake"

    def __init__(self, behaviour: str = "", template: str | None = "{{ messages }}") -> None:
        self.behaviour, self.chat_template = behaviour, template

    def apply_chat_template(self, messages: list[dict[str, Any]], tokenize: bool) -> str:
        """The messages as text."""
        has_system = any(message["role"] == "system" for message in messages)
        if self.behaviour == "broken" or (self.behaviour == "refuse" and has_system):
            raise RuntimeError("System role not supported")
        shown = [m for m in messages if not (self.behaviour == "drop" and m["role"] == "system")]
        return "".join(f"<{m['role']}>{m['content']}" for m in shown)


def test_the_shipped_prompt_is_exact() -> None:
    """The tiny policy was built with this very text."""
    assert SYSTEM_PROMPT == "Think step by step, then give the final answer as <answer>your answer here</answer>."


def test_the_system_prompt_goes_where_it_is_asked() -> None:
    """In a system message, or before the question with a blank line between; none if there is none."""
    system, user = {"role": "system", "content": "S"}, {"role": "user", "content": "Q"}
    assert build_messages("Q", "S") == [system, user]
    assert build_messages("Q", "S", "user") == [{"role": "user", "content": "S\n\nQ"}]
    assert build_messages("Q", None) == build_messages("Q", "", "user") == [user]
    with pytest.raises(UnknownNameError, match="placement 'sytem': did you mean 'system'"):
        build_messages("Q", "S", "sytem")  # type: ignore[arg-type]


def test_folding_leaves_the_rest_alone() -> None:
    """Only the first user turn changes, and the given messages stay as they were."""
    messages = [
        {"role": r, "content": c} for r, c in [("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    ]
    before = [dict(message) for message in messages]
    assert [m["content"] for m in fold_system(messages)] == ["S\n\na", "b", "c"]
    assert messages == before
    assert fold_system(messages[:1]) == [{"role": "user", "content": "S"}]
    assert fold_system(messages[1:]) == messages[1:]


@pytest.mark.parametrize(("behaviour", "rejects"), [("", False), ("refuse", True), ("drop", True)])
def test_templates_without_a_system_role_are_noticed(behaviour: str, rejects: bool) -> None:
    """A template that raises on a system message, or drops it, rejects the role."""
    assert rejects_system_role(FakeTokenizer(behaviour)) is rejects


def test_a_missing_template_is_an_input_error() -> None:
    """A model folder without a chat template, or with a broken one, is told by name."""
    with pytest.raises(InputError, match="the model models/fake has no chat template"):
        rejects_system_role(FakeTokenizer(template=None))
    with pytest.raises(InputError, match="fails on a plain question"):
        rejects_system_role(FakeTokenizer("broken"))


@pytest.mark.parametrize(
    ("placement", "system", "user"),
    [
        ("system", "Be brief.\n\nUse tags.", "1+1?"),
        ("user", "Be brief.", "Use tags.\n\n1+1?"),
        ("user_after", "Be brief.", "1+1?\n\nUse tags."),
    ],
)
def test_a_system_prompt_stands_where_it_is_placed_and_a_preamble_in_the_system_message(placement, system, user):
    messages = build_messages("1+1?", "Use tags.", placement, preamble="Be brief.")
    assert messages == [{"role": "system", "content": system}, {"role": "user", "content": user}]
