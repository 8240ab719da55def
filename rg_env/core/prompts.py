"""The answer format, and chat messages built from a question and a system prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from rg_env.errors import unknown_name

SYSTEM_PROMPT = "Think step by step, then give the final answer as <answer>your answer here</answer>."
"""The default system prompt. The shipped tiny policy was trained with exactly this text."""

Placement = Literal["system", "user", "user_after"]
Messages = list[dict[str, str]]


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
