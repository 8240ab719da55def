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
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.strategy import DataParallel
from rg_env.training.weight_sync import transfer
from rg_env.training.weight_sync.proof import model_logprobs
from rg_env.training.weight_sync.transfer import WeightSync

PROMPT = list(range(5, 60))
CPU = torch.device("cpu")


@pytest.fixture
def sync_of(server: Any) -> Iterator[Callable[..., WeightSync]]:
    opened: list[WeightSync] = []

    def make(model: Any, **options: Any) -> WeightSync:
        fixed = {
            "info": server.info(),
            "proof": PROMPT,
            "strategy": DataParallel(Accelerator(cpu=True), GRPOConfig()),
            "timeout_s": 60.0,
        }
        opened.append(WeightSync(Accelerator(cpu=True), server, model, **{**fixed, **options}))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def difference(server: VllmServer, model: Any) -> float:
    theirs = torch.tensor(server.logprobs(server.info().name, PROMPT))
    return float((model_logprobs(model, PROMPT, CPU) - theirs).abs().max())


def test_weights_arrive_in_buckets(server: Any, model: Any, sync_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed weights are the server's after a sync, however small the buckets, and again after the next change."""
    monkeypatch.setattr(transfer, "BUCKET_BYTES", 300_000)
    sync = sync_of(model)
    for _ in range(2):
        perturb(model)
        assert difference(server, model) > 0.01
        sync.run()
        assert difference(server, model) < 1e-3
    assert sync.difference is not None
    assert sync.difference < 1e-4


def test_a_parameter_in_the_wrong_place_stops_the_run(
    model: Any, sync_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete and undamaged, but two layers are swapped: only the log-probabilities tell."""
    first, second = (f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1))
    swap = {first: second, second: first}
    real = transfer.pack
    perturb(model)
    sync = sync_of(model)
    monkeypatch.setattr(
        transfer, "pack", lambda tensors, *a: real([(swap.get(name, name), each) for name, each in tensors], *a)
    )
    with pytest.raises(TrainingError, match="does not compute what the trainer does"):
        sync.run()


def test_the_next_trainer_is_served_after_one_that_was_killed(server: Any, model: Any, sync_of: Any) -> None:
    """In the middle of a sync, without a farewell."""
    script = f"""
import os
from accelerate import Accelerator
from transformers import AutoModelForCausalLM
from rg_env.inference.vllm.client import VllmServer
from rg_env.tiny import POLICY_DIR
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.strategy import DataParallel
from rg_env.training.weight_sync.transfer import WeightSync
server = VllmServer("127.0.0.1", {server.port})
model = AutoModelForCausalLM.from_pretrained(POLICY_DIR)
cpu = Accelerator(cpu=True)
strategy = DataParallel(cpu, GRPOConfig())
WeightSync(cpu, server, model, info=server.info(), proof=[5, 6], strategy=strategy, timeout_s=60)
server.post("/start_weight_update")
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=200, check=False).returncode == -9
    perturb(model)
    sync_of(model).run()
    assert difference(server, model) < 1e-3


def test_reported_logprobs_are_those_sampled_from(server: Any, model: Any, sync_of: Any) -> None:
    """With a temperature: `--logprobs-mode processed_logprobs`, as `rg-env vllm` has it."""
    sync_of(model).run()
    body = {"model": server.info().name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0.5, "logprobs": 0}
    body |= {"return_tokens_as_token_ids": True, "seed": 1}
    answer = server.post("/v1/completions", body)["choices"][0]["logprobs"]
    ids = [int(token.split(":")[1]) for token in answer["tokens"]]
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    ours = torch.log_softmax(logits / 0.5, dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(answer["token_logprobs"]), ours, atol=1e-3, rtol=1e-3)
