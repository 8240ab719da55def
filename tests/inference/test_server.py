"""The embedded engine's HTTP server, as used by OpenAI's client, lm-eval and others."""

import contextlib
import copy
import json
import logging
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import LoopbackServer

from rg_env.errors import InputError
from rg_env.inference.embedded import server as api
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.embedded.server import BadRequest, ChatRequest, CompletionRequest, make_app
from rg_env.tiny import POLICY_DIR

MESSAGES = [{"role": "user", "content": "Now, how many legs if you have 2 dogs?"}]
Ask = Callable[..., Any]


@pytest.fixture
def server(engine: EmbeddedEngine) -> Iterator[LoopbackServer]:
    with LoopbackServer(list(make_app(engine).routes), log_level="warning") as server:
        yield server


@pytest.fixture
def client(server: LoopbackServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="EMPTY", max_retries=0) as client:
        yield client


@pytest.fixture
def ask(client: openai.OpenAI) -> Ask:
    """Return a function that sends a chat request."""
    return lambda **body: client.chat.completions.create(
        **{"model": "tiny", "messages": MESSAGES, "max_tokens": 16, **body}
    )


@pytest.fixture
def complete(client: openai.OpenAI) -> Ask:
    """Return a function that sends a completion request."""
    return lambda **body: client.completions.create(**{"model": "tiny", "prompt": "1 + 2 =", "temperature": 0, **body})


def post(server: LoopbackServer, data: bytes) -> tuple[int, Any]:
    answer = httpx.post(f"{server.address}/v1/chat/completions", content=data, timeout=30)
    return answer.status_code, answer.json()


def test_a_response_has_text_usage_and_token_ids(ask: Ask, engine: EmbeddedEngine) -> None:
    """With vLLM's extensions for trainers, each token is returned as `token_id:<int>` with its log-probability."""
    extensions = {"return_tokens_as_token_ids": True, "skip_special_tokens": False, "top_k": -1, "min_p": 0.0}
    extensions |= {"repetition_penalty": 1.0, "include_stop_str_in_output": False}
    answer = ask(logprobs=True, extra_body=extensions, tools=None, stop=None)
    assert isinstance(answer, openai.types.chat.ChatCompletion)
    choice = answer.choices[0]
    ids = [int(item.token.removeprefix("token_id:")) for item in choice.logprobs.content]
    assert len(ids) == answer.usage.completion_tokens
    assert all(item.logprob <= 0 for item in choice.logprobs.content)
    kept = ids[:-1] if choice.finish_reason == "stop" else ids
    assert choice.message.content == engine.tokenizer.decode(kept)
    prompt = engine.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert answer.usage.prompt_tokens == len(prompt)


def test_tokens_are_text_by_default(ask: Ask, server: LoopbackServer, client: openai.OpenAI) -> None:
    """As with OpenAI's servers, log-probabilities are optional and choices are numbered. The server also reports its
    health and its models."""
    assert httpx.get(f"{server.address}/health").status_code == 200
    assert [model.id for model in client.models.list()] == ["tiny"]
    parts = [{"type": "text", "text": MESSAGES[0]["content"][:9]}, {"type": "text", "text": MESSAGES[0]["content"][9:]}]
    answer = ask(logprobs=True, n=3, messages=[{"role": "user", "content": parts}])
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert not any(item.token.startswith("token_id:") for item in answer.choices[0].logprobs.content)
    same = ask()
    assert same.choices[0].logprobs is None
    assert same.usage.prompt_tokens == answer.usage.prompt_tokens


def test_a_stream_adds_up_to_the_whole_response(ask: Ask, complete: Ask) -> None:
    """In addition to text, the events of a stream contain log-probabilities, finish reasons and usage."""
    whole = ask(seed=5, n=2, logprobs=True)
    chunks = list(ask(seed=5, n=2, logprobs=True, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        parts = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert "".join(part.delta.content for part in parts) == choice.message.content
        assert [part.delta.role for part in parts] == ["assistant", *[None] * (len(parts) - 1)]
        assert [item for part in parts for item in part.logprobs.content] == choice.logprobs.content
        assert [part.finish_reason for part in parts] == [*[None] * (len(parts) - 1), choice.finish_reason]
        assert len(parts) > 2
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    texts = [chunk.choices[0].text for chunk in complete(stream=True)]
    assert "".join(texts) == complete().choices[0].text


def test_stop_strings_end_a_completion(ask: Ask, engine: EmbeddedEngine) -> None:
    """Stop strings are not part of the text, streamed or not, and may start and end within tokens."""
    text = ask(temperature=0).choices[0].message.content
    for stop in (text[3:5], text[2:9], [text[6:8], text[4:6]]):
        first = min(text.index(each) for each in ([stop] if isinstance(stop, str) else stop))
        choice = ask(temperature=0, stop=stop).choices[0]
        assert (choice.message.content, choice.finish_reason) == (text[:first], "stop")
        streamed = [chunk.choices[0] for chunk in ask(temperature=0, stop=stop, stream=True)]
        assert "".join(each.delta.content for each in streamed) == text[:first]
    assert ask(temperature=0, stop=["no such text"]).choices[0].message.content == text


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=3))
def test_streamed_text_matches_the_decoded_tokens(tokenizer: Any, text: str, stops: list[str]) -> None:
    """Characters that span several tokens are sent whole, and text is never revised once it is sent."""
    request = ChatRequest.model_validate({"messages": MESSAGES, "stop": stops})
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] or [5]
    expected = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    choice, sent = api.Choice(0, [], request, tokenizer, len(ids), set()), ""
    for token in ids:
        ended = choice.put(token, 0.0)
        sent += choice.take()[0]
        if ended:
            break
    first = min((at for stop in stops if (at := expected.find(stop)) >= 0), default=len(expected))
    assert (sent, choice.text) == (expected[:first], expected[:first])
    assert choice.finish_reason == ("stop" if first < len(expected) else "length")


def test_a_seed_determines_the_response(ask: Ask) -> None:
    """Requests with equal seeds get equal responses, although the choices of one request differ."""
    texts = [[each.message.content for each in ask(seed=seed, n=4).choices] for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) > 1


def test_a_prompt_can_be_scored(complete: Ask, engine: EmbeddedEngine) -> None:
    """lm-eval scores prompts with `echo` and log-probabilities. Prompts may be text or tokens, one or several."""
    tokens = engine.tokenizer("1 + 2 = 3")["input_ids"]
    answer = complete(prompt=["1 + 2 = 3", "2"], echo=True, logprobs=1, max_tokens=1)
    assert answer.choices[0] == complete(prompt=tokens, echo=True, logprobs=1, max_tokens=1).choices[0]
    logprobs = answer.choices[0].logprobs
    scores = engine.score([*tokens, *engine.tokenizer(logprobs.tokens[-1])["input_ids"]], 1)
    assert logprobs.token_logprobs == [None, *(pytest.approx(own, abs=1e-4) for own, _ in scores)]
    assert [max(best.values()) for best in logprobs.top_logprobs[1:]] == [
        pytest.approx(max(best.values()), abs=1e-4) for _, best in scores
    ]
    assert answer.choices[0].text == "".join(logprobs.tokens)
    assert [answer.choices[0].text[at:][:1] for at in logprobs.text_offset] == [token[:1] for token in logprobs.tokens]
    alone = complete(prompt="1 + 2 = 3", logprobs=1, max_tokens=1).choices[0]
    assert alone.logprobs.token_logprobs == logprobs.token_logprobs[-1:]
    assert answer.usage.prompt_tokens == len(tokens) + len(engine.tokenizer("2")["input_ids"])


def test_lm_eval_gets_the_same_results_as_from_the_model(server: LoopbackServer, model: Any, tokenizer: Any) -> None:
    """lm-eval's completions client agrees with its transformers backend on log-likelihoods and on generation up to a
    stop string, and its chat client works as well."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

    options = {"model": "tiny", "tokenizer": str(POLICY_DIR), "tokenizer_backend": "huggingface", "max_length": 512}
    remote = LocalCompletionsAPI(base_url=f"{server.address}/v1/completions", **options)
    direct = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
    pairs = [("1 + 2 =", " 3"), ("2 dogs have", " 8 legs"), ("1 + 2 =", tokenizer.decode([17]))]
    scored = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    for got, expected in zip(remote.loglikelihood(scored), direct.loglikelihood(scored), strict=True):
        assert got[0] == pytest.approx(expected[0], abs=1e-3)
        assert got[1] == expected[1]
    until = {"until": ["\n", "</answer>"], "max_gen_toks": 20, "temperature": 0}
    prompts = [Instance("generate_until", {}, (text, until), 0) for text in ("1 + 2 =", "Solve: 3*x = 9")]
    assert remote.generate_until(prompts) == direct.generate_until(prompts)
    chat = LocalChatCompletion(base_url=f"{server.address}/v1/chat/completions", model="tiny")
    messages = chat.apply_chat_template([MESSAGES[0]])
    (answer,) = chat.generate_until([Instance("generate_until", {}, (messages, dict(until)), 0)])
    assert answer
    assert "</answer>" not in answer


REFUSED: dict[str, list[Any]] = {
    "temperature": [-0.1, "hot", float("nan"), True],
    "max_tokens": [0, 10**12],
    "messages": [[], "hello", *([message] for message in (
        {"content": "no role"}, {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
    ))],
    "stop": [[3], "", ["x", ""]], "tool_choice": ["required"], "logit_bias": [{"5": 1}], "guided_json": [{}],
    "top_p": [0], "top_k": [1.5], "n": [0], "logprobs": [1], "seed": [2**70], "model": [3],
}  # fmt: skip
UNSUPPORTED: dict[str, Any] = {
    "tools": [{"type": "function"}], "top_logprobs=3": 3, "response_format.type='json_object'": {"type": "json_object"},
    "modalities.0='audio'": ["audio"], "stream_options.odd": {"odd": 1}, "min_tokens": 3,
}  # fmt: skip
"""What the error message names, mapped to the field's value."""


@pytest.mark.parametrize(
    ("named", "value"), [*((field, value) for field in REFUSED for value in REFUSED[field]), *UNSUPPORTED.items()]
)
def test_unsupported_fields_are_refused(named: str, value: object) -> None:
    """The 400 response names the field, and also its value if that is what is not supported. Null values are ignored,
    because clients send them for unset fields."""
    field = re.split("[.=]", named)[0]
    with pytest.raises(BadRequest) as caught:
        ChatRequest.parse({"messages": MESSAGES, field: value})
    assert (caught.value.status, caught.value.param) == (400, field)
    assert named in str(caught.value)
    assert named not in UNSUPPORTED or str(caught.value) == f"{named} is not supported by the embedded engine"
    assert ChatRequest.parse({"messages": MESSAGES, "anything": None}) == ChatRequest.parse({"messages": MESSAGES})


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ({"max_tokens": 10_000}, openai.BadRequestError, r"too large because the prompt has \d+ tokens and"),
        ({"max_completion_tokens": 4}, openai.BadRequestError, "max_tokens and max_completion_tokens differ"),
        ({"model": "gpt-4"}, openai.NotFoundError, "this engine serves 'tiny'"),
        ({"messages": [{"role": "user", "content": "12 " * 2000}]}, openai.BadRequestError, "longer than the model's"),
        ({"messages": [{"role": "user", "content": "x y " * 10**6}]}, openai.BadRequestError, "4,000,000 characters"),
        ({"stream": True, "max_tokens": 10_000}, openai.BadRequestError, "too large"),
    ],
)
def test_refusals_raise_openais_exceptions(ask: Ask, body: Any, error: type, words: str) -> None:
    """Refusals take less than five seconds, because a prompt of megabytes is refused without being tokenized."""
    start = time.monotonic()
    with pytest.raises(error, match=words):
        ask(**body)
    assert time.monotonic() - start < 5


def test_an_error_in_the_chat_template_is_a_bad_request(model: Any, tokenizer: Any) -> None:
    """The response contains the template's message. System messages work even if the template rejects them."""
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message.role != 'user' %}{{ raise_exception('only users may speak') }}"
        "{% endif %}{{ message.content }}{% endfor %}"
    )
    engine = EmbeddedEngine(model, tokenizer, model_name="tiny", seed=0)
    roles = {"system": 200, "assistant": 400}
    with LoopbackServer(list(make_app(engine).routes)) as server:
        for role, expected in roles.items():
            messages = [{"role": role, "content": "Think."}, *MESSAGES]
            status, answer = post(server, json.dumps({"messages": messages, "max_tokens": 1}).encode())
            assert status == expected
    assert "only users may speak" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        *(({"prompt": prompt}, "prompt") for prompt in ([], "", [10**6])),
        ({"prompt": [5], "max_tokens": 10_000}, "the prompt has 1 token and the context length is"),
        ({"echo": True, "stream": True}, "not supported with stream=true"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_invalid_completion_requests_are_refused(complete: Ask, body: Any, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        complete(**body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["messages", "prompt", "model", "temperature", "top_k", "n", "stop", "max_tokens", "odd"])


@given(st.dictionaries(NAMES, JSON, max_size=6) | JSON, st.sampled_from([ChatRequest, CompletionRequest]))
def test_any_json_is_parsed_or_refused(body: object, kind: type[ChatRequest]) -> None:
    """Parsing raises no exception other than `BadRequest`, whatever the request contains."""
    with contextlib.suppress(BadRequest):
        assert isinstance(kind.parse(body), kind)


NOT_UNICODE = "contains text that is not valid Unicode: unpaired surrogate '\\ud800'"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *((data, "") for data in (b"", b"{", b"[]", b"\xff\xfe", b'"text"')),
        (b" " * (api.MAX_BODY_BYTES + 2**16), "is larger than"),
        (b"1" * 5000, "has a number with more than 4,300 digits"),
        (b"[" * 100_000, "is nested too deeply"),
        # JSON can escape one half of a surrogate pair, which tokenizers cannot read.
        (rb'{"messages": [], "\ud800": 1}', NOT_UNICODE),
        (rb'{"messages": [{"role": "user", "content": "a\ud800"}]}', NOT_UNICODE),
        (rb'{"messages": [], "stop": ["\ud800"]}', NOT_UNICODE),
    ],
)
def test_malformed_bodies_get_a_400(server: LoopbackServer, data: bytes, words: str) -> None:
    """The response has the error format that clients expect."""
    status, body = post(server, data)
    assert (status, body["error"]["type"]) == (400, "BadRequestError")
    assert f"the body {words}" in body["error"]["message"] or not words


@pytest.mark.parametrize(("stream", "reset"), [(False, False), (True, True)])
def test_clients_that_disconnect_do_not_disturb_others(
    server: LoopbackServer, client: openai.OpenAI, caplog: pytest.LogCaptureFixture, stream: bool, reset: bool
) -> None:
    """Clients disconnect before, during or after sending the request, with or without a reset; the server logs nothing
    and keeps responding."""
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 60, "n": 4, "stream": stream}
    body = json.dumps(fields).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    try:
        for sent in (b"", head[:20], head, head + body[:10], head + body):
            for wait_s in (0.0, 0.02):
                with socket.create_connection((api.HOST, server.port)) as leaving:
                    leaving.sendall(sent)
                    time.sleep(wait_s)
                    if reset:  # makes close() send a reset
                        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
    finally:
        logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert answer.choices
    assert caplog.text == ""


def test_a_client_that_closes_its_stream_leaves_the_batch(engine: EmbeddedEngine, ask: Ask) -> None:
    """The next request does not wait for the rest of the stream's tokens."""
    engine.end_ids = frozenset()
    steps = 0

    def slow(*_: object) -> None:
        nonlocal steps
        steps += 1
        time.sleep(0.02)

    with engine.model.register_forward_pre_hook(slow):
        with ask(max_tokens=400, stream=True) as stream:
            next(stream)
        ask(max_tokens=1)
    assert steps < 200


def test_waiting_requests_are_batched(server: LoopbackServer, engine: EmbeddedEngine) -> None:
    batches: list[int] = []

    def slow(_: object, __: object, inputs: dict[str, Any]) -> None:
        if inputs["input_ids"].shape[1] == 1:  # skip the prefill, because all requests share one prompt
            batches.append(len(inputs["input_ids"]))
        time.sleep(0.5)  # meanwhile, the other requests arrive

    engine.end_ids = frozenset()
    data = json.dumps({"messages": MESSAGES, "max_tokens": 2}).encode()
    with engine.model.register_forward_pre_hook(slow, with_kwargs=True), ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(server, data), range(8)))
    assert [status for status, _ in answers] == [200] * 8
    assert sum(batches) == 8
    assert len(batches) <= 4


def test_every_caller_gets_the_error_of_a_failed_batch(server: LoopbackServer, engine: EmbeddedEngine) -> None:
    """The status is 500, with the error's text. In a stream, whose status has already been sent, the error is an
    event."""

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    data = json.dumps({"messages": MESSAGES}).encode()
    streaming = json.dumps({"messages": MESSAGES, "stream": True}).encode()
    with engine.model.register_forward_pre_hook(fail), ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(server, data), range(4)))
        events = httpx.post(f"{server.address}/v1/chat/completions", content=streaming, timeout=30).text
    assert [status for status, _ in answers] == [500] * 4
    assert all("no memory" in body["error"]["message"] for _, body in answers)
    assert "no memory" in json.loads(events.removeprefix("data: "))["error"]["message"]


def test_the_server_listens_on_loopback_only() -> None:
    """Binding to a port that is in use or out of range raises a one-line error."""
    listener = api.bind(0)
    assert listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(InputError, match="choose another --port"):
        api.bind(listener.getsockname()[1])
    listener.close()
    with pytest.raises(InputError, match="port 70000 is out of range"):
        api.bind(70000)
    with socket.socket() as other:  # the port of a program that listens on all addresses is in use, too
        other.bind(("0.0.0.0", 0))
        other.listen()
        with pytest.raises(InputError, match="Address already in use"):
            api.bind(other.getsockname()[1])
