"""The engine for a vLLM server, with a stand-in that runs a real model: weight updates, and what the engine refuses,
retries and gives up on. `tests/stack` tests a real vLLM."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from weight_server import StandIn

from rg_env.errors import MissingExtraError, ServerError, TrainingError
from rg_env.inference.protocol import Sampling
from rg_env.training import EngineConfig, GRPOConfig
from rg_env.training.strategy import DataParallel
from rg_env.training.vllm_engine import RETRIES, Vllm

COMPLETIONS = "/v1/completions"


@pytest.fixture
def stand_in() -> Iterator[Callable[..., StandIn]]:
    with ExitStack() as running:
        yield lambda **otherwise: running.enter_context(StandIn(**otherwise))


@pytest.fixture
def server(stand_in: Callable[..., StandIn]) -> StandIn:
    return stand_in()


@pytest.fixture
def connect(model: Any, tokenizer: Any) -> Iterator[Callable[..., Vllm]]:
    made: list[tuple[StandIn, Vllm]] = []

    def make(server: StandIn, longest: int = 100, **config: Any) -> Vllm:
        cpu = Accelerator(cpu=True)
        engine = EngineConfig(kind="vllm", port=server.port, **config)
        proof = tokenizer("3 + 4 = 7 legs, 2 bees and 1 ant")["input_ids"]
        prompt = {"messages": "", "proof": proof, "longest": longest}
        vllm = Vllm(cpu, model, tokenizer, engine, strategy=DataParallel(cpu, GRPOConfig()), **prompt)
        vllm.health_every_s, vllm.pause_s = 0.05, 0.01
        made.append((server, vllm))
        return vllm

    yield make
    for server, engine in made:
        server.fails_at = server.waits_at = ""
        engine.close()


def change(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def difference(engine: Vllm) -> float:
    return engine.metrics()["weight_sync/logprob_difference"]


# --- weights


def test_the_server_has_the_weights_of_each_step(connect: Any, server: StandIn, model: Any) -> None:
    """The weights are bit-identical, earlier cache entries are dropped, and no shared memory is left behind."""
    engine = connect(server)
    for _ in range(3):
        change(model)
        engine.sync()
        theirs = server.model.state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items())
        assert difference(engine) < 1e-5
        assert server.paths[-2:] == ["/reset_prefix_cache", COMPLETIONS]
    assert not list(Path("/dev/shm").glob(f"rg-env-*-{os.getpid()}-*"))


def test_buckets_share_two_slots(connect: Any, server: StandIn, model: Any) -> None:
    """With more buckets than slots, no bucket is overwritten before it is loaded."""
    change(model)
    engine = connect(server)
    engine.weights.bucket_bytes = 100_000
    engine.sync()
    assert server.paths.count("/update_weights") > 5
    theirs = server.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("lost", ["lm_head.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.weight"])
def test_a_tensor_that_did_not_arrive_ends_the_run(connect: Any, server: StandIn, model: Any, lost: str) -> None:
    server.model.lm_head.weight = torch.nn.Parameter(server.model.lm_head.weight.detach().clone())
    server.lost = {lost}
    engine = connect(server)
    engine.sync()
    with torch.no_grad():
        model.get_parameter(lost).mul_(3)
    with pytest.raises(TrainingError, match="does not use the trained weights: log-probabilities of a prompt"):
        engine.sync()


@pytest.mark.parametrize("path", ["/start_weight_update", "/update_weights", "/finish_weight_update"])
def test_a_server_that_fails_ends_the_run(connect: Any, server: StandIn, path: str) -> None:
    engine = connect(server)
    engine.sync()
    server.fails_at = path
    with pytest.raises(TrainingError, match=f"the weights did not arrive at the vLLM server .*{path}") as caught:
        engine.sync()
    assert "\n" not in str(caught.value)


def test_a_server_that_hangs_ends_the_run(connect: Any, server: StandIn) -> None:
    """The run ends once `weight_sync_timeout` has passed."""
    engine = connect(server, weight_sync_timeout=1.0)
    engine.sync()
    server.waits_at, start = "/update_weights", time.monotonic()
    with pytest.raises(TrainingError, match="did not answer /update_weights within 1 s"):
        engine.sync()
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("otherwise", "words"),
    [
        ({"version": "0.31.9"}, "runs vLLM 0.31.9, but 0.32 or later is required"),
        ({"lacks": ["/get_world_size"]}, "does not accept weights: start it with `.*rg-env vllm MODEL --host"),
        ({"processed": False}, "report log-probabilities of the distribution that it samples from.*processed_logprobs"),
        ({"quantization": "awq"}, "serves quantized weights .awq., which cannot be updated"),
        ({"shape": {"hidden_size": 1}}, "serves another model: its hidden_size is 1, but the trainer's is 128"),
        ({"refuses": "Weight transfer not configured"}, "Weight transfer not configured"),
    ],
)
def test_a_server_that_cannot_take_weights_is_refused(
    connect: Any, stand_in: Any, otherwise: dict[str, Any], words: str
) -> None:
    """The error is one line with exit code 2."""
    with pytest.raises(ServerError, match=words) as caught:
        connect(stand_in(**otherwise))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_nccl_needs_vllm_next_to_the_trainer(connect: Any, stand_in: Any) -> None:
    """A server with the NCCL backend refuses shared memory at once."""
    server = stand_in(refuses="Invalid init_info for NCCLWeightTransferEngine: unexpected keyword argument 'path'")
    with pytest.raises(MissingExtraError, match="NCCL needs vLLM in the trainer's environment"):
        connect(server)


def test_a_server_has_one_trainer_at_a_time(connect: Any, server: StandIn) -> None:
    """The error names the first trainer. Once that trainer has disconnected, another one can connect."""
    first = connect(server)
    with pytest.raises(ServerError, match=rf"serves another trainer \(process {os.getpid()}\): wait for that trainer"):
        connect(server)
    first.close()
    connect(server).sync()


# --- completions


def test_a_server_with_too_small_a_context_is_refused(connect: Any, server: StandIn) -> None:
    with pytest.raises(ServerError, match=r"at most 512 tokens .* needs 513: start the server with --max-model-len"):
        connect(server, longest=513)


def test_completions_that_never_come_are_an_error(connect: Any, server: StandIn) -> None:
    """The error names the setting, and the pending request does not keep the process from exiting."""
    engine = connect(server, generation_timeout=0.3)
    server.waits_at = COMPLETIONS
    with pytest.raises(TrainingError, match=r"no completions within 0\.3 s.*engine\.generation_timeout"):
        engine.generate([[1]], Sampling())
    waiting = [thread for thread in threading.enumerate() if thread.name == "rg-env-vllm"]
    assert waiting
    assert all(thread.daemon for thread in waiting)


def test_an_unhealthy_server_ends_the_wait(connect: Any, server: StandIn) -> None:
    """The error is raised long before the batch's timeout."""
    engine, start = connect(server), time.monotonic()
    engine.sick_s = 0.2
    server.waits_at, server.fails_at = COMPLETIONS, "/health"
    with pytest.raises(TrainingError, match=r"unhealthy for 0\.2 s during generation: /health returns status 500"):
        engine.generate([[1]], Sampling())
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(("status", "attempts"), [(503, RETRIES + 1), (400, 1)])
def test_a_failed_request_is_retried_unless_it_is_refused(
    connect: Any, server: StandIn, status: int, attempts: int
) -> None:
    """A rejected request is not retried, because it would be rejected again."""
    engine = connect(server)
    server.fails_at, server.status = COMPLETIONS, status
    before = server.paths.count(COMPLETIONS)
    with pytest.raises(TrainingError, match=f"sampling failed after {attempts} attempts?: .* returns {status}"):
        engine.generate([[1]], Sampling())
    assert server.paths.count(COMPLETIONS) - before == attempts


def test_a_retry_can_succeed(connect: Any, server: StandIn) -> None:
    engine = connect(server)
    server.fails_at, server.failures = COMPLETIONS, 2
    (completion,) = engine.generate([[3, 4]], Sampling(max_tokens=1))
    assert (completion.token_ids, completion.finish_reason) == ([5], "length")


@pytest.mark.parametrize("difference", [0.02, float("nan")])
def test_rollouts_of_other_weights_end_the_run(connect: Any, server: StandIn, difference: float) -> None:
    """A large or undefined difference between the log-probabilities of sampling and training means that the weights
    differ."""
    engine = connect(server)
    engine.check_parity(0.005)
    with pytest.raises(TrainingError, match=r"does not use the trained weights: .* differ by (0.02|nan) on average"):
        engine.check_parity(difference)


@pytest.mark.parametrize(("top_p", "ahead", "checked"), [(1.0, 0, True), (0.9, 0, False), (1.0, 1, False)])
def test_parity_is_checked_where_it_is_expected(make_trainer: Any, top_p: float, ahead: int, checked: bool) -> None:
    """The check is skipped for truncated distributions and for rollouts from older weights."""
    trainer = make_trainer(max_steps=1, max_tokens=4, top_p=top_p)
    trainer.engine_config = EngineConfig(kind="vllm", num_batches_ahead=ahead)
    seen: list[float] = []
    trainer.engine.check_parity = seen.append
    trainer.train()
    assert bool(seen) is checked
    assert all(value < 1e-4 for value in seen)
    assert "sampling/logp_difference" in trainer.state.log_history[-1]
