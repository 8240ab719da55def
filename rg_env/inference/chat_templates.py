"""Checks of chat templates. Tokenizers are duck-typed (`apply_chat_template`, `chat_template`), so this module does not
import transformers."""

from typing import Any

from rg_env.core.prompts import build_messages
from rg_env.core.text import reason_of
from rg_env.errors import InputError

_PROBE = "rg-env probe of the system role"
_QUESTION = "rg-env probe: 1+1?"


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
