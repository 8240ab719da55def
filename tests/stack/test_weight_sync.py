"""Weight sync with a real server: the weights arrive or the run stops, and the server keeps running."""

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
    """The server uses the changed weights after every sync, even if they are sent in many small buckets."""
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
    """Two layers are swapped, but every tensor arrives intact, so only the log-probabilities reveal the error."""
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


def test_a_trainer_can_sync_after_another_was_killed_during_a_sync(server: Any, model: Any, engine_of: Any) -> None:
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
