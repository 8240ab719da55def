"""Checks of chat templates."""

from typing import Any

import pytest

from rg_env.errors import InputError
from rg_env.inference.chat_templates import rejects_system_role

BROKEN = "{{ raise_exception('no') }}"


@pytest.fixture
def rejects(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that tells whether a template, given as the text for each message `m`, rejects system roles."""

    def call(each: str | None) -> bool:
        template = each and f"{{% for m in messages %}}{each}{{% endfor %}}"
        monkeypatch.setattr(tokenizer, "chat_template", template)
        return rejects_system_role(tokenizer)

    return call


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        ("{{ m.content }}", False),
        (f"{{% if m.role == 'system' %}}{BROKEN}{{% endif %}}{{{{ m.content }}}}", True),
        ("{% if m.role != 'system' %}{{ m.content }}{% endif %}", True),
    ],
    ids=["shown", "refused", "dropped"],
)
def test_templates_without_a_system_role_are_detected(rejects: Any, each: str, expected: bool) -> None:
    """A template that raises on a system message, or drops it, rejects the role."""
    assert rejects(each) is expected


def test_a_missing_template_is_an_input_error(rejects: Any) -> None:
    """The error for a missing template names the model folder; a broken template is an input error as well."""
    with pytest.raises(InputError, match=r"the model \S+ has no chat template"):
        rejects(None)
    with pytest.raises(InputError, match="fails on a plain question"):
        rejects(BROKEN)
