"""Equal requests as one, against a real local server."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from rg_env.inference.grouping import MOST, GroupingClient


class Server:
    """Answers with `n` numbered choices of as many tokens as their number; `asked` is what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.status, self.missing = 200, 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.asked.append(body)
                text = json.dumps(owner.answer(body)).encode()
                self.send_response(owner.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        count = (body.get("n") or 1) - self.missing
        token = {"token": "t", "logprob": -1.0, "top_logprobs": []}
        choices = [
            {
                "index": i,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": f"{body['messages'][0]['content']} {i}"},
                "logprobs": {"content": [token] * (i + 1)},
            }
            for i in range(count)
        ]
        usage = {"prompt_tokens": 7, "completion_tokens": count * (count + 1) // 2, "total_tokens": 0}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices, "usage": usage}


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def ask(server: Server, *questions: str, **settings: Any) -> list[Any]:
    """All at once; errors as values."""

    async def run() -> list[Any]:
        url = f"http://127.0.0.1:{server.http.server_port}/v1"
        client = GroupingClient(AsyncOpenAI(base_url=url, api_key="x", max_retries=0))
        messages = [[{"role": "user", "content": question}] for question in questions]
        answers = [client.chat.completions.create(model="m", messages=each, **settings) for each in messages]
        try:
            return await asyncio.gather(*answers, return_exceptions=True)
        finally:
            await client.close()

    return asyncio.run(run())


def test_equal_requests_are_one_and_each_gets_its_own_choice(server: Server) -> None:
    answers = ask(server, "a", "b", "a", "a", temperature=1.0)
    assert sorted((body["messages"][0]["content"], body["n"]) for body in server.asked) == [("a", 3), ("b", 1)]
    assert [answer.choices[0].message.content for answer in answers] == ["a 0", "b 0", "a 1", "a 2"]
    assert all(len(answer.choices) == 1 and answer.choices[0].index == 0 for answer in answers)
    assert [answer.usage.completion_tokens for answer in answers] == [1, 1, 2, 3]
    assert answers[3].usage.total_tokens == 10


def test_other_settings_are_another_request(server: Server) -> None:
    """Nothing is mixed that was not asked for in the same way."""

    async def run() -> None:
        client = GroupingClient(AsyncOpenAI(base_url=f"http://127.0.0.1:{server.http.server_port}/v1", api_key="x"))
        messages = [{"role": "user", "content": "a"}]
        create = client.chat.completions.create
        await asyncio.gather(*(create(model="m", messages=messages, temperature=t) for t in (0.5, 1.0)))
        await asyncio.gather(*(create(model="m", messages=messages, extra_body={"top_k": k}) for k in (1, 2)))
        await client.close()

    asyncio.run(run())
    assert [body["n"] for body in server.asked] == [1] * 4


def test_greedy_answers_are_shared(server: Server) -> None:
    """They are the same, and servers refuse several of them."""
    answers = ask(server, "a", "a", temperature=0.0)
    assert [body["n"] for body in server.asked] == [1]
    assert [answer.choices[0].message.content for answer in answers] == ["a 0", "a 0"]


@pytest.mark.parametrize("settings", [{"seed": 1}, {"n": 2}])
def test_what_asks_for_more_than_any_sample_is_left_alone(server: Server, settings: dict[str, Any]) -> None:
    ask(server, "a", "a", temperature=1.0, **settings)
    assert len(server.asked) == 2


def test_large_groups_go_in_parts(server: Server) -> None:
    answers = ask(server, *["a"] * (MOST + 3), temperature=1.0)
    assert sorted(body["n"] for body in server.asked) == [3, MOST]  # both at once
    assert len(answers) == MOST + 3


def test_an_error_is_everyones(server: Server) -> None:
    """As the client raises it."""
    server.status = 500
    answers = ask(server, "a", "a")
    assert all(isinstance(answer, openai.InternalServerError) for answer in answers)


def test_too_few_choices_are_an_error(server: Server) -> None:
    """Nobody waits for a choice that never comes."""
    server.missing = 1
    answers = ask(server, "a", "a", temperature=1.0)
    assert all("1 choices where 2 were asked for" in str(answer) for answer in answers)
