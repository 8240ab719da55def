"""Checks of chat templates."""

from typing import Any

import pytest

from rg_env.errors import InputError
from rg_env.inference.chat_templates import rejects_system_role


class FakeTokenizer:
    """Tokenizer that renders messages as plain text. `drop` omits system messages, `refuse` raises on them, and
    `broken` always raises."""

    name_or_path = "models/fake"

    def __init__(self, behavior: str = "", template: str | None = "{{ messages }}") -> None:
        self.behavior, self.chat_template = behavior, template

    def apply_chat_template(self, messages: list[dict[str, Any]], tokenize: bool) -> str:
        """The messages as text."""
        has_system = any(message["role"] == "system" for message in messages)
        if self.behavior == "broken" or (self.behavior == "refuse" and has_system):
            raise RuntimeError("System role not supported")
        shown = [m for m in messages if not (self.behavior == "drop" and m["role"] == "system")]
        return "".join(f"<{m['role']}>{m['content']}" for m in shown)


@pytest.mark.parametrize(("behavior", "rejects"), [("", False), ("refuse", True), ("drop", True)])
def test_templates_without_a_system_role_are_detected(behavior: str, rejects: bool) -> None:
    """A template that raises on a system message, or drops it, rejects the role."""
    assert rejects_system_role(FakeTokenizer(behavior)) is rejects


def test_a_missing_template_is_an_input_error() -> None:
    """The error for a missing template names the model folder; a broken template is an input error as well."""
    with pytest.raises(InputError, match="the model models/fake has no chat template"):
        rejects_system_role(FakeTokenizer(template=None))
    with pytest.raises(InputError, match="fails on a plain question"):
        rejects_system_role(FakeTokenizer("broken"))
