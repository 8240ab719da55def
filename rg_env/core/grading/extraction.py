"""Extraction of the answer from a completion.

The answer is the last well-formed `<answer>...</answer>` outside any thinking section. A well-formed answer consists of
an opening tag and the next closing tag, with no `<answer>` between them, so the innermost of several opening tags
counts. A thinking section is either

- everything after a `<think>`, up to the next `</think>`, or to the end of the completion if no `</think>` follows, or
- everything before the first `</think>`, if no `<think>` precedes it, because many chat templates put the opening tag
  in the prompt.

Only the first `</think>` can end a section that the prompt opened. Later ones without a `<think>` are plain text, so a
stray `</think>` after the answer does no harm. A `<think>` inside an answer is part of the answer's text. Text outside
`<answer>` tags never counts as an answer. The four tags have no alternative spellings, so `<thinking>`, `<THINK>` and
`<answer >` are plain text. Extraction is a single pass over the tags, so it takes linear time for any text.

If `<think>` is in the prompt and the completion ends while the model is still thinking, the completion contains no
thinking tags. The trainer and evaluations of local models know the prompt, and pass its end with the completion
(`Rollout.prefix`), so an `<answer>` in the thinking section does not count. Evaluations of endpoints ask the server,
if it is vLLM. In other frameworks, the end of the prompt is unknown, unless the environment has `opens_thinking=True`.
A server with a reasoning parser separates the thinking from the answer.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

_TAG = re.compile(r"</?(?:answer|think)>")
_LABEL = re.compile(r"\banswer\b\W{0,6}(?:is\b|:)[\s*:]*", re.IGNORECASE)
_LABELLED_CHARS = 2_000
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0" + "".join(map(chr, range(0xFE00, 0xFE10))))
"""Printable characters without a visible form: fillers, the blank Braille pattern and variation selectors."""


class Extraction(NamedTuple):
    """Result of an extraction. `answer` is the stripped text between the tags, or None if `status` is not "ok"."""

    status: Literal["ok", "no_answer"]
    answer: str | None


def extract(completion: object) -> Extraction:
    """Extract the answer from a completion in any form that `completion_text` accepts. A blank answer counts as
    missing."""
    text = completion_text(completion)
    opened: int | None = None
    span: tuple[int, int] | None = None
    thinking = thought = False
    for match in _TAG.finditer(text):
        tag = match.group()
        if tag == "<answer>":
            opened = None if thinking else match.end()
        elif tag == "</answer>":
            if opened is not None:
                span = opened, match.start()
                opened, thinking = None, False  # thinking tags since the opening tag were part of the answer
        elif tag == "<think>":
            thinking = True
        else:
            if not thinking and not thought:
                opened = span = None
            thinking, thought = False, True
    answer = text[slice(*span)].strip() if span else ""
    return Extraction("ok", answer) if _is_visible(answer) else Extraction("no_answer", None)


def extract_lenient(completion: object) -> list[Extraction]:
    """Return the ways in which a reader may understand a completion without a well-formed answer, most likely first.
    For measuring how many answers only lack their tags; training never reads completions in this way.

    The first of these that occurs is read: the text after a lone `<answer>` or before a lone `</answer>`, the last
    `\\boxed{...}`, or the text after the last `answer is` or `Answer:`. Otherwise, the last paragraph and the last line
    are read. Thinking sections do not count.
    """
    text = completion_text(completion).rpartition("</think>")[2]
    if "<think>" in text:
        return []
    before, opening, after = text.rpartition("<answer>")
    if opening and "</answer>" not in after:
        return _readings(after)
    if "</answer>" in text:
        before = text.rpartition("</answer>")[0]
        return _readings(re.split(r"answer>|\n\s*\n", before)[-1])
    if boxed := _last_boxed(text):
        return _readings(boxed)
    if (labels := list(_LABEL.finditer(text))) and len(text) - labels[-1].end() <= _LABELLED_CHARS:
        return _readings(text[labels[-1].end() :])
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return _readings(paragraphs[-1], paragraphs[-1].splitlines()[-1] if paragraphs[-1] else "")


def _readings(*texts: str) -> list[Extraction]:
    return [Extraction("ok", text.strip()) for text in dict.fromkeys(texts) if _is_visible(text)]


def _last_boxed(text: str) -> str:
    """Return the content of the last complete `\\boxed{...}`, or ""."""
    start = text.rfind(r"\boxed{")
    depth = 0
    for at in range(start + 6, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return text[start + 7 : at]
    return ""


def _is_visible(text: str) -> bool:
    """Whether any character is visible, unlike spaces, control characters and zero-width characters."""
    if "!" <= text[:1] <= "~":  # true for nearly all answers
        return True
    return any(sign.isprintable() and sign != " " and sign not in _BLANKS for sign in text)


def completion_text(completion: object) -> str:
    """Return the text of a completion: the string itself, a message's content, or the content of the last assistant
    message in a list.

    Messages are mappings or objects with `role` and `content`. Content is text, None, or a list in which each item is a
    string or a part with `text`. A string in a list of messages counts as an assistant message. If the completion is
    None, or if no message is from the assistant, the text is "".
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


def is_completion(value: object) -> bool:
    """Whether `value` has a form that `completion_text` reads. An empty list counts, and None does not."""
    messages = value if isinstance(value, list | tuple) else [value]
    return not messages or any(isinstance(each, str) or _get(each, "role") == "assistant" for each in messages)


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        texts = (part if isinstance(part, str) else _get(part, "text") for part in content)
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def _get(item: Any, key: str) -> Any:
    return item.get(key) if isinstance(item, (dict, Mapping)) else getattr(item, key, None)
