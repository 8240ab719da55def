"""What a request may ask, and what is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.inference.protocol import BadRequest, ChatRequest, parse_request

MESSAGES = [{"role": "user", "content": "hello"}]


def test_the_request_of_the_trainer_is_understood() -> None:
    """Exactly what verifiers' trainer sends."""
    body = {
        "model": "m",
        "messages": MESSAGES,
        "temperature": 0.7,
        "top_p": 0.9,
        "max_completion_tokens": 12,
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": True,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "include_stop_str_in_output": False,
        "return_tokens_as_token_ids": True,
    }
    request = parse_request(body)
    assert (request.model, request.max_tokens, request.n) == ("m", 12, 1)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.7, 0.9, -1)
    assert request.logprobs
    assert request.tokens_as_ids
    assert not request.skip_special_tokens


def test_nulls_are_as_good_as_absent() -> None:
    """Clients send null for what they leave open."""
    fields = ("temperature", "stop", "tools", "seed", "max_tokens", "stream", "anything")
    assert parse_request({"messages": MESSAGES, **dict.fromkeys(fields)}) == ChatRequest("", MESSAGES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", True),
        ("stop", ["\n"]),
        ("stop", "x"),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}),
        ("top_logprobs", 3),
        ("seed", 1),
        ("min_tokens", 3),
        ("guided_json", {}),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", 1.5),
        ("max_tokens", 0),
        ("max_tokens", 10**12),
        ("n", 0),
        ("logprobs", 1),
        ("model", 3),
        ("messages", []),
        ("messages", "hello"),
        ("messages", [{"content": "no role"}]),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    ],
)
def test_what_is_not_done_is_refused(field: str, value: object) -> None:
    """With a 400 that names the field; nothing is ignored."""
    with pytest.raises(BadRequest) as caught:
        parse_request({"messages": MESSAGES, field: value})
    assert caught.value.status == 400
    assert caught.value.param == field


def test_two_different_limits_are_refused() -> None:
    """`max_tokens` is the old name of `max_completion_tokens`."""
    with pytest.raises(BadRequest, match="differ"):
        parse_request({"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 4})


def test_text_parts_are_joined() -> None:
    """As the API allows."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse_request({"messages": [{"role": "user", "content": parts}]}).messages[0]["content"] == "ab"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["messages", "model", "temperature", "top_k", "n", "stop", "max_tokens", "logprobs", "odd"])


@given(st.dictionaries(names, json_values, max_size=6) | json_values)
def test_any_json_is_parsed_or_refused(body: object) -> None:
    """Nothing else is raised, whatever comes over the wire."""
    with contextlib.suppress(BadRequest):
        assert isinstance(parse_request(body), ChatRequest)
