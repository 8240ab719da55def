"""The embedded engine's HTTP server, as OpenAI's client and others use it."""

import json
import logging
import socket
import struct
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import uvicorn

from rg_env.errors import InputError
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.embedded.server import HOST, MAX_BODY_BYTES, bind, make_app

MESSAGES = [{"role": "user", "content": "Now, how many legs if you have 2 dogs?"}]


@pytest.fixture
def base_url(engine: EmbeddedEngine) -> Iterator[str]:
    """A real server in a thread of this process."""
    listener = bind(0)
    server = uvicorn.Server(uvicorn.Config(make_app(engine), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://{HOST}:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join(10)
    listener.close()


@pytest.fixture
def ask(base_url: str) -> Iterator[Callable[..., Any]]:
    """Makes one chat request, through OpenAI's own client."""
    with openai.OpenAI(base_url=base_url, api_key="EMPTY", max_retries=0) as client:
        yield lambda **body: client.chat.completions.create(
            **{"model": "tiny", "messages": MESSAGES, "max_tokens": 16, **body}
        )


def test_a_response_has_text_usage_and_token_ids(ask: Callable[..., Any], engine: EmbeddedEngine) -> None:
    """Text, finish reason, usage, and per token `token_id:<int>` with its log-probability."""
    answer = ask(
        logprobs=True, extra_body={"return_tokens_as_token_ids": True, "skip_special_tokens": False, "top_k": -1}
    )
    assert isinstance(answer, openai.types.chat.ChatCompletion)
    choice = answer.choices[0]
    ids = [int(item.token.removeprefix("token_id:")) for item in choice.logprobs.content]
    assert len(ids) == answer.usage.completion_tokens
    assert all(item.logprob <= 0 for item in choice.logprobs.content)
    kept = ids[:-1] if choice.finish_reason == "stop" else ids
    assert choice.message.content == engine.tokenizer.decode(kept)
    assert answer.usage.prompt_tokens == len(
        engine.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    )


def test_tokens_come_as_text_unless_asked_for_ids(ask: Callable[..., Any]) -> None:
    """As OpenAI's servers do; no log-probabilities by default; `n` numbered choices."""
    answer = ask(logprobs=True, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert not any(item.token.startswith("token_id:") for item in answer.choices[0].logprobs.content)
    assert ask().choices[0].logprobs is None


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ({"stop": ["x"]}, openai.BadRequestError, "stop=.* is not supported"),
        ({"max_tokens": 10_000}, openai.BadRequestError, "too large"),
        ({"extra_body": {"guided_json": {}}}, openai.BadRequestError, "'guided_json' is not supported"),
        ({"model": "gpt-4"}, openai.NotFoundError, "this engine serves 'tiny'"),
    ],
)
def test_refusals_are_openais_exceptions(ask: Callable[..., Any], body: Any, error: type, words: str) -> None:
    """As from other OpenAI servers."""
    with pytest.raises(error, match=words):
        ask(**body)


@pytest.mark.parametrize("reset", [False, True])
def test_clients_that_disconnect_do_not_disturb_others(
    base_url: str, caplog: pytest.LogCaptureFixture, reset: bool
) -> None:
    """In the middle of the head, of the body, of the answer, by closing or by a reset: nothing in the server's log."""
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    address = urllib.parse.urlsplit(base_url)
    body = json.dumps({"model": "tiny", "messages": MESSAGES, "max_tokens": 60, "n": 4}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    try:
        for sent in (b"", head[:20], head, head + body[:10], head + body):
            for wait_s in (0.0, 0.02):
                with socket.create_connection((HOST, address.port)) as client:
                    client.sendall(sent)
                    time.sleep(wait_s)
                    if reset:  # close() without the usual farewell
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with openai.OpenAI(base_url=base_url, api_key="EMPTY") as asking:
            answer = asking.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2)
    finally:
        logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert answer.choices
    assert caplog.text == ""


def post(url: str, data: bytes) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data, method="POST"), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


SURROGATES = [rb'{"messages": [], "\ud800": 1}', rb'{"messages": [{"role": "user", "content": "\ud800"}]}']


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'"text"', b"[" * 10_000, *SURROGATES])
def test_malformed_bodies_get_a_400(base_url: str, data: bytes) -> None:
    """In the form that clients understand; JSON may also carry characters that UTF-8 cannot."""
    status, body = post(f"{base_url}/chat/completions", data)
    assert status == 400
    assert body["error"]["type"] == "BadRequestError"


def test_a_body_too_large_gets_a_400(base_url: str) -> None:
    """Without being read to its end."""
    status, body = post(f"{base_url}/chat/completions", b" " * (MAX_BODY_BYTES + 2**16))
    assert status == 400
    assert "larger than" in body["error"]["message"]


def test_requests_that_wait_together_are_one_batch(
    base_url: str, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    chat = engine.chat

    def counted(batch: Any) -> Any:
        sizes.append(len(batch))
        time.sleep(0.5)  # the others arrive meanwhile
        return chat(batch)

    monkeypatch.setattr(engine, "chat", counted)
    data = json.dumps({"messages": MESSAGES, "max_tokens": 2}).encode()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(f"{base_url}/chat/completions", data), range(8)))
    assert [status for status, _ in answers] == [200] * 8
    assert sum(sizes) == 8
    assert len(sizes) <= 4


def test_every_caller_gets_the_error_of_a_failed_batch(
    base_url: str, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 500 with the error's text."""
    monkeypatch.setattr(engine, "_forward", lambda *args: 1 / 0)
    data = json.dumps({"messages": MESSAGES}).encode()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(f"{base_url}/chat/completions", data), range(4)))
    assert [status for status, _ in answers] == [500] * 4
    assert all("ZeroDivisionError" in body["error"]["message"] for _, body in answers)


def test_health_and_models(base_url: str) -> None:
    """What clients ask first."""
    with urllib.request.urlopen(base_url.removesuffix("/v1") + "/health", timeout=30) as answer:
        assert answer.status == 200
    with openai.OpenAI(base_url=base_url, api_key="EMPTY") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]


def test_the_server_listens_on_loopback_only() -> None:
    """A port in use, or none, is one clear line."""
    listener = bind(0)
    assert listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(InputError, match="choose another --port"):
        bind(listener.getsockname()[1])
    listener.close()
    with pytest.raises(InputError, match="port 70000 does not exist"):
        bind(70000)
    with socket.socket() as other:  # also of a program that listens on all addresses
        other.bind(("0.0.0.0", 0))
        other.listen()
        with pytest.raises(InputError, match="Address already in use"):
            bind(other.getsockname()[1])
