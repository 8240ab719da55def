"""Weight sync with a real server: the weights arrive or the run stops, and the server keeps running."""

import asyncio
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import torch
from accelerate import Accelerator
from forked_python import PYTHON
from repeating_server import RepeatingServer
from stack_server import perturb
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rg_env.errors import TrainingError
from rg_env.evaluation.config import EvalConfig, EvalModel
from rg_env.evaluation.endpoints import endpoint
from rg_env.evaluation.questions import ChatRequest
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.protocol import PromptEncoder, Sampling
from rg_env.inference.vllm.client import VllmServer
from rg_env.training import EngineConfig, GRPOConfig, weight_sync
from rg_env.training.strategy import DataParallel
from rg_env.training.vllm_engine import Vllm, model_logprobs

PROMPT = list(range(5, 60))
CPU = torch.device("cpu")


@pytest.fixture
def engine_of(server: Any, tokenizer: Any) -> Iterator[Callable[..., Vllm]]:
    opened: list[Vllm] = []

    def make(model: Any, port: int = server.port) -> Vllm:
        cpu, config = Accelerator(cpu=True), EngineConfig(kind="vllm", port=port, weight_sync_timeout=60.0)
        prompt: dict[str, Any] = {"messages": "", "proof": PROMPT, "longest": len(PROMPT) + 8}
        opened.append(Vllm(cpu, model, tokenizer, config, strategy=DataParallel(cpu, GRPOConfig()), **prompt))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def difference(server: VllmServer, model: Any) -> float:
    theirs = torch.tensor(server.logprobs(server.info().name, PROMPT))
    return float((model_logprobs(model, PROMPT, CPU) - theirs).abs().max())


def test_weights_arrive_in_buckets(server: Any, model: Any, engine_of: Any) -> None:
    """The server uses the changed weights after every sync, even if they are sent in many small buckets."""
    engine = engine_of(model)
    engine.weights.bucket_bytes = 300_000
    for _ in range(2):
        perturb(model)
        assert difference(server, model) > 0.01
        engine.sync()
        assert difference(server, model) < 1e-3
    assert engine.metrics()["weight_sync/logprob_difference"] < 1e-4


def update(model: Any) -> None:
    """Change every weight by 1e-6, like a step of Adam at this learning rate."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-6 * torch.randn_like(parameter).sign())


@pytest.mark.parametrize("updates", [10, pytest.param(200, marks=pytest.mark.full_matrix)])
def test_honest_updates_raise_no_alarm(model: Any, engine_of: Any, updates: int) -> None:
    """Every tensor is read back after each update, and equals what was sent."""
    engine = engine_of(model)
    for _ in range(updates):
        update(model)
        engine.sync()
        assert engine.metrics()["weight_sync/unproven_tensors"] == 0


class IdleServer(RepeatingServer):
    """A proxy for a vLLM server that accepts all updates and, if `is_idle`, applies none."""

    is_idle = False

    async def _answer(self, request: Request) -> Response:
        if self.is_idle and request.url.path.endswith(("_weight_update", "/update_weights")):
            return JSONResponse({"message": "done"})
        return await super()._answer(request)


def test_a_server_that_applies_no_update_ends_the_run(server: Any, model: Any, engine_of: Any) -> None:
    """At a learning rate of 1e-6, the first update that is not applied is noticed."""
    with IdleServer(server.port) as between:
        engine = engine_of(model, between.port)
        engine.sync()
        between.is_idle = True
        update(model)
        with pytest.raises(TrainingError, match=r"after the update, 39 of 39 tensors differ from the trainer's"):
            engine.sync()


LOST = ["model.norm.weight", "model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"]


@pytest.mark.parametrize("lost", [*LOST, "model.embed_tokens.weight", "lm_head.weight"])
def test_a_tensor_that_does_not_arrive_ends_the_run(
    model: Any, engine_of: Any, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """At a learning rate of 1e-6, the first update without this tensor is noticed, and the error names the tensor."""
    engine = engine_of(model)
    engine.sync()
    real = weight_sync.pack
    monkeypatch.setattr(
        weight_sync, "pack", lambda tensors, flat: real([each for each in tensors if each[0] != lost], flat)
    )
    update(model)
    with pytest.raises(TrainingError, match=rf"tensors differ from the trainer's: .*{re.escape(lost)}"):
        engine.sync()


def test_a_parameter_in_the_wrong_place_stops_the_run(
    model: Any, engine_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers are swapped, although every tensor arrives intact."""
    first, second = (f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1))
    swap = {first: second, second: first}
    real = weight_sync.pack
    engine = engine_of(model)
    monkeypatch.setattr(
        weight_sync, "pack", lambda tensors, flat: real([(swap.get(name, name), each) for name, each in tensors], flat)
    )
    with pytest.raises(TrainingError, match=rf"2 of 39 tensors differ from the trainer's: {first}, {second}"):
        engine.sync()


def test_the_models_generation_config_has_no_effect(
    server: Any, model: Any, tokenizer: Any, engine_of: Any, small_machine: None
) -> None:
    """The served model's own config would make sampling greedy, with a penalty that changes most greedy answers.
    Training samples from the model's distribution, and evaluation gets the embedded engine's greedy answers."""
    engine = engine_of(model)
    engine.sync()
    sampled = engine.generate([PROMPT] * 64, Sampling(max_tokens=1))
    assert len({each.token_ids[0] for each in sampled}) > 1
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0, -1], dim=-1)
    for each in sampled:
        assert each.logprobs[0] == pytest.approx(expected[each.token_ids[0]].item(), abs=1e-3)

    encoder, greedy = PromptEncoder(tokenizer), Sampling(temperature=0.0, max_tokens=40)
    prompts = [[{"role": "user", "content": f"How many legs do {n} bees and {n + 1} ants have?"}] for n in range(2, 10)]
    completions = EmbeddedEngine(model, tokenizer).generate([encoder(prompt) for prompt in prompts], greedy)
    ours = encoder.decode([each.token_ids for each in completions], engine.end_ids)

    async def answers() -> list[str]:
        served = EvalModel(model=server.info().name, url=f"http://{server}/v1")
        ready = replace(await endpoint(served, EvalConfig(models={"m": "tiny"}, tasks="leg_counting")), encoder=encoder)
        async with ready.client() as client:
            return [(await ready.reply(ChatRequest(prompt, greedy), client)).text for prompt in prompts]

    theirs = asyncio.run(answers())
    assert sum(mine == other for mine, other in zip(ours, theirs, strict=True)) >= 7


def test_a_canceled_generation_ends_on_the_server(server: Any, model: Any, engine_of: Any) -> None:
    """The waiting thread gets an error at once, and the server drops its requests instead of completing them."""
    engine, failures = engine_of(model), list[Exception]()

    def metric(name: str, label: str = "") -> float:
        found = httpx.get(f"http://{server}/metrics", trust_env=False, follow_redirects=True, timeout=120)
        lines = found.text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and label in line)

    def completed() -> float:
        return sum(metric("vllm:request_success_total", f'finished_reason="{each}"') for each in ("stop", "length"))

    def generate() -> None:
        try:
            engine.generate([[token] * 20 for token in range(5, 261)], Sampling(temperature=2.0, max_tokens=400))
        except TrainingError as error:
            failures.append(error)

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 180
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    before, thread = completed(), threading.Thread(target=generate)
    thread.start()
    wait_for(lambda: bool(failures) or metric("vllm:num_requests_running") > 0)
    assert not failures, failures
    start = time.monotonic()
    engine.cancel()
    thread.join(60)
    assert time.monotonic() - start < 30
    assert "was canceled" in str(failures[0])
    wait_for(lambda: metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") == 0)
    assert completed() - before < 256
    engine.resume()
    assert engine.generate([PROMPT], Sampling(max_tokens=1))


def test_a_trainer_can_sync_after_another_was_killed_during_a_sync(
    server: Any, model: Any, engine_of: Any, forks: None
) -> None:
    script = f"""
import os
from accelerate import Accelerator
from rg_env.training import EngineConfig, GRPOConfig, load_policy
from rg_env.training.strategy import DataParallel
from rg_env.training.vllm_engine import Vllm
policy = load_policy("tiny")
cpu, config = Accelerator(cpu=True), EngineConfig(kind="vllm", port={server.port})
prompt = {{"messages": "", "proof": [5, 6], "longest": 10}}
strategy = DataParallel(cpu, GRPOConfig())
engine = Vllm(cpu, policy.model, policy.tokenizer, config, strategy=strategy, **prompt)
engine.server.post("/start_weight_update")
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([*PYTHON, "-c", script], timeout=600, check=False).returncode == -9
    perturb(model)
    engine_of(model).sync()
    assert difference(server, model) < 1e-3


def test_reported_logprobs_are_those_of_the_sampling_distribution(server: Any, model: Any, engine_of: Any) -> None:
    """Log-probabilities include the temperature, because `rg-env vllm` sets `--logprobs-mode processed_logprobs`."""
    engine_of(model).sync()
    body = {"model": server.info().name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0.5, "logprobs": 0}
    body |= {"return_tokens_as_token_ids": True, "seed": 1}
    answer = server.post("/v1/completions", body)["choices"][0]["logprobs"]
    ids = [int(token.split(":")[1]) for token in answer["tokens"]]
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    ours = torch.log_softmax(logits / 0.5, dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(answer["token_logprobs"]), ours, atol=1e-3, rtol=1e-3)
