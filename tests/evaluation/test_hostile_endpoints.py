"""Endpoints that send anything but HTTP with a chat completion: each costs one failed call, and no key is kept."""

import asyncio
import gzip
import json
import re
import resource
import ssl
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import completion

from rg_env.errors import InputError
from rg_env.evaluation.config import EvalModel, RequestsConfig
from rg_env.evaluation.endpoints import Endpoint, EndpointFailed, endpoint
from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.questions import ChatRequest, Reply
from rg_env.inference.protocol import Sampling

KEY = "s3cret-key-of-somebody"
"""Value of MY_KEY, set in conftest.py."""
GOOD = json.dumps(completion("2")).encode()
ESCAPED = "".join(f"\\u{ord(each):04x}" for each in KEY)
BOMB = gzip.compress(bytes(2**25))


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    size = f"Content-Length: {len(body) if length is None else length}"
    return "\r\n".join([f"HTTP/1.1 {status}", size, *headers, "Connection: close", "", ""]).encode("latin-1") + body


def typed(kind: str) -> bytes:
    return http(GOOD, f"Content-Type: {kind}")


def said(**changes: Any) -> bytes:
    return http(json.dumps({**completion("2"), **changes}).encode())


def failed(message: str, status: str = "400 no") -> bytes:
    return http(json.dumps({"error": {"message": message}}).encode(), status=status)


def to(place: str, status: str = "307 x") -> bytes:
    return http(b"", f"Location: {place}", status=status)


def endless(start: bytes, part: bytes) -> Iterator[bytes]:
    yield start
    while True:
        yield part


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n"
Mode = bytes | Callable[[], Iterator[bytes]]

ANSWERED: dict[str, bytes] = {
    **{f"charset {each}": typed(f"application/json; charset={each}") for each in (
        *("hex", "base64", "rot13", "zip", "bz2", "uu", "quopri", "undefined", "idna", "utf-7", "\xff", '"'),
        *("unicode_escape", "raw_unicode_escape", "punycode", "mbcs", "utf-16"),
    )},
    "type": typed("text/html"),
    "no type": http(GOOD),
    "gzip": http(gzip.compress(GOOD), "Content-Encoding: gzip"),
    "identity": http(GOOD, "Content-Encoding: Identity"),
    "byte order mark": http(b"\xef\xbb\xbf" + GOOD),
    "utf-16": http(GOOD.decode().encode("utf-16")),
    "key in the name": said(model=f"a {KEY}"),
    "key in escapes": http(GOOD.replace(b'"2"', f'"2", "refusal": "{ESCAPED}"'.encode())),
    "key in the reasoning": http(GOOD.replace(b'"2"', f'"2", "reasoning": "x{ESCAPED}"'.encode())),
    "1,000 headers of a kilobyte": http(GOOD, *[f"X-{number}: {'x' * 60}" for number in range(1000)]),
}  # fmt: skip
FAILED: dict[str, Mode] = {
    "silence": lambda: iter(()),
    "closed at once": b"",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "key in the status line": f"{KEY} 200 OK\r\n\r\n".encode(),
    "key in a header": f"HTTP/1.1 200 OK\r\nbad\x01{KEY}\r\n\r\n".encode(),
    "no status": b"HTTP/1.1\r\n\r\n",
    "status 0": b"HTTP/1.1 000 x\r\nContent-Length: 0\r\n\r\n",
    "status 999": http(b"", status="999 x"),
    "status 101": http(b"", status="101 x"),
    "status 204": http(b"", status="204 x"),
    "status 206": http(GOOD[:20], status="206 x"),
    "endless status 100": lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
    "endless headers": lambda: endless(b"HTTP/1.1 200 OK\r\n", b"X: x\r\n" * 999),
    "endless header": lambda: endless(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536),
    "endless body": lambda: endless(LONG + b"\r\n", b" " * 2**20),
    "endless chunks": lambda: endless(CHUNKED, b"100000\r\n" + b" " * 2**20 + b"\r\n"),
    "endless small chunks": lambda: endless(CHUNKED, b"1\r\n \r\n" * 9999),
    "endless without a length": lambda: endless(b"HTTP/1.1 200 OK\r\n\r\n", b"[" * 2**20),
    "endless after gzip": lambda: endless(LONG + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(GOOD), b" " * 2**20),
    "gzip bomb": http(BOMB, "Content-Encoding: gzip"),
    "gzip bomb of a gigabyte": lambda: endless(LONG + b"Content-Encoding: gzip\r\n\r\n", BOMB * 9),
    "gzip twice": http(gzip.compress(BOMB), "Content-Encoding: gzip, gzip"),
    "gzip bomb with status 500": http(BOMB, "Content-Encoding: gzip", status="500 x"),
    "not gzip": http(GOOD, "Content-Encoding: gzip"),
    "half gzip": http(gzip.compress(GOOD)[:-20], "Content-Encoding: gzip"),
    "deflate": http(zlib.compress(bytes(2**25)), "Content-Encoding: deflate"),
    "brotli": http(GOOD, "Content-Encoding: br"),
    "zstd": http(GOOD, "Content-Encoding: zstd"),
    "odd encoding": http(GOOD, f"Content-Encoding: {KEY}\xff"),
    "too long": http(GOOD, length=10**6),
    "too short": http(GOOD, length=20),
    "negative length": http(GOOD, length=-1),
    "two lengths": http(GOOD, "Content-Length: 7"),
    "wrong chunks": CHUNKED + b"zz\r\n",
    "huge chunk": CHUNKED + b"f" * 40 + b"\r\n",
    "not JSON": http(b"<html>down</html>"),
    "not text": http(b"\xff\xfe\xfd" * 999),
    "deep": http(b"[" * 10**6),
    "deep objects": http(b'{"a":' * 10**5),
    "long number": http(b'{"choices": ' + b"9" * 5000 + b"}"),
    "many lists": http(b"[" + b"[]," * 10**6 + b"[]]"),
    **{f"choices {each!r}": said(choices=each) for each in (None, [], {}, "x", [None], [[]], [{}], [{"message": 1}])},
    **{f"content {each!r}": said(choices=[{"message": {"content": each}}]) for each in (1, [], {"text": "2"}, True)},
    **{f"body {each!r}": http(each) for each in (b"null", b"1", b'""', b"[]", b"NaN", b"", b"{}", b"data: {}\n\n")},
    "other host": to("http://127.0.0.2:9/v1/chat/completions"),
    "other host by name": to("http://localhost/v1", "308 x"),
    "other port": to("http://127.0.0.1:9/v1", "302 x"),
    "other scheme": to("file:///etc/passwd"),
    "script": to("javascript:1"),
    "key in the address": to(f"http://{KEY}.example/", "301 x"),
    "no address": to("http://"),
    "odd address": to("http://[::1/\xff"),
    "other user": to(f"http://{KEY}@127.0.0.9/"),
    "itself": to("completions"),
    "key in the reason": http(b"", status=f"400 bad key {KEY}"),
    "key in the reason of 401": http(b"", status=f"401 bad key Bearer {KEY}"),
    "key in an error": failed(f"bad {KEY}"),
    "key in escapes of an error": http(f'{{"error": {{"message": "{ESCAPED}"}}}}'.encode(), status="400 x"),
    "key in escapes of 403": http(f'{{"detail": "{ESCAPED}"}}'.encode(), status="403 x"),
    "key where a message is cut": failed("x" * 190 + KEY),
    "key where a reason is cut": http(b"", status="400 " + "x" * 190 + KEY),
    "key where a page is cut": http(b"x" * 50 + KEY.encode()),
    "key in a page": http(f"<p>{KEY}</p>".encode()),
    "key with status 200": http(f'{{"error": {{"message": "{ESCAPED}"}}}}'.encode()),
    "key in upper case": failed(f"bad {KEY.upper()}"),
    "pause": http(b"", f"Retry-After: {KEY}", status="429 x"),
}


async def _serve(modes: dict[str, Mode]) -> tuple[asyncio.Server, list[str]]:
    """Serve each mode under a path of its own, slowly enough that other connections progress."""
    names = list(modes)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            await reader.readexactly(int((re.findall(r"content-length: (\d+)", head.lower()) or ["0"])[0]))
            mode = modes[names[int(head.split("/")[1])]]
            if isinstance(mode, bytes):
                writer.write(mode)
            else:
                for part in mode():
                    writer.write(part)
                    await asyncio.wait_for(writer.drain(), 9)
                    await asyncio.sleep(0.001)
                if not list(mode()):
                    await asyncio.sleep(4)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    address = "http://127.0.0.1:{}/{}/v1".format
    return server, [address(server.sockets[0].getsockname()[1], number) for number in range(len(names))]


async def _outcomes(modes: dict[str, Mode], context: ssl.SSLContext) -> list[tuple[str, Any, Any]]:
    """Call each endpoint, and return its mode, the reply or the error, and the error of the list of models, if any."""
    server, urls = await _serve(modes)
    limit = asyncio.Semaphore(16)

    async def one(name: str, url: str) -> tuple[str, Any, Any]:
        # What sends a little forever is awaited for two seconds; anything else may be slow on a busy machine.
        requests = RequestsConfig(tries=1, timeout_s=60 if isinstance(modes[name], bytes) else 2)
        ready, listed = Endpoint(url, "m", requests, KEY, context), None
        async with limit, ready.client() as client:
            try:
                found: Any = await ready.reply(ChatRequest([], Sampling()), client)
            except EndpointFailed as error:
                found = error
        async with limit:
            try:
                await ready.check_served()
            except InputError as error:
                listed = error
        return name, found, listed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rg_env.evaluation.endpoints._LIST_TIMEOUT_S", 3.0)
        found = await asyncio.gather(*map(one, modes, urls))
    server.close()
    return found


@pytest.mark.slow
def test_hostile_endpoints_cost_one_failed_call(capfd: pytest.CaptureFixture[str]) -> None:
    """Each of them is reported on one line in limited time and memory, and without the key. What is wrong only in
    ways that do not matter, such as a charset, is an answer."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problems = []

    outcomes = _outcomes({**ANSWERED, **FAILED}, ssl.create_default_context())
    for name, found, listed in asyncio.run(asyncio.wait_for(outcomes, 300)):
        error = found.error if isinstance(found, Reply) else str(found)
        shown = f"{found} {listed}"
        is_right = found.text == "2" if name in ANSWERED else bool(error)
        if not is_right or KEY[:12] in shown.lower() or "\n" in shown or len(shown) > 1500:
            problems.append((name, found, listed))
    assert problems == []
    assert len(FAILED) > 70
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 700
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "tokens",
    ["NaN", "[1, Infinity]", '"\\ud800"', f"{'[' * 900}{']' * 900}", "1"],
    ids=["nan", "inf", "half", "deep", "1"],
)
def test_odd_replies_of_a_tokenizer_are_ignored(tokens: str) -> None:
    """A server that claims to be vLLM is asked for tokens, which are sent back to it."""
    body = f'{{"tokens": {tokens}, "prompt": {"[" * 900}{"]" * 900}}}'.encode()

    async def ask() -> tuple[bool, int]:
        server, (url,) = await _serve({"tokens": http(body, "Set-Cookie: a=1; Path=/")})
        ready = Endpoint(url, "m", RequestsConfig(tries=1), KEY, ssl.create_default_context())
        async with ready.client() as client:
            await ready.reply(ChatRequest([], Sampling()), client)
            found = await ready.finds_open_thinking(), len(client.cookies)
        server.close()
        return found

    assert asyncio.run(ask()) == (False, 0), "cookies would pile up"


def test_replies_of_many_parts_are_not_parsed() -> None:
    """They would take seconds to parse and mask. An answer may contain many commas and brackets."""

    async def ask(body: bytes) -> Reply:
        server, (url,) = await _serve({"x": http(body)})
        ready = Endpoint(url, "m", RequestsConfig(tries=1), KEY, ssl.create_default_context())
        async with ready.client() as client:
            found = await ready.reply(ChatRequest([], Sampling()), client)
        server.close()
        return found

    text = "[1, 2, {3}]," * 20_000
    assert asyncio.run(ask(json.dumps(completion(text)).encode())).text == text
    for part in (b'{"":1},', b"1,", b"[]"):
        many = GOOD.replace(b"{", b'{"more": [' + part * 250_000 + b"1],", 1)
        assert "more than 250,000 parts" in str(asyncio.run(ask(many)).error)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_single_refusal_among_answers_is_retried(status: int, tmp_path: Path) -> None:
    """Large services return such errors now and then. Before the first answer, and if they persist, they end the
    model."""
    from chat_server import ChatServer
    from starlette.responses import JSONResponse

    with ChatServer(str) as server:
        requests = ["requests={tries: 3, pause_s: 0.01}", "tasks=gcd", "models=tiny"]
        config = load_eval_config(None, requests)

        async def calls() -> list[Any]:
            ready = await endpoint(EvalModel(model="m", url=server.url), config)
            request = ChatRequest([{"role": "user", "content": "1"}], Sampling())
            async with ready.client() as client:
                found: list[Any] = [await ready.reply(request, client)]
                refuse = JSONResponse({"detail": "no"}, status)
                server.reset(str, lambda number, body: refuse if number == 0 else None)
                found.append(await ready.reply(request, client))
                server.reset(str, lambda number, body: refuse)
                with pytest.raises(EndpointFailed, match=f"^HTTP {status}: no$"):
                    await ready.reply(request, client)
                return [*found, len(server.requests)]

        first, second, count = asyncio.run(calls())
        assert (first.text, second.text, count) == ("1", "1", 3)
