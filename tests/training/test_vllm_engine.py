"""The engine for a vLLM server, with a stand-in that runs a real model: weight updates, and what the engine refuses,
retries and gives up on. `tests/stack` tests a real vLLM."""

import ctypes
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from interrupts import ctrl_c
from weight_server import StandIn

from rg_env.errors import MissingExtraError, ServerError, TrainingError
from rg_env.inference.protocol import PromptEncoder, Sampling
from rg_env.training import EngineConfig, EvaluationPlan, GRPOConfig, vllm_engine, weight_sync
from rg_env.training.evaluation import FixedEvaluation
from rg_env.training.rollouts import RolloutSampler
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
        assert server.paths[-3:] == ["/reset_prefix_cache", "/collective_rpc", COMPLETIONS]
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


def update(model: Any, rate: float = 1e-6) -> None:
    """Change every weight by `rate`, like a step of Adam."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rate * torch.randn_like(parameter).sign())


NORM, QUERY, HEAD = "model.norm.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"


@pytest.mark.parametrize("honest", [0, 3])
@pytest.mark.parametrize("stored", ["plain", "packed", "rearranged"])
@pytest.mark.parametrize("lost", ["", HEAD, NORM, QUERY])
def test_weights_that_stay_behind_end_the_run(
    connect: Any, server: StandIn, model: Any, lost: str, stored: str, honest: int
) -> None:
    """At a learning rate of 1e-6, log-probabilities would not reveal this for a hundred updates, but the first update
    after `honest` ones does, however the server stores the tensors."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    server.model.lm_head.weight = torch.nn.Parameter(server.model.lm_head.weight.detach().clone())
    server.packed = {name for name in names if "proj" in name or name == HEAD} if stored == "packed" else set()
    server.rearranged = names if stored == "rearranged" else set()
    engine = connect(server)
    for _ in range(honest + 1):
        engine.sync()
        update(model)
    server.lost = {lost} if lost else names
    with pytest.raises(TrainingError, match=r"does not use the trained weights: after .*, \d+ of 39 tensors") as caught:
        engine.sync()
    assert not lost or f"1 of 39 tensors differ from the trainer's: {lost}" in str(caught.value)
    assert difference(engine) < 1e-5


def test_honest_updates_raise_no_alarm(connect: Any, server: StandIn, model: Any, capsys: Any) -> None:
    """The server may pack, rearrange and hide tensors. Those that cannot be compared exactly are counted, and mentioned
    once."""
    server.packed, server.rearranged, server.unreadable = {QUERY}, {NORM}, {"model.layers.1.mlp.up_proj.weight"}
    engine = connect(server)
    for _ in range(20):
        update(model)
        engine.sync()
        assert engine.metrics()["weight_sync/unproven_tensors"] == 2
    warning, first = f"warning: 2 of 39 tensors on the server at {engine.server} cannot be compared", "layers.1.mlp.up"
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(warning)]
    assert len(lines) == 1
    assert f"starting with model.{first}_proj.weight (no): " in lines[0]


def test_a_tensor_that_cannot_be_read_back_is_checked_by_its_effect(connect: Any, server: StandIn, model: Any) -> None:
    """Log-probabilities reveal large differences."""
    server.lost = server.unreadable = {QUERY}
    engine = connect(server)
    engine.sync()
    with torch.no_grad():
        model.get_parameter(QUERY).mul_(3)
    with pytest.raises(TrainingError, match="does not use the trained weights: log-probabilities of a prompt"):
        engine.sync()


def test_tensors_are_sent_in_the_type_that_the_server_holds(connect: Any, stand_in: Any, model: Any) -> None:
    """Each tensor is rounded once, and the server's copy has the same bits."""
    server = stand_in(dtype="bfloat16")
    engine = connect(server)
    update(model, 1e-3)
    engine.sync()
    assert {each.dtype for each in engine.weights.metadata()} == {torch.bfloat16}
    theirs = server.model.state_dict()
    assert all(torch.equal(value.bfloat16(), theirs[name]) for name, value in model.state_dict().items())


def test_gradients_stay_on_while_weights_are_sent(connect: Any, server: StandIn) -> None:
    """A consumer that stops in the middle does not leave gradients off in the trainer's thread."""
    weights = connect(server).weights
    next(weights.buckets())
    assert torch.is_grad_enabled()


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
    assert time.monotonic() - start < 50


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
    with pytest.raises(MissingExtraError, match="NCCL needs vLLM in the trainer's environment"):
        connect(stand_in(backend="nccl"))


class Nccl:
    """Stand-in for vLLM's `nccl_engine` on the trainer's side.

    Attributes:
        broadcast: called with each tensor.
        sent: data types of the tensors sent so far, by name.
    """

    def __init__(self, broadcast: Callable[[], Any] = lambda: None) -> None:
        self.broadcast, self.sent, self.is_shut = broadcast, dict[str, torch.dtype](), threading.Event()
        self.NCCLTrainerInitInfo, self.NCCLTrainerWeightTransferEngine = dict, self

    def trainer_init(self, init: Any, *, client: Any, source: Any) -> "Nccl":
        self.client, self.source = client, source
        return self

    def send_weights(self) -> None:
        for (name, tensor), meta in zip(self.source, self.source.metadata(), strict=True):
            assert (name, tensor.dtype, tuple(tensor.shape)) == (meta.name, meta.dtype, meta.shape)
            self.sent[name] = tensor.dtype
            self.broadcast()

    def shutdown(self) -> None:
        self.is_shut.set()


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Nccl]:
    def make(*args: Any) -> Nccl:
        engine = Nccl(*args)
        for name in ("vllm", "vllm.distributed"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        transfer: Any = ModuleType("vllm.distributed.weight_transfer")
        transfer.nccl_engine = engine
        monkeypatch.setitem(sys.modules, transfer.__name__, transfer)
        return engine

    return make


def test_a_server_between_gpus_needs_no_shared_memory(
    connect: Any, stand_in: Any, nccl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is asked for its backend first, because a container's shared memory is often too small for a bucket.
    Tensors are sent in the server's data type."""

    def reserve(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weight_sync, "reserve", reserve)
    sender = nccl()
    server = stand_in(backend="nccl", dtype="bfloat16")
    connect(server).sync()
    assert sender.sent.keys() == dict(server.model.named_parameters(remove_duplicate=False)).keys()
    assert set(sender.sent.values()) == {torch.bfloat16}
    assert "/init_weight_transfer_engine" not in server.paths


@pytest.fixture
def stuck() -> Iterator[Callable[[], Any]]:
    """Yield a function that blocks its thread until the end of the test. Signals do not interrupt it, like waiting for
    a broadcast on a GPU."""
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    library.pthread_mutex_lock(mutex)
    yield lambda: library.pthread_mutex_lock(mutex)
    library.pthread_mutex_unlock(mutex)


def test_a_broadcast_that_never_ends_ends_the_run(
    connect: Any, stand_in: Any, nccl: Any, stuck: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL waits forever for a server that died. The error is one line, and the communicator is destroyed."""
    monkeypatch.setattr(vllm_engine, "GRACE_S", 0.1)
    sender = nccl(stuck)
    engine, start = connect(stand_in(backend="nccl"), weight_sync_timeout=0.5), time.monotonic()
    with pytest.raises(TrainingError, match=r"did not arrive at .*: the transfer stopped for 0\.5 s") as caught:
        engine.sync()
    assert time.monotonic() - start < 50
    assert "\n" not in str(caught.value)
    assert sender.is_shut.is_set()


def test_ctrl_c_ends_a_broadcast_that_never_ends(connect: Any, stand_in: Any, nccl: Any, stuck: Any) -> None:
    nccl(stuck)
    engine = connect(stand_in(backend="nccl"))
    threading.Timer(0.3, ctrl_c).start()
    with pytest.raises(KeyboardInterrupt):
        engine.sync()


def test_a_server_with_another_backend_is_refused(connect: Any, stand_in: Any) -> None:
    with pytest.raises(ServerError, match="with the backend ipc, but only nccl and rg_env_shm are supported: start"):
        connect(stand_in(backend="ipc"))


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


def test_all_sampling_settings_are_sent(connect: Any, server: StandIn) -> None:
    """No default of the server or of the model's generation config applies, as in evaluations and probes (see
    `test_each_model_has_a_gpu_and_its_own_arguments`)."""
    connect(server).generate([[3]], Sampling(0.5, max_tokens=7))
    fields = {name: server.bodies[-1][name] for name in server.bodies[-1] if hasattr(Sampling, name)}
    assert fields == {"temperature": 0.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
                      "presence_penalty": 0.0, "frequency_penalty": 0.0, "max_tokens": 7, "stop": []}  # fmt: skip


def test_completions_that_never_come_are_an_error(connect: Any, server: StandIn) -> None:
    """The error names the setting, and the pending request does not keep the process from exiting."""
    engine = connect(server, generation_timeout=0.3)
    server.waits_at = COMPLETIONS
    with pytest.raises(TrainingError, match=r"no completions within 0\.3 s.*engine\.generation_timeout"):
        engine.generate([[1]], Sampling())
    waiting = [thread for thread in threading.enumerate() if thread.name == "rg-env-vllm"]
    assert waiting
    assert all(thread.daemon for thread in waiting)


def test_a_batch_ahead_is_canceled(connect: Any, server: StandIn, tokenizer: Any, make_env: Any) -> None:
    """When a run ends, it does not wait for the batch that the server generates in advance, and the server ends its
    requests."""
    engine, env = connect(server), make_env()
    sampler = RolloutSampler(env, engine, PromptEncoder(tokenizer))
    before, server.waits_at = server.paths.count(COMPLETIONS), COMPLETIONS
    for number in range(2):
        sampler.submit(number, env.train_rows[:2], Sampling())
    while server.paths.count(COMPLETIONS) == before:
        time.sleep(0.01)
    start = time.monotonic()
    engine.cancel()
    sampler.stop()
    assert server.aborted.is_set()
    engine.resume()
    executor = ThreadPoolExecutor(1)  # like the interpreter, which waits for all executors before it exits
    executor.submit(sampler._ahead.shutdown).result(50)
    assert time.monotonic() - start < 50
    server.go.set()
    assert engine.generate([[3]], Sampling(max_tokens=1))


def test_an_unhealthy_server_ends_the_wait(connect: Any, server: StandIn) -> None:
    """The error is raised long before the batch's timeout."""
    engine, start = connect(server), time.monotonic()
    engine.sick_s = 0.2
    server.waits_at, server.fails_at = COMPLETIONS, "/health"
    with pytest.raises(TrainingError, match=r"unhealthy for 0\.2 s during generation: /health returns status 500"):
        engine.generate([[1]], Sampling())
    assert time.monotonic() - start < 50


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
    assert ("sampling/logp_difference" in trainer.state.log_history[-1]) is (top_p == 1)


class Counting(StandIn):
    """Stand-in that answers each prompt of a request, and records the numbers of prompts."""

    def __init__(self, tokenizer: Any) -> None:
        self.sizes: list[int] = []
        self._tokenizer = tokenizer
        super().__init__()

    def _answer_to(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/tokenize":
            ids = self._tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=False)
            return {"tokens": ids}
        answer = super()._answer_to(path, body)
        if path == COMPLETIONS and "prompt_logprobs" not in body:
            self.sizes.append(len(body["prompt"]))
            return {"choices": [{**answer["choices"][0], "index": number} for number in range(self.sizes[-1])]}
        return answer


def test_an_evaluation_sends_no_more_than_a_training_batch_at_once(make_trainer: Any, tokenizer: Any) -> None:
    """A larger request could exceed `generation_timeout` and end the run."""
    with Counting(tokenizer) as server:
        trainer = make_trainer(engine=EngineConfig(kind="vllm", port=server.port), rollouts_per_step=16)
        server.sizes.clear()
        FixedEvaluation(trainer, EvaluationPlan(rollouts_per_example=5, greedy=False)).run(0)
        trainer.engine.close()
    assert server.sizes == [16, 16, 8]
