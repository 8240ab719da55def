"""Checks of chat templates."""

from types import SimpleNamespace
from typing import Any

import pytest

from rg_env.errors import InputError
from rg_env.inference import chat_templates
from rg_env.inference.chat_templates import end_ids, rejects_system_role
from rg_env.inference.protocol import PromptEncoder

LOOP = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
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


# Prompts


THINKS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% if not loop.last or m.role != 'assistant' %}[end]"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% if enable_thinking is false %}<think></think>"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
"""A template that opens a thinking section, like those of R1 and Qwen3."""
QUESTION = [{"role": "user", "content": "Use <think> tags: 1+1?"}]


@pytest.fixture
def thinking(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tokenizer, "chat_template", THINKS)
    return tokenizer


def test_a_final_assistant_message_is_continued(tokenizer: Any, thinking: Any) -> None:
    """The prompt ends with the message, which is also the start of the completion, in training and on a server."""
    encoder = PromptEncoder(thinking)
    prompt = [*QUESTION, {"role": "assistant", "content": "Let me think. <think>"}]
    assert tokenizer.decode(encoder(prompt)).endswith("[assistant]Let me think. <think>")
    assert encoder.prefix(prompt) == "Let me think. <think>"
    assert encoder.chat(prompt) == {
        "messages": prompt, "add_generation_prompt": False, "continue_final_message": True
    }  # fmt: skip
    assert encoder.chat(QUESTION) == {"messages": QUESTION, "add_generation_prompt": True}


def test_a_template_that_drops_the_message_cannot_continue_it(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", "{% for m in messages[:1] %}{{ m.content }}{% endfor %}")
    with pytest.raises(InputError, match="the chat template cannot continue a final assistant message"):
        PromptEncoder(tokenizer)([*QUESTION, {"role": "assistant", "content": "So"}])


def test_the_thinking_section_that_a_template_opens_is_part_of_the_completion(thinking: Any) -> None:
    """Tags in questions do not count. A prompt given as text counts if it ends with the tag."""
    assert PromptEncoder(thinking).prefix(QUESTION) == "<think>\n"
    assert PromptEncoder(thinking, {"enable_thinking": False}).prefix(QUESTION) == "<think></think>"
    assert PromptEncoder(thinking).prefix("User: 1+1? Assistant: <think>\n") == "<think>"
    assert PromptEncoder(thinking).prefix("Write <think> first") == ""
    thinking.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert PromptEncoder(thinking).prefix(QUESTION) == ""


def test_variables_of_the_template_can_be_set(thinking: Any) -> None:
    """A variable that the template does not use is an error, because a misspelt one would change nothing."""
    encoder = PromptEncoder(thinking, {"enable_thinking": False})
    assert thinking.decode(encoder(QUESTION)).endswith("[assistant]<think></think>")
    assert encoder.chat(QUESTION)["chat_template_kwargs"] == {"enable_thinking": False}
    with pytest.raises(InputError, match=r"the chat template of \S+ does not use enable_thinkin, thinks: remove"):
        PromptEncoder(thinking, {"enable_thinkin": False, "thinks": 1})


@pytest.mark.parametrize("only_after", ["", "another question"])
def test_a_template_that_loops_ends_with_one_line(
    only_after: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox limits each loop but not nested loops. A template can also wait for a certain prompt."""
    monkeypatch.setattr(chat_templates, "_RENDER_S", 0.2)
    loop = f"{{% if {only_after!r} in messages[-1].content %}}{LOOP}{{% endif %}}{{{{ messages[-1].content }}}}"
    monkeypatch.setattr(tokenizer, "chat_template", loop)
    encoder = PromptEncoder(tokenizer)
    with pytest.raises(InputError, match=r"the chat template takes more than 0\.2 s, perhaps because of a loop"):
        encoder([{"role": "user", "content": "another question"}])
    if only_after:
        assert encoder([{"role": "user", "content": "a"}]) == tokenizer("a")["input_ids"]
