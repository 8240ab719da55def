"""HTTP client for vLLM servers."""

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rg_env.core.text import reason_of, shortened
from rg_env.errors import RefusedError, ServerError
from rg_env.inference.machine import OLDEST_VLLM
from rg_env.inference.protocol import Completion, Sampling
from rg_env.inference.vllm.command import start_hint

if TYPE_CHECKING:
    from rg_env.inference.http import HttpReply

T = TypeVar("T")

REQUEST_S = 120.0
"""Default timeout for a request, in seconds. The first request to a new server on a CPU can take 40 s."""
POLL_S = 0.5
NOT_LISTENING = "no process is listening there"
BREAKS_OFF = "the service does not speak HTTP, or it drops the connection"
_MAX_BYTES = 2**30
"""Limit on a reply, which may contain the token ids and log-probabilities of a whole batch."""


def request_fields(sampling: Sampling) -> dict[str, Any]:
    """Return all sampling settings as fields of a request to vLLM, so that the server's defaults do not apply."""
    fields = {**vars(sampling), "top_k": sampling.top_k if sampling.top_k > 0 else -1, "stop": list(sampling.stop)}
    return {**fields, "include_stop_str_in_output": True} if sampling.stop else fields


def in_daemon_thread(act: Callable[[], T], name: str) -> "Future[T]":
    """Run `act()` in a thread that, unlike an executor's thread, does not keep the process from exiting."""
    future: Future[T] = Future()

    def run() -> None:
        with contextlib.suppress(InvalidStateError):  # the future was given another result
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


@dataclass(frozen=True)
class ServerInfo:
    """Server properties that a trainer needs."""

    name: str
    """Name of the model in requests."""
    max_model_len: int
    workers: int


class VllmServer:
    """HTTP client for a vLLM server. Every request has a timeout. Every failed request raises `ServerError`, except in
    `health_problem`, which returns the reason. `cancel` can be called from any thread."""

    def __init__(self, host: str, port: int):
        self.host, self.port = host, port
        self._pending: set[Future[Any]] = set()

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def wait(self, timeout_s: float, still_wanted: Callable[[], bool] = lambda: True) -> None:
        """Wait until `/health` succeeds. The request is sent at least once, and then repeated for up to `timeout_s`
        seconds, as long as `still_wanted()` is true.

        Raises:
            ServerError: the server did not become healthy in time, or `still_wanted()` became false.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            problem = self.health_problem(timeout_s=5.0)
            if problem is None:
                return
            if time.monotonic() >= deadline or not still_wanted():
                raise ServerError(
                    f"no vLLM server at {self} within {timeout_s:g} s ({problem}): start a server with "
                    f"`{start_hint(port=self.port)}`, or train with the embedded engine"
                )
            time.sleep(min(POLL_S, max(0.05, deadline - time.monotonic())))

    def health_problem(self, timeout_s: float) -> str | None:
        """Return the reason the server is not healthy, or None."""
        import httpx  # imported here because the embedded engine does not need an HTTP client

        from rg_env.inference.http import BadReplyError

        try:
            # Another program may answer, with an endless body.
            request = in_daemon_thread(lambda: self._fetch("GET", "/health", timeout_s, 0), "rg-env-health")
            status = request.result().status
        except TimeoutError:
            return f"/health did not respond within {timeout_s:g} s"
        except httpx.ConnectError:
            return NOT_LISTENING
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return BREAKS_OFF
        except (httpx.HTTPError, httpx.InvalidURL, BadReplyError, ValueError) as error:  # ValueError: an invalid host
            return reason_of(error)
        return None if status == 200 else f"/health returns status {status}"

    def info(self) -> ServerInfo:
        """Query the server properties that a trainer needs.

        Raises:
            ServerError: a request failed, or the server is not vLLM 0.32 or later or does not accept weights.
        """
        start = start_hint(port=self.port)

        def served(answer: dict[str, Any]) -> tuple[str, int]:
            model = answer["data"][0]
            if model["owned_by"] != "vllm":
                raise KeyError
            return str(model["id"]), int(model["max_model_len"])

        name, length = self._ask("/v1/models", f"is not a vLLM server: use a server started with `{start}`", served)
        takes_none = f"does not accept weights: start it with `{start}`"
        workers = self._ask("/get_world_size", takes_none, lambda answer: int(answer["world_size"]))
        version = self._ask("/version", "is not a vLLM server", lambda answer: str(answer["version"]))
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_VLLM:
            raise ServerError(f"the server at {self} runs vLLM {version}, but 0.32 or later is required")
        return ServerInfo(name, length, workers)

    def check_logprobs(self, model: str) -> None:
        """Raise `ServerError` unless the server reports log-probabilities of the distribution that it samples from.

        Call this after setting up weight transfer. The setup first finishes any update that a killed trainer left
        incomplete. Until then, the server's model may be unusable.
        """
        # With top_k=1, the log-probability is 0 in the sampled distribution, but not in the model's own distribution.
        (probe,) = self.complete(model, [[1]], Sampling(top_k=1, max_tokens=1), REQUEST_S)
        if probe.logprobs[0] != 0:
            raise ServerError(
                f"the server at {self} does not report log-probabilities of the distribution that it samples from: "
                f"start it with `{start_hint(port=self.port)}`, or with `--logprobs-mode processed_logprobs`"
            )

    def address_here(self) -> str:
        """Return this machine's address as seen from the server, without sending a packet."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((self.host, 9))
            return str(probe.getsockname()[0])
        return "127.0.0.1"

    def tokenize(self, model: str, chat: Mapping[str, Any]) -> list[int]:
        """Return the token ids of the prompt that the server renders from `chat` (see `PromptEncoder.chat`)."""
        body = {"model": model, **chat}
        return self._ask("/tokenize", "cannot tokenize", lambda answer: list(map(int, answer["tokens"])), body)

    def logprobs(self, model: str, ids: Sequence[int]) -> list[float]:
        """Return log-probabilities (L - 1,) of `ids[1:]`, each given the preceding ids."""

        def read(answer: dict[str, Any]) -> list[float]:
            rows = answer["choices"][0]["prompt_logprobs"][1:]
            return [float(row[str(token)]["logprob"]) for row, token in zip(rows, ids[1:], strict=True)]

        body = {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        return self._ask("/v1/completions", "returns no log-probabilities", read, body)

    def complete(
        self, model: str, prompts: Sequence[Sequence[int]], sampling: Sampling, timeout_s: float
    ) -> list[Completion]:
        """Generate one completion (token ids) per prompt (token ids), in order, in a single request."""
        body = {
            **request_fields(sampling),
            "model": model,
            "prompt": [list(prompt) for prompt in prompts],
            "logprobs": 0,
            "return_token_ids": True,
        }

        def read(answer: dict[str, Any]) -> list[Completion]:
            found = [
                Completion(
                    [int(token) for token in choice["token_ids"]],
                    [float(value) for value in choice["logprobs"]["token_logprobs"]],
                    "length" if choice["finish_reason"] == "length" else "stop",
                )
                for choice in sorted(answer["choices"], key=lambda choice: choice["index"])
            ]
            if len(found) != len(prompts) or any(len(each.token_ids) != len(each.logprobs) for each in found):
                raise ValueError
            return found

        return self._ask("/v1/completions", "returns no completions", read, body, timeout_s)

    def on_workers(self, method: str, *arguments: Any, timeout_s: float = REQUEST_S) -> list[dict[str, Any]]:
        """Call a method of the workers' extension (see `read_back`), and return each worker's result. With data
        parallelism, only the workers of the first replica are called."""
        body = {"method": method, "args": list(arguments)}
        start = start_hint(port=self.port)

        def read(answer: dict[str, Any]) -> list[dict[str, Any]]:
            return [dict(result) for result in answer["results"]]

        complaint = f"does not let its weights be read back: start it with `{start}`"
        return self._ask("/collective_rpc", complaint, read, body, timeout_s)

    def cancel(self) -> bool:
        """Let all running requests fail with `ServerError` at once, although the server keeps working on them. Return
        whether there were any."""
        pending = list(self._pending)
        for future in pending:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(ServerError(f"the request to the server at {self} was canceled"))
        return bool(pending)

    def abort(self) -> None:
        """Ask the server to end all completions that it is working on."""
        with contextlib.suppress(ServerError):
            self.post("/abort_requests", timeout_s=1.0)

    def post(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = REQUEST_S) -> dict[str, Any]:
        """Send a POST request to an endpoint of vLLM's development mode."""
        return self._ask(path, f"does not accept {path}", dict, body or {}, timeout_s)

    def _fetch(self, method: str, path: str, timeout_s: float, max_bytes: int, body: Any = None) -> "HttpReply":
        import httpx

        from rg_env.inference.http import HttpReply, fetch

        async def call() -> HttpReply:
            # Servers on this machine or in its cluster are reached without the environment's proxy, and plain HTTP
            # needs no certificates.
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:
                url = f"http://{self}{path}"
                return await fetch(client, method, url, json=body, timeout_s=timeout_s, max_bytes=max_bytes)

        return asyncio.run(call())

    def _ask(
        self,
        path: str,
        complaint: str,
        read: Callable[[dict[str, Any]], T],
        body: Any = None,
        timeout_s: float = REQUEST_S,
    ) -> T:
        """Send a GET request, or a POST request if `body` is given. Pass the JSON response to `read` and return the
        result.

        Raises:
            ServerError: the request failed or timed out, or `read` failed. If the status is 4xx, the error is a
                `RefusedError`.
        """
        import httpx

        from rg_env.inference.http import BadReplyError

        method = "GET" if body is None else "POST"
        request = in_daemon_thread(lambda: self._fetch(method, path, timeout_s, _MAX_BYTES, body), "rg-env-request")
        self._pending.add(request)
        try:
            response = request.result()
        except TimeoutError as error:
            raise ServerError(f"the server at {self} did not answer {path} within {timeout_s:g} s") from error
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            raise ServerError(f"the server at {self} is gone: no response from {path}") from error
        except (httpx.HTTPError, httpx.InvalidURL, BadReplyError, ValueError) as error:  # ValueError: an invalid host
            raise ServerError(f"the service at {self} {complaint}: {error}") from error
        finally:
            self._pending.discard(request)
        if not response.is_success:
            kind = RefusedError if 400 <= response.status < 500 else ServerError
            raise kind(f"the service at {self} {complaint}: {path} returns {_reason(response)}")
        try:
            return read(response.json())
        # A body that is not JSON also raises ValueError.
        except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
            shown = shortened(response.text)
            raise ServerError(f"the service at {self} {complaint}: unexpected answer to {path}: {shown}") from error


def _reason(response: "HttpReply") -> str:
    """Return the HTTP status of a response, with its error message if there is one."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(response.json()["error"]["message"])
        found = re.search(r"failed with error '(.*)', please check", text, re.DOTALL)
        return f"{response.status} ({(found[1] if found else text)[:300]})"
    return str(response.status)
