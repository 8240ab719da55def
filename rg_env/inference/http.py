"""HTTP requests to servers that may be slow, broken or hostile: the reply is limited in size and in time.

    reply = await fetch(client, "POST", url, json={...}, timeout_s=60)
    reply.status, reply.json()

`client` is an `httpx.AsyncClient` that does not follow redirects. `fetch` follows them on the same host.
"""

import asyncio
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from rg_env.core.text import one_line

MAX_BYTES = 16 * 2**20
"""Default limit on a reply's body, before and after decompression."""
_REDIRECTS = 5
_HEADERS = {"Accept-Encoding": "gzip"}


class BadReplyError(Exception):
    """The server replied, but the reply is unusable: it is too large or malformed."""


class RedirectError(BadReplyError):
    """The server redirects to another host, or too often."""


@dataclass(frozen=True)
class HttpReply:
    """A complete reply."""

    status: int
    phrase: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """Return the parsed body. The declared type and charset are ignored. Raises `ValueError` or `RecursionError`
        if the body is not JSON."""
        return json.loads(self.body)


async def fetch(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    timeout_s: float,
    json: Any = None,
    max_bytes: int = MAX_BYTES,
) -> HttpReply:
    """Send a request and return the reply. With `max_bytes=0`, the body is not read.

    Raises:
        TimeoutError: the reply was not complete after `timeout_s` seconds.
        httpx.HTTPError, httpx.InvalidURL: the server cannot be reached or breaks off the connection.
        BadReplyError: the reply is unusable, or redirects to another host (`RedirectError`).
    """
    try:  # `json` may contain values from an earlier reply, which cannot always be sent
        request = client.build_request(method, url, json=json, headers=_HEADERS, timeout=timeout_s)
        async with asyncio.timeout(timeout_s):  # httpx limits only the time between two reads
            for _ in range(_REDIRECTS):
                response = await client.send(request, stream=True)
                try:
                    if response.next_request is None:
                        body = await _body(response, max_bytes) if max_bytes else b""
                        return HttpReply(response.status_code, response.reason_phrase, response.headers, body)
                finally:
                    await response.aclose()
                following = response.next_request
                if not _same_server(request.url, following.url):
                    raise RedirectError(f"the server redirects to {one_line(following.url.netloc.decode(), 300)}")
                request = following
            raise RedirectError("the server redirects again and again")
    except httpx.TimeoutException as error:
        raise TimeoutError from error
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, BadReplyError):
        raise
    except Exception as error:  # a hostile reply must not cause more than a failed request
        raise BadReplyError(str(error) or type(error).__name__) from error


def _same_server(old: httpx.URL, new: httpx.URL) -> bool:
    """Whether two URLs have the same host, port and scheme, except that HTTP may become HTTPS."""
    if (old.scheme, old.host, old.port) == (new.scheme, new.host, new.port):
        return True
    return old.host == new.host and (old.scheme, new.scheme) == ("http", "https") and old.port is new.port is None


async def _body(response: httpx.Response, max_bytes: int) -> bytes:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        raise BadReplyError(f"the content encoding is {one_line(encoding, 40)!r}")
    inflate = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    parts, sent, size = list[bytes](), 0, 0
    async for chunk in response.aiter_raw():
        sent += len(chunk)
        part = inflate.decompress(chunk, max_bytes + 1 - size) if inflate else chunk
        size += len(part)
        if max(sent, size) > max_bytes:
            raise BadReplyError(f"more than {max_bytes / 2**20:g} MB")
        parts.append(part)
    return b"".join(parts)
