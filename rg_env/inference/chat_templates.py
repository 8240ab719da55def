"""Checks of chat templates. Tokenizers are duck-typed (`apply_chat_template`, `chat_template`), so this module does not
import transformers."""

import ctypes
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rg_env.core.prompts import build_messages
from rg_env.core.text import reason_of, shortened
from rg_env.errors import InputError

_PROBE = "rg-env probe of the system role"
_QUESTION = "rg-env probe: 1+1?"
_REPLY = "rg-env probe: 2"
_RENDER_S = 20.0
"""Seconds after which rendering is ended, plus a hundredth of that for each chat. A usual template takes less than a
millisecond."""


class TemplateTooSlowError(InputError):
    """Rendering a prompt with a chat template takes too long."""

    def __init__(self) -> None:
        super().__init__(
            f"the chat template takes more than {_RENDER_S:g} s, perhaps because of a loop: use another model"
        )


def render(tokenizer: Any, messages: Any, **options: Any) -> Any:
    """Return what the tokenizer's `apply_chat_template` returns for a chat or a list of chats.

    Raises:
        TemplateTooSlowError: the template, which may be a stranger's, runs too long.
        Exception: any error from the template.
    """
    chats = len(messages) if messages and not isinstance(messages[0], Mapping) else 1
    thread, set_error = ctypes.c_ulong(threading.get_ident()), ctypes.pythonapi.PyThreadState_SetAsyncExc
    # Templates are Python code that cannot catch the error, and signals would be limited to the main thread.
    timer = threading.Timer(
        _RENDER_S + chats * _RENDER_S / 100, set_error, (thread, ctypes.py_object(TemplateTooSlowError))
    )
    timer.daemon = True
    timer.start()
    try:
        return tokenizer.apply_chat_template(messages, **options)
    finally:
        timer.cancel()
        timer.join()
        set_error(thread, None)  # in case the time ran out just now


def require_chat_template(tokenizer: Any) -> None:
    """Raise `InputError` unless the tokenizer has a chat template that renders a single user message."""
    name = getattr(tokenizer, "name_or_path", None) or type(tokenizer).__name__
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"the model {name} has no chat template: use an instruction-tuned model, or add a "
            "chat_template.jinja to its folder"
        )
    try:
        text = render(tokenizer, build_messages(_QUESTION, None), tokenize=False)
    except Exception as error:  # templates can raise various errors
        raise InputError(f"the chat template of {name} fails on a plain question: {reason_of(error)}") from error
    if _QUESTION not in text:
        raise InputError(f"the chat template of {name} omits the question, so the model would never see it")


def is_continued(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a model continues the last message, which is the assistant's, instead of starting a new turn."""
    return bool(messages) and messages[-1]["role"] == "assistant"


def generation_options(continues: bool) -> dict[str, bool]:
    """Return the options of `apply_chat_template`, which are also fields of requests to vLLM, with which a model
    continues a final assistant message, or else starts a new turn."""
    return {"add_generation_prompt": not continues, **({"continue_final_message": True} if continues else {})}


def unused_variables(tokenizer: Any, names: Iterable[str]) -> list[str]:
    """Return the names of variables that do not occur in the tokenizer's chat template."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    return [name for name in names if not re.search(rf"\b{re.escape(name)}\b", template)]


def rejects_system_role(tokenizer: Any) -> bool:
    """Whether the tokenizer's chat template rejects system messages (as Gemma's does) or drops them.

    Raises `InputError` if the tokenizer has no chat template, or if the template fails on a plain question or omits it.
    """
    require_chat_template(tokenizer)
    try:
        text = render(tokenizer, build_messages(_QUESTION, _PROBE), tokenize=False)
    except Exception:  # the template rejects the system role
        return True
    return _PROBE not in text


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids of the tokens that end a completion: those in the tokenizer and the generation config (Llama 3 has
    three), and the special token that the chat template writes after an assistant message.

    Raises:
        InputError: the generation config's `eos_token_id` is neither a token id nor a list of token ids.
    """
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = list(configured) if isinstance(configured, list | tuple) else [configured]
    if not all(token is None or type(token) is int for token in ends):
        raise InputError(
            f"generation_config.json has eos_token_id={shortened(configured)}: use a token id or a list of token ids"
        )
    ends += [tokenizer.eos_token_id, _turn_end(tokenizer)]
    return frozenset(token for token in ends if token is not None and token >= 0)


def _turn_end(tokenizer: Any) -> int | None:
    """Return the special token that the chat template writes after an assistant message, or None."""
    messages = [*build_messages(_QUESTION, None), {"role": "assistant", "content": _REPLY}]
    try:
        _, reply, rest = render(tokenizer, messages, tokenize=False).partition(_REPLY)
    except Exception:  # the template rejects the messages
        return None
    ids = tokenizer(rest.lstrip(), add_special_tokens=False)["input_ids"] if reply else []
    return ids[0] if ids and ids[0] in tokenizer.added_tokens_decoder else None
