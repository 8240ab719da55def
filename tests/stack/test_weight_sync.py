"""Weights on their way to a real server: they arrive, or the run is stopped; the server outlives all of it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from stack_server import perturb

from rg_env.errors import TrainingError
from rg_env.inference.vllm.client import VllmServer
from rg_env.training import EngineConfig, GRPOConfig, weight_sync
from rg_env.training.strategy import DataParallel
from rg_env.training.vllm_engine import Vllm, model_logprobs

PROMPT = list(range(5, 60))
CPU = torch.device("cpu")


@pytest.fixture
def engine_of(server: Any, tokenizer: Any) -> Iterator[Callable[..., Vllm]]:
    opened: list[Vllm] = []

    def make(model: Any) -> Vllm:
        cpu, config = Accelerator(cpu=True), EngineConfig(kind="vllm", port=server.port, weight_sync_timeout=60.0)
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
    """Changed weights are the server's after a sync, however small the buckets, and again after the next change."""
    engine = engine_of(model)
    engine.weights.bucket_bytes = 300_000
    for _ in range(2):
        perturb(model)
        assert difference(server, model) > 0.01
        engine.sync()
        assert difference(server, model) < 1e-3
    assert engine.metrics()["weight_sync/logprob_difference"] < 1e-4


def test_a_parameter_in_the_wrong_place_stops_the_run(
    model: Any, engine_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete and undamaged, but two layers are swapped: only the log-probabilities reveal it."""
    first, second = (f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1))
    swap = {first: second, second: first}
    real = weight_sync.pack
    perturb(model)
    engine = engine_of(model)
    monkeypatch.setattr(
        weight_sync, "pack", lambda tensors, *a: real([(swap.get(name, name), each) for name, each in tensors], *a)
    )
    with pytest.raises(TrainingError, match="does not use the trained weights"):
        engine.sync()


def test_the_next_trainer_is_served_after_one_that_was_killed(server: Any, model: Any, engine_of: Any) -> None:
    """In the middle of a sync, without a farewell."""
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
    assert subprocess.run([sys.executable, "-c", script], timeout=200, check=False).returncode == -9
    perturb(model)
    engine_of(model).sync()
    assert difference(server, model) < 1e-3


def test_reported_logprobs_are_those_sampled_from(server: Any, model: Any, engine_of: Any) -> None:
    """With a temperature: `--logprobs-mode processed_logprobs`, as `rg-env vllm` has it."""
    engine_of(model).sync()
    body = {"model": server.info().name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0.5, "logprobs": 0}
    body |= {"return_tokens_as_token_ids": True, "seed": 1}
    answer = server.post("/v1/completions", body)["choices"][0]["logprobs"]
    ids = [int(token.split(":")[1]) for token in answer["tokens"]]
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    ours = torch.log_softmax(logits / 0.5, dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(answer["token_logprobs"]), ours, atol=1e-3, rtol=1e-3)
