"""Checks of chat templates."""

from types import SimpleNamespace
from typing import Any

import pytest

from rg_env.errors import InputError
from rg_env.inference.chat_templates import end_ids, rejects_system_role

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


def model_with(eos: Any) -> Any:
    return SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=eos))


@pytest.mark.parametrize(
    ("each", "ends"),
    [
        ("{{ m.role }}: {{ m.content }}\n", set()),
        ("{{ m.role }}: {{ m.content }} <|end|>\n", {"<|end|>"}),
        ("{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}<|end|>{% endif %}", {"<|end|>"}),
        ("{% if m.role == 'user' %}{{ m.content }}{% endif %}<|end|>", set()),
        (f"{{% if m.role == 'assistant' %}}{BROKEN}{{% endif %}}{{{{ m.content }}}}<|end|>", set()),
    ],
    ids=["no token", "after all messages", "after replies", "replies dropped", "replies refused"],
)
def test_the_token_after_a_reply_in_the_template_ends_a_completion(each: str, ends: set[str], tokenizer: Any) -> None:
    """Without it, a completion would run into further turns if neither the tokenizer nor the generation config names
    the token."""
    tokenizer = type(tokenizer).from_pretrained(tokenizer.name_or_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    tokenizer.chat_template = f"{{% for m in messages %}}{each}{{% endfor %}}"
    tokens = {*tokenizer.convert_tokens_to_ids(sorted(ends)), tokenizer.eos_token_id}
    assert end_ids(model_with(None), tokenizer) == tokens
    assert end_ids(model_with([11, 12]), tokenizer) == tokens | {11, 12}


@pytest.mark.parametrize("eos", ["abc", [[1]], [1, None, 2.5], True])
def test_damaged_end_tokens_are_refused(eos: Any, tokenizer: Any) -> None:
    """The error names the file and the value."""
    with pytest.raises(InputError, match=r"generation_config\.json has eos_token_id=.*: use a token id or a list"):
        end_ids(model_with(eos), tokenizer)
