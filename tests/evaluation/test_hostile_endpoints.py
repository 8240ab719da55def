"""Endpoints that lie, repeat the key, send the caller elsewhere, or list no models: real servers, none is believed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from chat_server import ChatServer, completion
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

from rg_env.errors import InputError
from rg_env.evaluation import evaluate, requests
from rg_env.evaluation.config import EvalConfig, eval_config_of
from rg_env.evaluation.requests import CallFailed, EndpointFailed, Reply, ask
from rg_env.evaluation.results import Results

KEY = "s3cret-key-of-somebody"
ESCAPES = "\x1b[31mred\x07\x9b\u202e"
RgEnv = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


def _ask(server: ChatServer, *, tries: int = 2) -> Reply:
    async def call() -> Reply:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
            request = {"model": "m", "messages": [{"role": "user", "content": "1+1?"}]}
            return await ask(client, request, tries=tries, timeout_s=10.0)

    return asyncio.run(call())


def _config(url: str, folder: Path, *overrides: str, name: str = "m") -> EvalConfig:
    models = json.dumps({"a": {"model": name, "url": url, "key_variable": "MY_KEY"}})
    return eval_config_of(
        [f"models={models}", "tasks=gcd", "num_examples=2", f"output.dir={folder}", "requests.tries=1", *overrides]
    )


def _run(url: str, folder: Path, *overrides: str, name: str = "m") -> Results:
    return evaluate.run_evaluation(_config(url, folder, *overrides, name=name))[0]


def _error(status: int, message: str, **headers: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status, headers=headers)


@pytest.mark.parametrize("asked", ["nan", "-5", "inf", "Wed, 21 Oct 2099 07:28:00 GMT", "soon", ""])
def test_odd_pauses_are_ours(chat: ChatServer, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an error, nor for ever."""
    monkeypatch.setattr(requests, "_LONGEST_PAUSE_S", 0.05)
    server = chat.reset(lambda question: "2", lambda number, body: None if number else _error(429, "no", **{
        "retry-after": asked}))  # fmt: skip
    assert asyncio.run(asyncio.wait_for(asyncio.to_thread(_ask, server), 5)).text == "2"
    headers = {"retry-after": asked}
    response = openai.APIStatusError("no", response=_response(headers), body=None)
    assert requests._requested_pause(response) in (None, 0.0, 0.05)


def _response(headers: dict[str, str]) -> Any:
    import httpx

    return httpx.Response(429, headers=headers, request=httpx.Request("POST", "http://127.0.0.1"))


def test_tokens_beyond_measure_are_not_known(chat: ChatServer, tmp_path: Path) -> None:
    """Of an endpoint that lies: no error in the middle, and no sum of nonsense."""
    usage = {"prompt_tokens": 10**30, "completion_tokens": 2**63, "total_tokens": 1}
    chat.reset(str, lambda number, body: JSONResponse({**completion("2"), "usage": usage}))
    results = _run(chat.url, tmp_path / "e")
    assert results.models["a"].usage.model_dump() == {"prompt_tokens": None, "completion_tokens": None, "cost": None}


def test_an_error_with_status_200_is_told(chat: ChatServer) -> None:
    chat.reset(str, lambda number, body: JSONResponse({"error": {"message": f"provider {ESCAPES} down"}}))
    with pytest.raises(
        CallFailed, match=r"^no chat completion came back: it has no choice: provider \[31mred down \(2"
    ):
        _ask(chat)


async def _half() -> AsyncIterator[bytes]:
    """In chunks, of which the last never comes."""
    yield json.dumps(completion("2")).encode()[:60]
    await asyncio.sleep(0.05)
    raise ConnectionAbortedError


def test_half_an_answer_is_tried_again(chat: ChatServer) -> None:
    """It never counts as one."""
    chat.reset(str, lambda number, body: None if number else StreamingResponse(_half(), media_type="application/json"))
    assert _ask(chat).text == "1+1?"
    chat.reset(str, lambda number, body: StreamingResponse(_half(), media_type="application/json"))
    with pytest.raises(CallFailed, match=r"^no connection: .*\(2 tries\)$"):
        _ask(chat)


def test_of_several_choices_the_first_counts(chat: ChatServer) -> None:
    first, second = completion("first")["choices"][0], completion("second")["choices"][0]
    for choices in ([first, second], [first, first], [first, None], [first, {}]):
        answer = JSONResponse({**completion(""), "choices": choices})
        chat.reset(str, lambda number, body, answer=answer: answer)  # type: ignore[misc]
        assert _ask(chat).text == "first"


@pytest.mark.parametrize("text", ["x<answer>" * 150_000, "<answer>" + "9" * 1_000_000 + "</answer>", "\ud800\0" * 9])
def test_answers_of_a_megabyte_or_of_no_characters_are_scored(chat: ChatServer, text: str, tmp_path: Path) -> None:
    """As any other, at once."""
    chat.reset(lambda question: "", lambda number, body: Response(
        json.dumps(completion(text)), media_type="application/json"))  # fmt: skip
    start = time.monotonic()
    results = _run(chat.url, tmp_path / "e", "tasks={gcd: {}, countdown: {}}")
    assert time.monotonic() - start < 20
    assert (results.models["a"].accuracy, results.models["a"].failed) == (0, 0)
    assert (tmp_path / "e" / "rollouts.jsonl").read_bytes().count(b"\n") == 4


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_a_key_that_is_repeated_is_not_told(chat: ChatServer, status: int, tmp_path: Path) -> None:
    """There are endpoints that name the key which they refuse: it reaches no error and no file."""
    chat.reset(str, lambda number, body: _error(status, f"not a key: Bearer {KEY}"))
    with pytest.raises((CallFailed, EndpointFailed), match=r"not a key: Bearer \*\*\*"):
        _ask(chat)
    with pytest.raises(Exception, match=r"failed: that is not a result|Bearer \*\*\*"):
        _run(chat.url, tmp_path / "e")
    assert (tmp_path / "e" / "rollouts.jsonl").exists()
    assert all(KEY.encode() not in file.read_bytes() for file in (tmp_path / "e").iterdir())


@pytest.mark.parametrize("key", [f"{KEY}\n", f" {KEY}", f"{KEY}\r\nX-Other: 1", f"{KEY}ü", f"{KEY}\x1b"])
def test_a_key_that_no_header_can_hold_is_told_without_it(
    chat: ChatServer, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is asked: the libraries below would print it."""
    chat.reset(str)
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(
        InputError, match=r"^http://127\S+: the key in MY_KEY has .*: set it to the bare key$"
    ) as caught:
        _run(chat.url, tmp_path / "e")
    assert "s3cret" not in str(caught.value)
    assert chat.requests == []


def test_a_key_does_not_follow_a_redirect(chat: ChatServer, tmp_path: Path) -> None:
    """To another host; what that one answers counts."""
    with ChatServer(str) as other:
        elsewhere = f"http://localhost:{other.port}/v1/chat/completions"
        chat.reset(str, lambda number, body: RedirectResponse(elsewhere, 307))
        _run(chat.url, tmp_path / "e")
        assert len(other.requests) == 2
        assert other.keys == {None}
        assert chat.keys == {f"Bearer {KEY}"}


def test_other_names_reach_a_terminal_without_its_codes(chat: ChatServer, tmp_path: Path, rg_env: RgEnv) -> None:
    """Names that the server made up, of any length."""
    chat.reset(str, lambda number, body: JSONResponse(completion("2", model=ESCAPES + "x" * 100_000)))
    code, out, _ = rg_env(
        "eval", "--models", f"m@{chat.url}", "--tasks", "gcd", "-n", "2", "--output-dir", f"{tmp_path}/e"
    )
    assert code == 0
    assert "m: answered as [31mred" in out
    assert not set("\x1b\x07\x9b\u202e") & set(out)
    assert len(out) < 3000


class _Listing(ChatServer):
    """Lists what it is told to."""

    listed: Response
    wait = 0.0
    """Seconds."""

    async def _models(self, request: Request) -> Response:
        await asyncio.sleep(self.wait)
        return self.listed


@pytest.fixture(scope="module")
def listing() -> Iterator[_Listing]:
    with _Listing(str) as server:
        yield server


@pytest.mark.parametrize(
    "listed",
    [
        HTMLResponse("<html>welcome</html>"),
        Response("{", media_type="application/json"),
        JSONResponse({"data": "abc"}),
        JSONResponse({"data": [{"id": 5}, {"id": None}, "x", {}]}),
        JSONResponse({"data": []}),
        JSONResponse({"error": {"message": "none"}}, 500),
        JSONResponse({"data": [{"id": "models/m"}]}),
        JSONResponse({"data": [{"id": "other"}, {"id": "m"}]}),
    ],
    ids=["a page", "half of JSON", "a text", "no texts", "none", "an error", "with a path", "among others"],
)
def test_a_list_of_models_that_is_none_says_nothing(listing: _Listing, listed: Response, tmp_path: Path) -> None:
    """The calls tell; and names may stand in a list with what they belong to."""
    listing.reset(str).listed = listed
    assert _run(listing.url, tmp_path / "e").models["a"].failed == 0


def test_names_of_a_list_reach_a_terminal_without_its_codes(listing: _Listing, tmp_path: Path, rg_env: RgEnv) -> None:
    names = [ESCAPES, "y" * 5000, 7]
    listing.reset(str).listed = JSONResponse({"data": [{"id": name} for name in names]})
    code, _, error = rg_env(
        "eval", "--models", f"m@{listing.url}", "--tasks", "gcd", "-n", "2", "--output-dir", f"{tmp_path}/e"
    )
    assert (code, error.count("\n")) == (2, 1)
    assert "does not serve 'm': it has [31mred, yyy" in error
    assert not set("\x1b\x07\x9b\u202e") & set(error)
    assert len(error) < 500


def test_all_endpoints_are_looked_at_before_one_is_asked(chat: ChatServer, tmp_path: Path) -> None:
    """One that refuses the key ends the evaluation: then nothing was paid for yet."""
    chat.reset(str)
    with _Listing(str) as slow:
        slow.listed, slow.wait = JSONResponse({"error": {"message": "no"}}, 401), 0.5
        other = json.dumps({"model": "m", "url": slow.url})
        with pytest.raises(InputError, match="refuses the key: HTTP 401"):
            _run(chat.url, tmp_path / "e", f"models.b={other}")
    assert chat.requests == []


def test_no_more_callers_than_calls(chat: ChatServer, tmp_path: Path) -> None:
    """However many may be under way at once: a million of them take a quarter of a minute to find nothing to do."""
    chat.reset(str)
    start = time.monotonic()
    _run(chat.url, tmp_path / "e", "requests.concurrency=1000000")
    assert time.monotonic() - start < 5
