"""A fake of the outermost wire only: a real HTTP server on loopback that speaks OpenAI's chat completions."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # Verifiers opens all connections of a batch at once


class FakeServer:
    """Answers every chat with `reply(messages)`; `url` is what a client needs, `requests` the bodies received."""

    def __init__(self) -> None:
        self.reply: Callable[[list[dict[str, Any]]], str] = lambda messages: "<answer>0</answer>"
        self.requests: list[dict[str, Any]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.requests.append(body)
                message = {"role": "assistant", "content": fake.reply(body["messages"])}
                payload = {
                    "id": "chat-1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 5, "completion_tokens": 128, "total_tokens": 133},
                }
                data = json.dumps(payload).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    """A running `FakeServer`."""
    fake = FakeServer()
    thread = threading.Thread(target=fake.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()
    thread.join(timeout=5)
