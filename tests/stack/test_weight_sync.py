"""Weights on their way to a real server: they arrive, or the run is stopped; the server outlives all of it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from stack_server import perturb

from rg_env.errors import ServerError, TrainingError
from rg_env.inference.vllm import VllmServer
from rg_env.training import weight_line, weight_sync
from rg_env.training.weight_line import FAREWELL_S, WeightLine
from rg_env.training.weight_sources import sources
from rg_env.training.weight_sync import WeightSync, model_logprobs, shape_of

PROMPT = list(range(5, 60))
CPU = torch.device("cpu")


@pytest.fixture
def line(request: Any, server: Any, model: Any) -> Iterator[WeightLine]:
    """A trainer's line, connected; a parameter is the transport."""
    opened = WeightLine(server, timeout_s=20, transport=getattr(request, "param", "auto"))
    opened.connect(CPU, shape_of(model))
    yield opened
    opened.close()


def make_sync(line: WeightLine, model: Any, **options: Any) -> WeightSync:
    served = line.server.model().name
    return WeightSync(Accelerator(cpu=True), line, model, proof=PROMPT, served=served, zero3=False, **options)


def difference(server: VllmServer, model: Any) -> float:
    theirs = torch.tensor(server.logprobs(server.model().name, PROMPT))
    return float((model_logprobs(model, PROMPT, CPU) - theirs).abs().max())


@pytest.mark.parametrize("line", ["shm", "gloo"], indirect=True)
def test_weights_arrive_in_buckets(server: Any, model: Any, line: WeightLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed weights are the server's after a sync, however small the buckets, and again after the next change."""
    monkeypatch.setattr(weight_sync, "BUCKET_BYTES", 300_000)
    sync = make_sync(line, model)
    for _ in range(2):
        perturb(model)
        assert difference(server, model) > 0.01
        sync.run()
        assert difference(server, model) < 1e-3
    assert sync.difference is not None
    assert sync.difference < 1e-3


def test_only_the_weights_of_adapted_layers_travel_with_lora(
    server: Any, model: Any, line: WeightLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first sync: merged on the way, while the adapter stays what it was."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    sent: list[str] = []
    send = line.send
    monkeypatch.setattr(line, "send", lambda tensors: (sent.extend(name for name, _ in tensors), send(tensors)))
    sync = make_sync(line, adapted, check_every=1)
    sync.run()
    complete, sent[:] = list(sent), []
    assert len(complete) == len(list(sources(adapted)))
    perturb(adapted, only=".lora_B.")
    before = {name: value.clone() for name, value in adapted.state_dict().items()}
    assert difference(server, adapted) > 0.01
    sync.run()
    assert difference(server, adapted) < 1e-3
    assert {name.split(".")[-2] for name in sent} == {"q_proj", "down_proj"}
    assert all(torch.equal(value, before[name]) for name, value in adapted.state_dict().items())


def test_a_missing_parameter_stops_the_run(model: Any, line: WeightLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server knows which of its weights no bucket wrote."""
    left_out = "model.layers.1.mlp.down_proj.weight"
    monkeypatch.setattr(weight_sync, "sources", lambda *a, **k: [s for s in sources(*a, **k) if s.name != left_out])
    with pytest.raises(TrainingError, match=f"does not send: {left_out}"):
        make_sync(line, model).run()


def test_a_parameter_damaged_on_the_way_stops_the_run(
    model: Any, line: WeightLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit is enough."""
    checksum = weight_line.checksum

    def damaging(flat: torch.Tensor) -> int:
        right = checksum(flat)
        flat[1000] ^= 1
        return right

    monkeypatch.setattr(weight_line, "checksum", damaging)
    with pytest.raises(TrainingError, match="did not arrive as they were sent"):
        make_sync(line, model).run()


def test_a_parameter_in_the_wrong_place_stops_the_run(
    server: Any, model: Any, line: WeightLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete and undamaged, but two layers are swapped: only the log-probabilities tell."""
    send = line.send
    swap = {"model.layers.0.mlp.down_proj.weight": "model.layers.1.mlp.down_proj.weight"}
    swap |= {there: here for here, there in swap.items()}
    monkeypatch.setattr(line, "send", lambda tensors: send([(swap.get(name, name), value) for name, value in tensors]))
    with pytest.raises(TrainingError, match="does not compute what the trainer does"):
        make_sync(line, model).run()


def test_a_stale_parameter_stops_the_run(model: Any, line: WeightLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later sync that leaves one behind is found at the next comparison."""
    sync = make_sync(line, model, check_every=1)
    sync.run()
    perturb(model)
    real = weight_sync.sources
    monkeypatch.setattr(weight_sync, "sources", lambda *a, **k: [s for s in real(*a, **k) if "layers.2" not in s.name])
    with pytest.raises(TrainingError, match="does not compute what the trainer does"):
        sync.run()


def test_a_second_trainer_is_told_that_the_server_is_busy(server: Any, model: Any, line: WeightLine) -> None:
    """And the first one goes on."""
    second = WeightLine(server, timeout_s=5)
    with pytest.raises(ServerError, match="serves another trainer"):
        second.connect(CPU, {})
    second.close()
    make_sync(line, model).run()


def test_the_next_trainer_is_served_after_one_that_was_killed(server: Any, model: Any) -> None:
    """In the middle of a sync, without a farewell."""
    script = f"""
import os, torch
from rg_env.inference.vllm import VllmServer
from rg_env.training.weight_line import WeightLine
line = WeightLine(VllmServer("127.0.0.1", {server.port}), timeout_s=20)
line.connect(torch.device("cpu"), {{}})
line._command("load", entries=[["lm_head.weight", "float32", [64]]], checksum=0)
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=100, check=False).returncode == -9
    line = WeightLine(server, timeout_s=20)
    line.connect(CPU, shape_of(model))
    make_sync(line, model).run()
    start = time.monotonic()
    line.close()
    assert time.monotonic() - start < FAREWELL_S + 2


def test_another_model_is_refused(server: Any, model: Any) -> None:
    """By its sizes, and the server is free for others afterwards."""
    line = WeightLine(server, timeout_s=5)
    with pytest.raises(ServerError, match="serves another model: its hidden_size is 128, the trainer's 64"):
        line.connect(CPU, {**shape_of(model), "hidden_size": 64})
    line.close()


def test_reported_logprobs_are_those_sampled_from(server: Any, model: Any) -> None:
    """With a temperature: `--logprobs-mode processed_logprobs`, as `serve_command` has it."""
    line = WeightLine(server, timeout_s=20)
    line.connect(CPU, shape_of(model))
    make_sync(line, model).run()
    assert line.logprobs_mode == "processed_logprobs"
    line.close()
    body = {"model": server.model().name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0.5, "logprobs": 0}
    body |= {"return_tokens_as_token_ids": True, "seed": 1}
    answer = server.post("/v1/completions", body)["choices"][0]["logprobs"]
    ids = [int(token.split(":")[1]) for token in answer["tokens"]]
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    ours = torch.log_softmax(logits / 0.5, dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(answer["token_logprobs"]), ours, atol=1e-3, rtol=1e-3)
