"""One call to a real server that fails in every way that servers do."""

import asyncio
import itertools
import json
import threading
from typing import Any

import openai
import pytest
from chat_server import ChatServer, completion
from starlette.responses import HTMLResponse, JSONResponse, Response

from rg_env.evaluation import requests
from rg_env.evaluation.requests import CallFailed, EndpointFailed, Reply, ask


def _ask(server: ChatServer, *, tries: int = 3, timeout_s: float = 10.0) -> Reply:
    async def call() -> Reply:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
            request = {"model": "m", "messages": [{"role": "user", "content": "1+1?"}]}
            return await ask(client, request, tries=tries, timeout_s=timeout_s)

    return asyncio.run(call())


def _first(*responses: Response | float | None) -> Any:
    """These for the first requests; then all is well."""
    rest = itertools.chain(responses, itertools.repeat(None))
    return lambda number, body: next(rest)


def _error(status: int, message: str = "no", **headers: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "t", "code": status}}, status, headers=headers)


def test_a_reply_has_what_the_server_told(chat: ChatServer) -> None:
    """Text, tokens, whether it was cut off, reasoning, refusal, and who answered."""
    body = completion("2", finish="length", model="m-2025", reasoning_content="think", refusal="no")
    server = chat.reset(str, _first(JSONResponse(body)))
    assert _ask(server) == Reply("2", "think", True, 10, 5, "no", "m-2025")
    assert _ask(server) == Reply("1+1?", None, False, 10, 5, None, "m")


@pytest.mark.parametrize(
    "trouble",
    [
        _error(429, **{"retry-after": "0"}),
        _error(500),
        _error(503),
        _error(408),
        HTMLResponse("<html>down for maintenance</html>"),
        HTMLResponse("<html>proxy</html>", 502),
        Response('{"id": "c", "choices": [{"mess', media_type="application/json"),
        Response("null", media_type="application/json"),
        JSONResponse({**completion("2"), "choices": []}),
        JSONResponse({**completion("2"), "choices": None}),
        JSONResponse({"object": "error", "message": "no"}),
        JSONResponse({**completion("2"), "choices": [{"index": 0, "finish_reason": "stop", "message": None}]}),
        Response("", media_type="application/json"),
    ],
    ids=lambda response: f"{response.status_code} {response.body[:30]!r}",
)
def test_what_may_get_better_is_tried_again(chat: ChatServer, trouble: Response) -> None:
    """Once is enough; and after all tries the call has failed, with a line that says why."""
    server = chat.reset(lambda question: "2", _first(trouble))
    assert _ask(server).text == "2"
    assert len(server.requests) == 2
    server = chat.reset(lambda question: "2", lambda number, body: trouble)
    with pytest.raises(CallFailed, match=r"^[^\n]+\(3 tries\)$"):
        _ask(server)
    assert len(server.requests) == 3


def test_time_outs_are_tried_again(chat: ChatServer) -> None:
    server = chat.reset(lambda question: "2", _first(5.0))
    assert _ask(server, timeout_s=0.5).text == "2"
    server = chat.reset(lambda question: "2", lambda number, body: 5.0)
    with pytest.raises(CallFailed, match=r"no answer within 0\.2 s \(2 tries\)"):
        _ask(server, tries=2, timeout_s=0.2)


def test_a_server_that_is_gone_fails_the_call() -> None:
    with ChatServer(str) as server:
        pass
    with pytest.raises(CallFailed, match="no connection"):
        _ask(server, tries=2)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_is_refused_is_not_repeated(chat: ChatServer, status: int) -> None:
    """A prompt that is too long stays too long; the next one may not be."""
    server = chat.reset(str, _first(_error(status, "too long")))
    with pytest.raises(CallFailed, match=f"HTTP {status}: too long$"):
        _ask(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_what_all_calls_would_get_ends_the_model(chat: ChatServer, status: int) -> None:
    server = chat.reset(str, _first(_error(status, "line one\nline two\x1b[31m")))
    with pytest.raises(EndpointFailed, match=f"^HTTP {status}: line one line two"):
        _ask(server)
    assert len(server.requests) == 1


def test_the_pause_is_the_one_that_the_server_asks_for(chat: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds, within reason; otherwise pauses double."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():  # the server's
            return await sleep(seconds)
        slept.append(seconds)

    monkeypatch.setattr(requests.asyncio, "sleep", note)
    troubles = [_error(429, **{"retry-after": "7"}), _error(429, **{"retry-after": "999"}), _error(500), _error(500)]
    server = chat.reset(lambda question: "2", _first(*troubles))
    _ask(server, tries=5)
    waits = [each for each in slept if each > 0.001]
    for wait, expected in zip(waits, [7, 60, 0.04, 0.08], strict=True):
        assert 0.75 * expected <= wait <= 1.25 * expected


def test_an_empty_answer_and_a_refusal_are_answers(chat: ChatServer) -> None:
    """Of the model: nobody asks again for a better one."""
    bodies = [completion(None), completion("", refusal="I cannot"), completion(None, refusal="never")]
    server = chat.reset(str, _first(*map(JSONResponse, bodies)))
    assert [(reply.text, reply.refusal) for reply in (_ask(server) for _ in bodies)] == [
        ("", None), ("", "I cannot"), ("", "never")]  # fmt: skip
    assert len(server.requests) == 3


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": -1, "completion_tokens": "many"}, "none"])
def test_tokens_that_are_not_told_are_not_known(chat: ChatServer, usage: Any) -> None:
    body = json.dumps({**completion("2"), "usage": usage})
    server = chat.reset(str, _first(Response(body, media_type="application/json")))
    reply = _ask(server)
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("2", None, None)
