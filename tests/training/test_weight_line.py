"""A trainer's line to a server, where the server is not what it should be. Real ones: `tests/stack`."""

import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from rg_env.errors import InputError, MissingExtraError, ServerError, TrainingError
from rg_env.inference import weight_transports
from rg_env.inference.protocol import Sampling
from rg_env.inference.vllm import VllmServer
from rg_env.inference.weight_channel import PROTOCOL, Words, checksum, pack, unpack
from rg_env.inference.weight_transports import MEMORY, GlooTransport, SharedMemory
from rg_env.training.engines import check_sampler_logprobs
from rg_env.training.weight_line import WeightLine

CPU = torch.device("cpu")


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


HELLO = {
    "protocol": PROTOCOL,
    "versions": {},
    "shape": {"vocab_size": 10},
    "dtype": "float32",
    "quantization": None,
    "logprobs_mode": "raw_logprobs",
    "device": "cpu",
}


@pytest.fixture
def asked() -> list[str]:
    """The paths that servers of `make_server` were asked for."""
    return []


@pytest.fixture
def make_server(asked: list[str]) -> Iterator[Callable[..., VllmServer]]:
    """A server whose worker is `work(store, command)`, called for each; `hello` is what it says first."""
    servers = []

    def make(hello: dict[str, Any] | None, work: Callable[[Words, dict[str, Any]], Any] | None = None) -> VllmServer:
        words: list[Words] = []

        def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
            asked.append(path)
            if path == "/init_communicator" and hello is not None:
                words.append(Words.joined(body["host"].partition("@")[2], body["port"], 5))
                words[0].put("hello/0", hello)
            if path == "/update_named_param" and work is not None:
                threading.Thread(target=work, args=(words[0], json.loads(body["name"]))).start()
            return {"world_size": 1, "num_background_tasks": 0}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
                text = json.dumps(answer(self.path, body)).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return VllmServer("127.0.0.1", server.server_port)

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def refused(server: VllmServer, shape: dict[str, int | None] | None = None) -> str:
    line = WeightLine(server, timeout_s=1)
    start = time.monotonic()
    with pytest.raises(ServerError) as caught:
        line.connect(CPU, shape or {})
    line.close()
    assert time.monotonic() - start < 10
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_server_without_the_plugin(make_server: Any) -> None:
    """Is told with the command that starts one with it, and long before any deadline."""
    message = refused(make_server(None))
    assert "runs without rg_env's weight sync" in message
    assert "RG_ENV_WEIGHT_SYNC=1 vf-vllm" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"busy": "host-1-abc"}, "serves another trainer (host-1-abc)"),
        ({"versions": {"verifiers": "0.1.5"}}, "has verifiers 0.1.5, the trainer 0.1.6"),
        ({"versions": {"rg-env": "9.9"}, "protocol": PROTOCOL + 1}, "has rg-env 9.9"),
        ({"shape": {"vocab_size": 11}}, "serves another model: its vocab_size is 11, the trainer's 10"),
        ({"quantization": "fp8"}, "quantized weights (fp8)"),
    ],
)
def test_servers_that_do_not_fit(make_server: Any, change: dict[str, Any], words: str) -> None:
    assert words in refused(make_server({**HELLO, **change}), {"vocab_size": 10})


@pytest.mark.parametrize(("change", "left"), [({"busy": "host-1-abc"}, False), ({"quantization": "fp8"}, True)])
def test_a_farewell_ends_no_session_but_the_trainers_own(
    make_server: Any, asked: list[str], change: dict[str, Any], left: bool
) -> None:
    """It names nobody: said by a trainer that was refused, it would end that of the trainer being served."""
    refused(make_server({**HELLO, **change}))
    assert ("/close_communicator" in asked) == left


def test_a_worker_that_never_answers(make_server: Any) -> None:
    """It said hello, and died."""
    line = WeightLine(make_server(HELLO), timeout_s=1, transport="gloo")
    with pytest.raises(ServerError, match="no gloo connection to the server"):
        line.connect(CPU, {})
    line.close()


def test_a_worker_that_dies_in_the_middle(make_server: Any) -> None:
    """Connected, and then silent: the run ends within the deadline, and says what it waited for."""

    def work(words: Words, command: dict[str, Any]) -> None:
        if command["do"] == "connect":
            transports.append(GlooTransport(words.store, command["session"], 0, 2, "127.0.0.1", 5))
            words.put(f"done/{command['number']}/0", {})

    transports: list[GlooTransport] = []
    line = WeightLine(make_server(HELLO, work), timeout_s=1, transport="gloo")
    line.connect(CPU, {})
    start = time.monotonic()
    with pytest.raises(TrainingError, match="the weights did not arrive at the vf-vllm server"):  # noqa: PT012
        line.send([("a", torch.ones(3))])  # may be through, where the system takes it into its own buffers
        line.finish(complete=True)
    assert time.monotonic() - start < 10
    line.close()


def test_a_worker_that_reports_an_error(make_server: Any) -> None:
    """Is quoted; `tests/stack` has the errors of real ones."""

    def work(words: Words, command: dict[str, Any]) -> None:
        if command["do"] == "connect":
            transports.append(GlooTransport(words.store, command["session"], 0, 2, "127.0.0.1", 5))
        if command["do"] == "load":
            transports[0].broadcast(torch.empty(16, dtype=torch.uint8))
            words.put(f"done/{command['number']}/0", {"error": "KeyError: 'a'"})
            return
        words.put(f"done/{command['number']}/0", {})

    transports: list[GlooTransport] = []
    line = WeightLine(make_server(HELLO, work), timeout_s=5, transport="gloo")
    line.connect(CPU, {})
    line.send([("a", torch.ones(3))])
    with pytest.raises(TrainingError, match="KeyError: 'a'"):
        line.finish(complete=True)
    line.close()


def test_the_transport_is_named_or_refused() -> None:
    with pytest.raises(InputError, match="weight_sync_transport='smoke': one of auto, nccl, shm, gloo"):
        WeightLine(VllmServer("127.0.0.1", 1), timeout_s=1, transport="smoke")  # type: ignore[arg-type]


def test_a_bucket_is_what_was_packed() -> None:
    """Types and shapes that do not align by themselves."""
    tensors = [
        ("a", torch.randn(3, 5)),
        ("b", torch.randn(7).bfloat16()),
        ("c", torch.arange(3)),
        ("d", torch.ones(())),
    ]
    entries, flat = pack(tensors, empty)
    for (name, value), (there, view) in zip(tensors, unpack(entries, flat), strict=True):
        assert name == there
        assert torch.equal(value, view)
    before = checksum(flat)
    flat[17] ^= 1
    assert checksum(flat) != before


def test_wide_numbers_are_rounded_to_what_the_server_computes_in() -> None:
    """And narrow ones stay what they are."""
    tensors = [("wide", torch.randn(5)), ("narrow", torch.randn(5).half()), ("whole", torch.arange(5))]
    entries, flat = pack(tensors, empty, widest=torch.bfloat16)
    assert [entry.dtype for entry in entries] == ["bfloat16", "float16", "int64"]
    (_, wide), (_, narrow), _ = unpack(entries, flat)
    assert torch.equal(wide, tensors[0][1].bfloat16())
    assert torch.equal(narrow, tensors[1][1])


@pytest.mark.skipif(not MEMORY.is_dir(), reason="no memory file system here")
def test_shared_memory_takes_turns_and_leaves_nothing() -> None:
    """What one side fills the other reads, while the first fills the next."""
    path = SharedMemory.reserve(f"test-{os.getpid()}", 100)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    trainer, worker = SharedMemory(path), SharedMemory(path)
    os.unlink(path)
    first, second = trainer.buffer(64), trainer.buffer(32)
    first.fill_(1)
    second.fill_(2)
    assert worker.buffer(64).tolist() == [1] * 64
    assert worker.buffer(32).tolist() == [2] * 32
    assert trainer.buffer(64).data_ptr() == first.data_ptr()
    with pytest.raises(RuntimeError, match="a bucket of 1000000 bytes"):
        trainer.buffer(1_000_000)


def test_more_memory_than_there_is_is_not_promised() -> None:
    """Writing to it would end the process without a word."""
    with pytest.raises(OSError, match=r"No space|No such file|too large"):
        SharedMemory.reserve(f"test-{os.getpid()}", 1 << 50)
    assert not list(MEMORY.glob(f"*test-{os.getpid()}"))


@pytest.mark.parametrize("name", ["/etc/hostname", "/dev/shm/../../etc/hostname", "/dev/shm/rg-env-none", "/dev/shm"])
def test_only_memory_of_rg_env_is_mapped(name: str) -> None:
    """Whoever reaches the server's port may name any path."""
    with pytest.raises((RuntimeError, OSError)):
        SharedMemory(name)


def test_without_memory_to_share_a_socket_is_taken(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself; who asks for memory is told."""

    def work(words: Words, command: dict[str, Any]) -> None:
        asked.append(command["transport"])
        transports.append(GlooTransport(words.store, command["session"], 0, 2, "127.0.0.1", 5))
        words.put(f"done/{command['number']}/0", {})

    asked: list[str] = []
    transports: list[GlooTransport] = []
    monkeypatch.setattr(weight_transports, "MEMORY", Path("/nowhere"))
    line = WeightLine(make_server(HELLO, work), timeout_s=5)
    line.connect(CPU, {})
    assert asked == ["gloo"]
    line.close()
    line = WeightLine(make_server(HELLO), timeout_s=5, transport="shm")
    with pytest.raises(ServerError, match="no memory to share with the server"):
        line.connect(CPU, {})
    line.close()


def test_nccl_without_vllm_is_told(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install, and what works without."""
    monkeypatch.setitem(sys.modules, "vllm.distributed.device_communicators.pynccl", None)
    line = WeightLine(make_server(HELLO), timeout_s=1, transport="nccl")
    with pytest.raises(MissingExtraError, match=r"uv sync --extra vllm.*weight_sync_transport='gloo'"):
        line.connect(CPU, {})
    line.close()


@pytest.mark.parametrize(
    ("mode", "settings", "fine"),
    [
        ("processed_logprobs", {"temperature": 0.7, "top_k": 20, "top_p": 0.9}, True),
        ("raw_logprobs", {}, True),
        ("raw_logprobs", {"temperature": 0.7}, False),
        ("raw_logprobs", {"top_p": 0.9}, False),
        ("raw_logprobs", {"top_k": 20}, False),
        ("raw_logprobs", {"min_p": 0.1}, False),
        ("raw_logprobs", {"repetition_penalty": 1.1}, False),
        ("raw_logits", {}, False),
    ],
)
def test_correcting_for_the_sampler_needs_its_probabilities(mode: str, settings: dict[str, Any], fine: bool) -> None:
    """Those after temperature and truncation, or neither of these."""
    sampling = Sampling(max_tokens=16, **settings)
    if fine:
        check_sampler_logprobs(sampling, mode, "h:1")
        return
    words = r"engine\.importance_sampling_correction.*: start it with `--logprobs-mode processed_logprobs`"
    with pytest.raises(InputError, match=words):
        check_sampler_logprobs(sampling, mode, "h:1")
