"""The client for vLLM servers, tested with local servers that are missing, unhealthy or not vLLM."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rg_env.errors import ServerError
from rg_env.inference.vllm.client import BREAKS_OFF, ServerInfo, VllmServer

MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 64}]}


@contextlib.contextmanager
def speaking(speak: Callable[[socket.socket], None]) -> Iterator[VllmServer]:
    """Run a server that does not speak HTTP: `speak` gets its first connection once it has received something."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1000)
                speak(connection)

        thread = threading.Thread(target=answer)
        thread.start()
        yield VllmServer("127.0.0.1", listener.getsockname()[1])
        thread.join()


def test_no_server_is_one_clear_error() -> None:
    """The error contains the command that starts a server. Waiting ends early if the server is no longer wanted, for
    example because its process has died."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = VllmServer("127.0.0.1", free.getsockname()[1])
        with pytest.raises(ServerError, match=rf"no vLLM server at {server}.*rg-env vllm MODEL"):
            server.wait(timeout_s=0.2)
        start = time.monotonic()
        with pytest.raises(ServerError):
            server.wait(60, still_wanted=lambda: False)
        assert time.monotonic() - start < 30


def test_an_unhealthy_server_is_not_awaited_beyond_the_timeout(serve: Any) -> None:
    """An unhealthy server listens, but responds with an error."""
    server = serve(health=(500, {}))
    assert str(VllmServer("::1", 8000)) == "[::1]:8000"
    with pytest.raises(ServerError, match=rf"{server}.*/health returns status 500"):
        server.wait(timeout_s=0.1)


HOSTS = ["a..b", "a" * 70 + ".com", "xn--a", "\u2603.x", "[::1", "", "a b", "a\nb", "x" * 300, "http://x"]


@pytest.mark.parametrize("host", HOSTS)
def test_an_invalid_host_is_one_line(host: str) -> None:
    """httpx raises several kinds of errors for invalid hosts; all of them become a `ServerError`."""
    server = VllmServer(host, 8000)
    with pytest.raises(ServerError):
        server.info()
    problem = server.health_problem(timeout_s=1)
    assert problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    "answer", [(200, b"<html>"), (200, []), (200, {"data": []}), (200, {"data": [{"id": "gpt"}]}), (404, {})]
)
def test_other_servers_are_not_vllm(serve: Any, answer: tuple[int, Any]) -> None:
    """Responses of a website, another program or another kind of model server are rejected."""
    with pytest.raises(ServerError, match="is not a vLLM server"):
        serve(models=answer).info()


def test_a_plain_vllm_server_takes_no_weights(serve: Any) -> None:
    """A server started without vLLM's development mode is refused, and so is an older version of vLLM."""
    with pytest.raises(ServerError, match="does not accept weights"):
        serve(models=(200, MODELS)).info()
    whole = {"get_world_size": (200, {"world_size": 2}), "version": (200, {"version": "0.32.1"})}
    assert serve(models=(200, MODELS), **whole).info() == ServerInfo("m", 64, 2)
    with pytest.raises(ServerError, match=r"runs vLLM 0\.11\.0, but 0\.32 or later is required"):
        serve(models=(200, MODELS), **{**whole, "version": (200, {"version": "0.11.0"})}).info()


def test_a_hung_server_is_not_awaited_forever() -> None:
    """A hung server accepts connections, but never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = VllmServer("127.0.0.1", listener.getsockname()[1])
        start = time.monotonic()
        with pytest.raises(ServerError, match=r"did not answer /close_communicator within 0\.2 s"):
            server.post("/close_communicator", timeout_s=0.2)
        assert time.monotonic() - start < 60
        assert server.health_problem(timeout_s=0.2)


@pytest.mark.parametrize("spoken", [b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b""])
def test_a_program_that_does_not_speak_http_is_not_taken_for_a_free_port(spoken: bytes) -> None:
    """Otherwise, users would look for a server that did not start instead of the program that uses the port."""
    with speaking(lambda connection: connection.sendall(spoken)) as server:
        assert server.health_problem(timeout_s=5) == BREAKS_OFF


def test_an_endless_body_is_not_read() -> None:
    """Only the status matters to a health check, and a timeout limits the time between two bytes rather than the total
    time."""
    over = threading.Event()

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 500 No\r\n\r\n")
        while not over.wait(0.05):
            connection.sendall(b"x")

    timer = threading.Timer(120, over.set)
    timer.start()
    with speaking(endless) as server:
        start = time.monotonic()
        assert server.health_problem(timeout_s=2) == "/health returns status 500"
        assert time.monotonic() - start < 60
        over.set()
    timer.cancel()


@pytest.mark.parametrize("body", [{}, {"tokens": None}, {"choices": []}, {"choices": [{"prompt_logprobs": [None]}]}])
def test_malformed_answers_are_reported(serve: Any, body: dict[str, Any]) -> None:
    """Servers of other versions may return JSON of another form."""
    server = serve(tokenize=(200, body), completions=(200, body))
    with pytest.raises(ServerError, match="unexpected answer to /tokenize: "):
        server.tokenize("m", {"messages": []})
    with pytest.raises(ServerError, match="unexpected answer to /v1/completions: "):
        server.logprobs("m", [5, 7, 8])


def test_logprobs_are_read_token_by_token(serve: Any) -> None:
    """The first token has no log-probability."""
    rows = [None, {"7": {"logprob": -1.5}}, {"3": {"logprob": -9.0}, "8": {"logprob": -0.5}}]
    answer = {"choices": [{"prompt_logprobs": rows}]}
    assert serve(completions=(200, answer)).logprobs("m", [5, 7, 8]) == [-1.5, -0.5]
