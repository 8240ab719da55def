"""Tests of endpoints with real servers that fail, send invalid replies, echo the key or redirect."""

import asyncio
import contextlib
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, completion
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from rg_env.core.grading.extraction import extract
from rg_env.errors import InputError, ServerError
from rg_env.evaluation.config import EvalConfig, EvalModel
from rg_env.evaluation.endpoints import EndpointFailed, endpoint
from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.questions import ChatRequest, Reply
from rg_env.evaluation.results import Results
from rg_env.evaluation.runner import run_evaluation
from rg_env.inference.protocol import Sampling

KEY = "s3cret-key-of-somebody"
"""Value of MY_KEY, set in conftest.py."""
PLAIN = Sampling(max_tokens=9)
ESCAPES = "\x1b[31mred\x07\x9b\u202e"


def _config(url: str, folder: Path, *overrides: str) -> EvalConfig:
    models = json.dumps({"a": {"model": "m", "url": url, "key_variable": "MY_KEY"}})
    given = [f"models={models}", "tasks=gcd", "num_examples=2", f"output.dir={folder}"]
    return load_eval_config(None, [*given, "requests={tries: 1, pause_s: 0.01}", *overrides])


def _run(url: str, folder: Path, *overrides: str) -> Results:
    return run_evaluation(_config(url, folder, *overrides))[0]


def _ask(
    server: ChatServer, *overrides: str, tries: int = 3, timeout_s: float = 10.0, sampling: Sampling = PLAIN
) -> Reply:
    requests = (f"requests.tries={tries}", f"requests.timeout_s={timeout_s}")
    config = _config(server.url, Path("unused"), *requests, *overrides)

    async def call() -> Reply:
        model = EvalModel(model="m", url=server.url, key_variable="MY_KEY")
        ready = await endpoint(model, config)
        async with ready.client() as client:
            return await ready.reply(ChatRequest([{"role": "user", "content": "1+1?"}], sampling), client)

    return asyncio.run(call())


def _first(*responses: Response | float | None) -> Any:
    """Return a handler that sends these responses to the first requests and answers the others normally."""
    rest = itertools.chain(responses, itertools.repeat(None))
    return lambda number, body: next(rest)


def _error(status: int, message: str = "no", **headers: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "t", "code": status}}, status, headers=headers)


# Replies


def test_a_reply_has_what_the_server_reports(chat: ChatServer) -> None:
    """The reply has the text, the reasoning, the refusal, the token counts, the model's name, and whether it was cut
    off."""
    body = completion("2", finish="length", model="m-2025", reasoning_content="think", refusal="no")
    chat.reset(str, _first(JSONResponse(body)))
    assert _ask(chat) == Reply("2", "think", True, 10, 5, "no", "m-2025")
    assert _ask(chat) == Reply("1+1?", None, False, 10, 5, None, "m")


def test_an_answer_in_thinking_that_the_template_opens_does_not_count() -> None:
    """vLLM reports how it renders a prompt. A reply that ends in the thinking section has no tags of its own. With a
    reasoning parser, the server separates the thinking itself."""
    asked: list[dict[str, Any]] = []

    async def tokenize(request: Request) -> Response:
        asked.append(await request.json())
        return JSONResponse({"tokens": [1, 2]})

    async def detokenize(request: Request) -> Response:
        assert (await request.json())["tokens"] == [1, 2]
        return JSONResponse({"prompt": "user: ? assistant: <think>\n"})

    routes = [Route("/tokenize", tokenize, methods=["POST"]), Route("/detokenize", detokenize, methods=["POST"])]
    text = "maybe <answer>4</answer>, but let me check"
    with ChatServer(lambda question: text, more=routes) as server:
        assert _ask(server).prefix == ""  # not vLLM
        assert not asked
        server.listed = JSONResponse({"data": [{"id": "m", "owned_by": "vllm"}]})
        reply = _ask(server, "prompt.chat_template_kwargs.enable_thinking=true")
        assert asked[-1]["chat_template_kwargs"] == {"enable_thinking": True}
        assert asked[-1]["messages"][0]["role"] == "user"
        assert (reply.text, extract(reply.prefix + reply.text).status) == (text, "no_answer")
        server.reset(str, _first(JSONResponse(completion("<answer>4</answer>", reasoning="so"))))
        server.listed = JSONResponse({"data": [{"id": "m", "owned_by": "vllm"}]})
        reply = _ask(server)
        assert extract(reply.prefix + reply.text).answer == "4"


def test_settings_outside_openais_api_are_sent_only_if_they_are_set(chat: ChatServer) -> None:
    """Some endpoints reject unknown settings."""
    _ask(chat)
    plain = {"model": "m", "messages": [{"role": "user", "content": "1+1?"}], "temperature": 1.0, "top_p": 1.0}
    assert chat.requests[-1] == {**plain, "max_tokens": 9}
    kwargs = "prompt.chat_template_kwargs.enable_thinking=false"
    _ask(chat, kwargs, sampling=Sampling(max_tokens=9, top_k=5, frequency_penalty=0.5, stop=("</answer>",)))
    more = {
        "top_k": 5,
        "frequency_penalty": 0.5,
        "stop": ["</answer>"],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert chat.requests[-1] == {**plain, "max_tokens": 9, **more}


def test_a_stop_text_that_vllm_removes_is_restored(chat: ChatServer) -> None:
    """vLLM reports the text. Otherwise, the answer in "<answer>2" would be missing its closing tag."""
    body = completion("<answer>2")
    body["choices"][0]["stop_reason"] = "</answer>"
    chat.reset(str, _first(JSONResponse(body)))
    assert _ask(chat).text == "<answer>2</answer>"


@pytest.mark.parametrize("text", [None, ""])
@pytest.mark.parametrize("refusal", [None, "I cannot"])
@pytest.mark.parametrize(
    "usage",
    [None, "none", {"prompt_tokens": -1, "completion_tokens": "many"},
     {"prompt_tokens": 10**30, "completion_tokens": 2**63}],
)  # fmt: skip
def test_an_empty_answer_and_a_refusal_are_answers(
    chat: ChatServer, text: str | None, refusal: str | None, usage: Any
) -> None:
    """Such replies are not retried. Implausible token counts are ignored, and only the first of several choices is
    used."""
    body = {**completion(text, refusal=refusal), "usage": usage}
    chat.reset(str, _first(JSONResponse({**body, "choices": [*body["choices"], None, {}]})))
    reply = _ask(chat)
    assert (reply.text, reply.refusal, len(chat.requests)) == ("", refusal, 1)
    assert (reply.prompt_tokens, reply.completion_tokens) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["x<answer>" * 150_000, "<answer>" + "9" * 1_000_000 + "</answer>", "\ud800\0" * 9])
def test_answers_of_a_megabyte_or_without_characters_are_scored(chat: ChatServer, text: str, tmp_path: Path) -> None:
    """Such answers do not fail, and do not slow down scoring to minutes."""
    chat.reset(str, lambda number, body: Response(json.dumps(completion(text)), media_type="application/json"))
    start = time.monotonic()
    results = _run(chat.url, tmp_path / "e", "tasks={gcd: {}, countdown: {}}")
    assert time.monotonic() - start < 60
    assert (results.models["a"].accuracy, results.models["a"].failed) == (0, 0)
    assert (tmp_path / "e" / "rollouts.jsonl").read_bytes().count(b"\n") == 4


# Retries


async def _half() -> AsyncIterator[bytes]:
    """Yield the start of a reply, then break off."""
    yield json.dumps(completion("2")).encode()[:60]
    await asyncio.sleep(0.05)
    raise ConnectionAbortedError


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (lambda: _error(429, **{"retry-after": "0"}), "HTTP 429: no"),
        (lambda: _error(503, "line one\nline two"), "HTTP 503: line one line two"),
        (lambda: _error(408), "HTTP 408: no"),
        (lambda: HTMLResponse("<html>proxy</html>", 502), "HTTP 502: Bad Gateway"),
        (lambda: HTMLResponse("<html>down</html>"), "invalid chat completion: '<html>down</html>'"),
        (lambda: Response('{"id": "c", "choices": [{"mess', media_type="application/json"), "invalid chat completion"),
        (lambda: Response("null", media_type="application/json"), "chat completion: the reply has no choices"),
        (lambda: Response("[" * 100_000, media_type="application/json"), "invalid chat completion"),
        (lambda: JSONResponse({**completion("2"), "choices": []}), "the reply has no choices"),
        (lambda: JSONResponse({"error": {"message": f"of {ESCAPES}"}}), "the reply has no choices: of [31mred"),
        (lambda: JSONResponse({"object": "error", "message": "no"}), "the reply has no choices: no"),
        (lambda: JSONResponse({**completion("2"), "choices": [{"message": None}]}), "choice has no message"),
        (lambda: StreamingResponse(_half(), media_type="application/json"), "no connection: "),
    ],
)  # fmt: skip
def test_temporary_failures_are_retried(chat: ChatServer, trouble: Callable[[], Response], reason: str) -> None:
    """One retry is enough if the next reply is valid; otherwise, the call fails with a one-line reason."""
    chat.reset(lambda question: "2", _first(trouble()))
    assert _ask(chat).text == "2"
    assert len(chat.requests) == 2
    chat.reset(lambda question: "2", lambda number, body: trouble())
    error = _ask(chat, tries=2).error or ""
    assert re.fullmatch(r"[^\n\x1b]+ \(2 tries\)", error)
    assert reason in error
    assert len(chat.requests) == 2


def test_timeouts_are_retried(chat: ChatServer) -> None:
    chat.reset(lambda question: "2", _first(5.0))
    assert _ask(chat, tries=20, timeout_s=0.5).text == "2"  # a busy machine may need several
    chat.reset(lambda question: "2", lambda number, body: 5.0)
    assert _ask(chat, tries=2, timeout_s=0.2).error == "no answer within 0.2 s (2 tries)"


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_a_rejected_request_is_not_retried(chat: ChatServer, status: int) -> None:
    """A status that concerns one prompt fails this call; one that would apply to every call stops the model."""
    chat.reset(str, _first(_error(status, "line one\nline two\x1b[31m")))
    message = f"HTTP {status}: line one line two [31m"
    if status in (400, 413, 422):
        assert _ask(chat).error == message
    else:
        with pytest.raises(EndpointFailed, match=f"^{re.escape(message)}$"):
            _ask(chat)
    assert len(chat.requests) == 1


@pytest.mark.parametrize(
    ("asked", "pauses"),
    [("0.3", (0.22, 0.45)), ("nan", (0, 0.2)), ("-5", (0, 0.2)), ("Wed, 21 Oct 2099 07:28:00 GMT", (0, 0.2)),
     ("soon", (0, 0.2)), ("", (0, 0.2))],
)  # fmt: skip
def test_the_pause_is_the_one_that_the_server_requests(
    chat: ChatServer, asked: str, pauses: tuple[float, float]
) -> None:
    """A Retry-After in seconds is obeyed; otherwise, the default pause is used, which is short in tests."""
    times: list[float] = []

    def trouble(number: int, body: Any) -> Response | None:
        times.append(time.monotonic())
        return None if number else _error(429, **{"retry-after": asked})

    chat.reset(lambda question: "2", trouble)
    assert _ask(chat).text == "2"
    assert pauses[0] <= times[1] - times[0] <= pauses[1] + 10


# Keys and addresses


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_a_key_that_an_endpoint_repeats_is_not_shown(chat: ChatServer, status: int, tmp_path: Path) -> None:
    """The key appears neither in an error nor in a file."""
    chat.reset(str, lambda number, body: _error(status, f"not a key: Bearer {KEY}"))
    with contextlib.suppress(EndpointFailed):
        assert "not a key: Bearer ***" in (_ask(chat).error or "")
    with pytest.raises(Exception, match=r"that is not a result|Bearer \*\*\*"):
        _run(chat.url, tmp_path / "e")
    assert all(KEY.encode() not in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_keys_and_escape_codes_in_answers_and_names_are_not_shown(
    chat: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long model name that a server reports is shortened, too."""
    name = f"{KEY}{ESCAPES}" + "x" * 100_000
    chat.reset(str, lambda number, body: JSONResponse(completion(f"<answer>{KEY}</answer>", model=name, refusal=KEY)))
    _run(chat.url, tmp_path / "e")
    out = capsys.readouterr().out
    assert "a: the server reports the model as *** [31mred" in out
    assert not set("\x1b\x07\x9b\u202e") & set(out)
    assert len(out) < 3000
    assert all(KEY.encode() not in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize("number", range(5))
def test_a_key_that_is_invalid_in_a_header_is_reported_but_not_shown(
    chat: ChatServer, number: int, tmp_path: Path
) -> None:
    """The error is raised before any call, because an HTTP library would print the key."""
    chat.reset(str)
    message = rf"^http://127\S+: the key in BAD_KEY_{number} has .*: set the variable to the key alone$"
    with pytest.raises(InputError, match=message) as caught:
        _run(chat.url, tmp_path / "e", f"models.a.key_variable=BAD_KEY_{number}")
    assert "s3cret" not in str(caught.value)
    assert chat.requests == []


def test_keys_come_from_the_environment(chat: ChatServer, tmp_path: Path) -> None:
    """The model names the variable; without one, a local server gets no key. A huge concurrency limit does not start
    more workers than there are calls."""
    chat.reset(str)
    _run(chat.url, tmp_path / "e", "requests.concurrency=1000000")
    assert chat.keys == {f"Bearer {KEY}"}
    chat.reset(str)
    _run(chat.url, tmp_path / "f", f"models.a={{model: m, url: '{chat.url}'}}")
    assert chat.keys == {None}


def test_only_redirects_on_the_same_server_are_followed(chat: ChatServer, tmp_path: Path) -> None:
    """Another host would receive the questions, and its answers would count. The first path may be a short form."""
    with ChatServer(str) as other:
        elsewhere = f"http://localhost:{other.port}/v1"
        chat.reset(str, lambda number, body: RedirectResponse(f"{elsewhere}/chat/completions", 307))
        with pytest.raises(ServerError, match=rf"a: the server redirects to localhost:{other.port} \(should the URL"):
            _run(chat.url, tmp_path / "e")
        chat.reset(str).listed = RedirectResponse(f"{elsewhere}/models", 307)
        with pytest.raises(InputError, match=rf": the server redirects to localhost:{other.port} \(should the URL"):
            _run(chat.url, tmp_path / "f")
        assert (other.requests, other.keys) == ([], set())
    path = "/v1/chat/completions?again"
    chat.reset(str, lambda number, body: None if number % 2 else RedirectResponse(path, 307))
    assert _ask(chat).text == "1+1?"
    assert (len(chat.requests), chat.keys) == (2, {f"Bearer {KEY}"})


@pytest.mark.parametrize(
    ("url", "message"),
    [("http://127.0.0.1:9/v1", r"^no server answers at http://127\.0\.0\.1:9/v1: "),
     ("{}", r"a: HTTP 404: Not Found \(should the URL be {}/v1\?\); no results are written")],
)  # fmt: skip
def test_a_wrong_address_is_reported(chat: ChatServer, url: str, message: str, tmp_path: Path) -> None:
    """An error 404 suggests the path /v1 if the URL lacks it."""
    address = chat.url.removesuffix("/v1")
    with pytest.raises(Exception, match=message.format(address.replace(".", r"\."))):
        _run(url.format(address), tmp_path / "e")


# Lists of models


@pytest.mark.parametrize(
    "listed",
    [
        HTMLResponse("<html>welcome</html>"),
        JSONResponse({"data": "abc"}),
        JSONResponse({"data": [{"id": 5}, {"id": None}, "x", {}]}),
        JSONResponse({"data": []}),
        JSONResponse({"error": {"message": "none"}}, 500),
        JSONResponse({"data": [{"id": "models/m"}]}),
        JSONResponse({"data": [{"id": "other"}, {"id": "m"}]}),
    ],
    ids=["a page", "a text", "no texts", "none", "an error", "with a path", "among others"],
)
def test_an_invalid_list_of_models_is_ignored(chat: ChatServer, listed: Response, tmp_path: Path) -> None:
    """Calls are made anyway, and names with a path prefix or among others match."""
    chat.reset(str).listed = listed
    assert _run(chat.url, tmp_path / "e").models["a"].failed == 0


def test_a_served_folder_may_be_missing_in_the_list(chat: ChatServer, tmp_path: Path) -> None:
    """`transformers serve` lists the models in the Hub cache, even if it serves a folder."""
    chat.reset(str).listed = JSONResponse({"data": [{"id": "other"}]})
    model = EvalModel(model=str(tmp_path), url=chat.url)
    assert asyncio.run(endpoint(model, _config(chat.url, tmp_path))).served_name == str(tmp_path)


def test_a_model_that_is_not_served_is_reported_before_any_call(
    chat: ChatServer, tmp_path: Path, rg_env: Callable[..., tuple[int, str, str]]
) -> None:
    """The error is short and has no control characters, even if the served names are long or contain some."""
    chat.reset(str).listed = JSONResponse({"data": [{"id": name} for name in (ESCAPES, "y" * 5000, 7)]})
    code, _, error = rg_env("eval", "--models", f"m@{chat.url}", "--tasks", "gcd", "--output-dir", f"{tmp_path}/e")
    assert (code, error.count("\n")) == (2, 1)
    assert "does not serve 'm': it serves [31mred, yyy" in error
    assert not set("\x1b\x07\x9b\u202e") & set(error)
    assert len(error) < 500
    assert chat.requests == []


def test_all_endpoints_are_checked_before_the_first_call(chat: ChatServer, tmp_path: Path) -> None:
    """An endpoint that rejects the key stops the evaluation before any paid call."""
    chat.reset(str)
    with ChatServer(str) as slow:
        slow.listed, slow.list_s = JSONResponse({"error": {"message": "no"}}, 401), 0.5
        other = json.dumps({"model": "m", "url": slow.url})
        with pytest.raises(InputError, match=r"rejects the API key \(HTTP 401\)"):
            _run(chat.url, tmp_path / "e", f"models.b={other}")
    assert chat.requests == []
