"""From a completion to the answer in it.

The rule: the last well-formed `<answer>...</answer>` outside of thinking. Well-formed means an opening tag and the next
closing tag, with no `<answer>` between them, so that of several openings the innermost counts. Thinking is

- what follows a `<think>`, up to the next `</think>`, or to the end of a reply that was cut before it;
- all that precedes a `</think>` without a `<think>`: many chat templates put the opening tag into the prompt.

A `<think>` inside an answer is the answer's text. Nothing else in the completion counts as an answer, and these four
tags have no other spelling: `<thinking>`, `<THINK>` and `<answer >` are plain text. One pass over the tags: linear
time, whatever the text.

Not covered: a reply cut while thinking whose `<think>` is in the prompt has no tag of thinking at all, so an answer in
it counts. A server with a reasoning parser separates the two.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_TAG = re.compile(r"</?(?:answer|think)>")


@dataclass(frozen=True)
class Extraction:
    """What was found: `answer` is the text between the tags without white space around it, None unless `status` is
    "ok"."""

    status: Literal["ok", "no_answer"]
    answer: str | None


def extract(completion: object) -> Extraction:
    """The answer of a completion, in any form that `completion_text` takes. A blank answer counts as missing."""
    text = completion_text(completion)
    opened: int | None = None
    span: tuple[int, int] | None = None
    thinking = False
    for match in _TAG.finditer(text):
        tag = match.group()
        if tag == "<answer>":
            opened = None if thinking else match.end()
        elif tag == "</answer>":
            if opened is not None:
                span = opened, match.start()
                opened, thinking = None, False  # tags of thinking since the opening were the answer's text
        elif tag == "<think>":
            thinking = True
        elif thinking:
            thinking = False
        else:
            opened = span = None
    answer = text[slice(*span)].strip() if span else ""
    return Extraction("ok", answer) if answer else Extraction("no_answer", None)


def completion_text(completion: object) -> str:
    """The text of the last assistant message: of a plain text itself, of a list of messages, of one message.

    Messages are mappings or objects with `role` and `content`; content is text, None or a list of parts, of which those
    with a `text` count. No assistant message, or None, gives "".
    """
    if completion is None:
        return ""
    if isinstance(completion, str):
        return completion
    messages = completion if isinstance(completion, list | tuple) else [completion]
    for message in reversed(messages):
        if isinstance(message, str):
            return message
        if _get(message, "role") == "assistant":
            return _content_text(_get(message, "content"))
    return ""


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        texts = (part if isinstance(part, str) else _get(part, "text") for part in content)
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def _get(item: Any, key: str) -> Any:
    return item.get(key) if isinstance(item, Mapping) else getattr(item, key, None)
