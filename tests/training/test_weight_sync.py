"""Weight sync by vLLM's routes with a stand-in for the server, which has a real model. A real vLLM: `tests/stack`."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from weight_server import StandIn

from rg_env.errors import MissingExtraError, ServerError, TrainingError
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.strategy import DataParallel
from rg_env.training.weight_sync.transfer import WeightSync

PROOF = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46]


@pytest.fixture
def stand_in() -> Iterator[Callable[..., StandIn]]:
    with ExitStack() as running:
        yield lambda **otherwise: running.enter_context(StandIn(**otherwise))


@pytest.fixture
def sync_to(model: Any) -> Iterator[Callable[..., WeightSync]]:
    opened = []

    def make(server: StandIn, **options: Any) -> WeightSync:
        info = server.server.info()
        fixed = {
            "info": info,
            "proof": PROOF,
            "strategy": DataParallel(Accelerator(cpu=True), GRPOConfig()),
            "timeout_s": 5.0,
        }
        opened.append(WeightSync(Accelerator(cpu=True), server.server, model, **{**fixed, **options}))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def change(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def test_the_server_has_the_weights_of_each_step(stand_in: Any, sync_to: Any, model: Any) -> None:
    """To the bit, whatever was cached before; and memory is left to nobody."""
    server = stand_in()
    sync = sync_to(server)
    for _ in range(3):
        change(model)
        sync.run()
        theirs = server.model.state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items())
        assert sync.difference == pytest.approx(0, abs=1e-6)
        assert server.asked[-2:] == ["/reset_prefix_cache", "/v1/completions"]
    assert sync.count == 3
    assert not list(Path("/dev/shm").glob(f"rg-env-*-{os.getpid()}-*"))


def test_buckets_share_two_places(stand_in: Any, sync_to: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than places: none is overwritten before it is loaded."""
    monkeypatch.setattr("rg_env.training.weight_sync.transfer.BUCKET_BYTES", 100_000)
    server = stand_in()
    change(model)
    sync_to(server).run()
    assert server.asked.count("/update_weights") > 5
    theirs = server.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("lost", ["lm_head.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.weight"])
def test_a_tensor_that_did_not_arrive_stops_the_run(stand_in: Any, sync_to: Any, model: Any, lost: str) -> None:
    server = stand_in()
    server.model.lm_head.weight = torch.nn.Parameter(server.model.lm_head.weight.detach().clone())
    server.lost = {lost}
    sync = sync_to(server, tolerance=1e-4)
    sync.run()
    change(model)
    with pytest.raises(TrainingError, match="its weights are not those that were sent"):
        sync.run()


@pytest.mark.parametrize("path", ["/start_weight_update", "/update_weights", "/finish_weight_update"])
def test_a_server_that_fails_ends_the_run(stand_in: Any, sync_to: Any, path: str) -> None:
    server = stand_in()
    sync = sync_to(server)
    sync.run()
    server.fails_at = path
    with pytest.raises(TrainingError, match=f"the weights did not arrive at the vLLM server .*{path}") as caught:
        sync.run()
    assert "\n" not in str(caught.value)


def test_a_server_that_hangs_ends_the_run(stand_in: Any, sync_to: Any) -> None:
    """Within `weight_sync_timeout`."""
    server = stand_in()
    sync = sync_to(server, timeout_s=1.0)
    sync.run()
    server.waits_at = "/update_weights"
    start = time.monotonic()
    with pytest.raises(TrainingError, match="did not answer /update_weights within 1 s"):
        sync.run()
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("otherwise", "told"),
    [
        ({"version": "0.31.9"}, "is vLLM 0.31.9: 0.32 or later is needed"),
        ({"lacks": ["/get_world_size"]}, "takes no weights: start it with `rg-env vllm MODEL --host"),
        ({"processed": False}, "does not report the log-probabilities that it samples from.*processed_logprobs"),
        ({"quantization": "awq"}, "serves quantized weights .awq., which cannot be updated"),
        ({"shape": {"hidden_size": 1}}, "serves another model: its hidden_size is 1, the trainer's 128"),
        ({"refuses": "Weight transfer not configured"}, "Weight transfer not configured"),
    ],
)
def test_a_server_that_cannot_take_weights_is_refused(
    stand_in: Any, sync_to: Any, otherwise: dict[str, Any], told: str
) -> None:
    """In one line, with how to start it."""
    with pytest.raises(ServerError, match=told) as caught:
        sync_to(stand_in(**otherwise))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_nccl_needs_vllm_next_to_the_trainer(stand_in: Any, sync_to: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with that backend says no to memory, at once."""
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    server = stand_in(refuses="Invalid init_info for NCCLWeightTransferEngine: unexpected keyword argument 'path'")
    with pytest.raises(MissingExtraError, match="NCCL needs vLLM next to the trainer"):
        sync_to(server)


def test_a_server_has_one_trainer_at_a_time(stand_in: Any, sync_to: Any) -> None:
    """The second is told who has it; when the first is gone it gets it."""
    server = stand_in()
    first = sync_to(server)
    with pytest.raises(ServerError, match=rf"serves another trainer \(process {os.getpid()}\): wait for it"):
        sync_to(server)
    first.close()
    sync_to(server).run()
