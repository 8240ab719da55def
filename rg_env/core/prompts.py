"""The answer format, and chat messages built from a question and a system prompt.

Tokenizers are duck-typed (`apply_chat_template`, `chat_template`), so this module does not import transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from rg_env.core.text import reason_of
from rg_env.errors import InputError, unknown_name

SYSTEM_PROMPT = "Think step by step, then give the final answer as <answer>your answer here</answer>."
"""The default system prompt. The shipped tiny policy was trained with exactly this text."""

Placement = Literal["system", "user", "user_after"]
Messages = list[dict[str, str]]

_PROBE = "rg-env probe of the system role"
_QUESTION = "rg-env probe: 1+1?"


def build_messages(
    question: str, system_prompt: str | None, placement: Placement = "system", *, preamble: str | None = None
) -> Messages:
    """Build the chat messages for `question`.

    Args:
        system_prompt: text for the system message, or for the user turn before or after the question. If it is None or
            empty, the user turn is just the question.
        preamble: text at the start of the system message, before the system prompt if `placement` is "system".

    Raises:
        UnknownNameError: `placement` is unknown.
    """
    if placement not in get_args(Placement):
        raise unknown_name("prompt placement", placement, get_args(Placement))
    system, user = [preamble or ""], [question]
    if placement == "system":
        system.append(system_prompt or "")
    else:
        user.insert(0 if placement == "user" else 1, system_prompt or "")
    parts = (("system", system), ("user", user))
    texts = [(role, "\n\n".join(filter(None, part))) for role, part in parts]
    return [{"role": role, "content": text} for role, text in texts if text or role == "user"]


def fold_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a copy of `messages` with the system text moved to the start of the first user turn, followed by a blank
    line."""
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    folded = [dict(message) for message in messages if message["role"] != "system"]
    if not system:
        return folded
    for message in folded:
        if message["role"] == "user":
            message["content"] = f"{system}\n\n{message['content']}"
            return folded
    return [{"role": "user", "content": system}, *folded]


def require_chat_template(tokenizer: Any) -> None:
    """Raise `InputError` unless the tokenizer has a chat template that renders a single user message."""
    name = getattr(tokenizer, "name_or_path", None) or type(tokenizer).__name__
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"the model {name} has no chat template: use an instruction-tuned model, or add a "
            "chat_template.jinja to its folder"
        )
    try:
        text = tokenizer.apply_chat_template(build_messages(_QUESTION, None), tokenize=False)
    except Exception as error:  # templates can raise various errors
        raise InputError(f"the chat template of {name} fails on a plain question: {reason_of(error)}") from error
    if _QUESTION not in text:
        raise InputError(f"the chat template of {name} omits the question, so the model would never see it")


def rejects_system_role(tokenizer: Any) -> bool:
    """Whether the tokenizer's chat template rejects system messages (as Gemma's does) or drops them.

    Raises `InputError` if the tokenizer has no chat template, or if the template fails on a plain question or omits it.
    """
    require_chat_template(tokenizer)
    try:
        text = tokenizer.apply_chat_template(build_messages(_QUESTION, _PROBE), tokenize=False)
    except Exception:  # the template rejects the system role
        return True
    return _PROBE not in text
