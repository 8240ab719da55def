"""The engine of a vLLM server, with a stand-in for the server: what it refuses, retries and gives up on."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from accelerate import Accelerator
from weight_server import StandIn

from rg_env.errors import ServerError, TrainingError
from rg_env.inference.protocol import Sampling
from rg_env.training import EngineConfig, GRPOConfig
from rg_env.training.strategy import DataParallel
from rg_env.training.vllm_engine import RETRIES, Vllm

COMPLETIONS = "/v1/completions"


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


@pytest.fixture
def connect(server: StandIn, model: Any, tokenizer: Any) -> Iterator[Callable[..., Vllm]]:
    made: list[Vllm] = []

    def make(longest: int = 100, **config: Any) -> Vllm:
        cpu = Accelerator(cpu=True)
        engine = EngineConfig(kind="vllm", port=server.port, **config)
        proof = tokenizer("3 + 4 =")["input_ids"]
        prompt = {"messages": "3 + 4 =", "proof": proof, "longest": longest}
        made.append(Vllm(cpu, model, tokenizer, engine, strategy=DataParallel(cpu, GRPOConfig()), **prompt))
        made[-1].health_every_s, made[-1].pause_s = 0.05, 0.01
        return made[-1]

    yield make
    server.fails_at = server.waits_at = ""
    for engine in made:
        engine.close()


def test_completions_have_tokens_and_log_probabilities(connect: Any) -> None:
    """After the weights are in place."""
    engine = connect()
    engine.sync()
    (completion,) = engine.generate([[3, 4]], Sampling(max_tokens=1))
    assert (completion.token_ids, completion.finish_reason) == ([5], "length")
    assert engine.metrics()["weight_sync/logprob_difference"] < 1e-5


def test_a_server_with_too_small_a_context_is_refused(connect: Any) -> None:
    with pytest.raises(
        ServerError, match=r"takes 512 tokens, .* this run needs 513: start it with --max-model-len 513"
    ):
        connect(longest=513)


def test_completions_that_never_come_are_an_error(connect: Any, server: StandIn) -> None:
    """The message names the setting; and the request does not keep the process from ending, after Ctrl-C say."""
    engine = connect(generation_timeout=0.3)
    server.waits_at = COMPLETIONS
    with pytest.raises(TrainingError, match=r"no completions within 0\.3 s.*engine\.generation_timeout"):
        engine.generate([[1]], Sampling())
    waiting = [thread for thread in threading.enumerate() if thread.name == "rg-env-vllm"]
    assert all(thread.daemon for thread in waiting)


def test_an_unhealthy_server_ends_the_wait(connect: Any, server: StandIn) -> None:
    """Long before the deadline of a batch."""
    engine, start = connect(), time.monotonic()
    engine.sick_s = 0.2
    server.waits_at, server.fails_at = COMPLETIONS, "/health"
    with pytest.raises(TrainingError, match=r"no completions will arrive: .* answers /health with 500, for 0\.2 s"):
        engine.generate([[1]], Sampling())
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(("status", "attempts"), [(503, RETRIES + 1), (400, 1)])
def test_a_failed_request_is_retried_unless_it_is_refused(
    connect: Any, server: StandIn, status: int, attempts: int
) -> None:
    """A server that refuses a request would refuse it again."""
    engine = connect()
    server.fails_at, server.status = COMPLETIONS, status
    before = server.asked.count(COMPLETIONS)
    with pytest.raises(TrainingError, match=f"sampling failed after {attempts} attempts: .* returns {status}"):
        engine.generate([[1]], Sampling())
    assert server.asked.count(COMPLETIONS) - before == attempts


def test_a_retry_can_succeed(connect: Any, server: StandIn) -> None:
    engine = connect()
    server.fails_at, server.failures = COMPLETIONS, 2
    assert engine.generate([[1]], Sampling(max_tokens=1))[0].token_ids == [5]


@pytest.mark.parametrize("difference", [0.02, float("nan")])
def test_rollouts_of_other_weights_end_the_run(connect: Any, difference: float) -> None:
    """Weights that arrived wrong show in the log-probabilities of what is sampled from them."""
    engine = connect()
    engine.check_parity(0.005)
    with pytest.raises(
        TrainingError, match=r"does not sample from what is trained: .* differ by (0.02|nan) on average"
    ):
        engine.check_parity(difference)


@pytest.mark.parametrize(("top_p", "ahead", "checked"), [(1.0, 0, True), (0.9, 0, False), (1.0, 1, False)])
def test_parity_is_checked_where_it_must_hold(make_trainer: Any, top_p: float, ahead: int, checked: bool) -> None:
    """After each step; not of a truncated distribution, nor of rollouts from older weights."""
    trainer = make_trainer(max_steps=1, max_tokens=4, top_p=top_p)
    trainer.engine_config = EngineConfig(kind="vllm", num_batches_ahead=ahead)
    seen: list[float] = []
    trainer.engine.check_parity = seen.append
    trainer.train()
    assert bool(seen) is checked
    assert all(value < 1e-4 for value in seen)
    assert "sampling/logp_difference" in trainer.state.log_history[-1]
