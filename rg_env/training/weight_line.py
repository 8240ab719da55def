"""The trainer's side of weight sync with a `vf-vllm` server that runs rg_env's plugin. Lives in the main process only.

    line = WeightLine(server, timeout_s=60)
    line.connect(device, expected_shape)       # who is there, which transport, are they the same model
    for bucket in buckets: line.send(bucket)   # named tensors
    line.finish(complete=True)                 # raises if something did not arrive

Upstream's path sends one HTTP request, one broadcast and one barrier for each parameter, and cannot tell whether the
server took them. Here parameters travel in buckets, each with a checksum, and the workers answer through a store that
this process hosts (`inference.weight_channel`): the server needs no socket of its own, and outlives its trainer.
"""

import atexit
import contextlib
import json
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, get_args

import torch

from rg_env.errors import InputError, MissingExtraError, ServerError, TrainingError
from rg_env.inference.vllm import VllmServer, start_hint
from rg_env.inference.vllm_plugin import SCHEME
from rg_env.inference.weight_channel import (
    PROTOCOL,
    Words,
    checksum,
    own_address,
    pack,
)
from rg_env.inference.weight_transports import GlooTransport, NcclTransport, SharedMemory, Transport, TransportName
from rg_env.training.weight_sources import BUCKET_BYTES

TransportChoice = Literal["auto", "nccl", "shm", "gloo"]
HELLO_S = 30.0
"""How long the workers may take to join; a busy engine joins between two steps of its own."""
FAREWELL_S = 3.0
IN_FLIGHT = 2
"""Buckets sent and not yet answered: the next one is packed while the workers load the last."""


class WeightLine:
    """A trainer's line to the workers of one server.

    Args:
        server: where it is.
        timeout_s: deadline of each wait for the workers.
        transport: see `weight_transports`; "auto" chooses, and takes "gloo" where no memory can be shared.
    """

    def __init__(self, server: VllmServer, *, timeout_s: float, transport: TransportChoice = "auto"):
        if transport not in get_args(TransportChoice):
            raise InputError(f"weight_sync_transport={transport!r}: one of {', '.join(get_args(TransportChoice))}")
        self.server, self._timeout_s, self._choice = server, timeout_s, transport
        self._name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._words: Words | None = None
        self._transport: Transport | None = None
        self._workers = self._number = 0
        self._served = False
        self._unanswered: list[int] = []
        self.dtype = torch.float32
        """What the server computes in: nothing wider needs to travel."""
        self.logprobs_mode = ""
        """Which log-probabilities the server reports (vLLM's `--logprobs-mode`)."""

    def connect(
        self, device: torch.device, shape: Mapping[str, int | None], largest_bucket: int = BUCKET_BYTES
    ) -> None:
        """Meet the server's workers.

        Args:
            device: where the trainer's weights are.
            largest_bucket: bytes of the largest one to come.
            shape: sizes of the trainer's model, which the server's must have (`vocab_size`, `hidden_size`, …).

        Raises:
            ServerError: another trainer is being served; the server runs without the plugin, with another version, or
                with another model.
        """
        self._workers = self.server.world_size()
        here = own_address(self.server.host)
        self._words = Words.hosted(here, HELLO_S)
        self._words.put("trainer", self._name)
        body = {"host": f"{SCHEME}{self._name}@{here}", "port": self._words.port, "world_size": self._workers + 1}
        self.server.post("/init_communicator", body)
        hellos = [self._hello(rank) for rank in range(self._workers)]
        self._check(hellos[0], shape)
        self.dtype, self.logprobs_mode = getattr(torch, hellos[0]["dtype"]), hellos[0]["logprobs_mode"]
        atexit.register(self.close)
        name = self._choose(device, [hello["device"] for hello in hellos])
        if name == "shm":
            problem = self._share(largest_bucket)
            if problem is None:
                return
            if self._choice == "shm":
                raise ServerError(f"no memory to share with the server at {self.server}: {problem}")
            name = "gloo"
        self._command("connect", transport=name, timeout_s=self._timeout_s)
        try:
            self._transport = self._open(name, here, device)
        except RuntimeError as error:
            raise ServerError(f"no {name} connection to the server at {self.server}: {_reason(error)}") from error
        self._await_all()

    def _share(self, largest_bucket: int) -> str | None:
        """Map memory on both sides; why that cannot be, if it cannot: another machine or container, or too little."""
        try:
            path = SharedMemory.reserve(self._name, largest_bucket)
        except OSError as error:
            return str(error)
        try:
            self._command("connect", transport="shm", path=path)
            self._await_all()
            self._transport = SharedMemory(path)
        except TrainingError as error:
            return str(error)
        finally:
            os.unlink(path)  # both have it, or nobody wants it
        return None

    def send(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Send named tensors as one bucket. Raises `TrainingError` if the workers do not take it in time."""
        assert self._transport is not None, "send before connect"
        try:
            entries, flat = pack(tensors, self._transport.buffer, widest=self.dtype)
        except RuntimeError as error:
            raise self._failure(_reason(error)) from error
        listed = [(entry.name, entry.dtype, entry.shape) for entry in entries]
        self._command("load", entries=listed, checksum=checksum(flat))
        try:
            self._transport.broadcast(flat)
        except RuntimeError as error:
            raise self._failure(_reason(error)) from error
        self._await_all(but=IN_FLIGHT - 1)

    def finish(self, complete: bool) -> None:
        """Wait until all has been loaded, and forget what the server has cached of older weights.

        `complete`: every parameter was sent, so that one which none of the buckets wrote is an error.
        """
        self._command("finish", complete=complete)
        for report in self._await_all():
            if missing := report.get("missing"):
                shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
                raise TrainingError(f"the server at {self.server} has weights that the trainer does not send: {shown}")
        self.server.post("/reset_prefix_cache", timeout_s=self._timeout_s)

    def close(self) -> None:
        """Take leave, within `FAREWELL_S`. The server goes on and takes the next trainer."""
        atexit.unregister(self.close)
        self._words = None
        if self._served:  # the farewell names nobody: from a trainer that was refused, it would end another's session
            self._served = False
            with contextlib.suppress(ServerError):
                self.server.post("/close_communicator", timeout_s=FAREWELL_S)
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):
                self._transport.close()
            self._transport = None

    def _hello(self, rank: int) -> dict[str, Any]:
        assert self._words is not None
        waited = 0.0
        while True:  # in short turns: a server without the plugin has failed long before the deadline
            try:
                hello = self._words.take(f"hello/{rank}", 1.0)
                break
            except TimeoutError:
                waited += 1.0
                busy = self.server.post("/get_num_background_tasks").get("num_background_tasks")
                if waited < HELLO_S and (busy or waited < 2):
                    continue
                raise ServerError(
                    f"the server at {self.server} runs without rg_env's weight sync: start it with "
                    f"`{start_hint(port=self.server.port)}`, in an environment that has rg-env installed"
                ) from None
        if "busy" in hello:
            raise ServerError(
                f"the server at {self.server} serves another trainer ({hello['busy']}): wait for it, or start another "
                "server on another port"
            )
        self._served = True
        return dict(hello)

    def _check(self, hello: Mapping[str, Any], shape: Mapping[str, int | None]) -> None:
        ours = {name: version(name) for name in ("rg-env", "verifiers")}
        for name, theirs in hello.get("versions", {}).items():
            if theirs != ours.get(name) and (name != "rg-env" or hello.get("protocol") != PROTOCOL):
                raise ServerError(
                    f"the server at {self.server} has {name} {theirs}, the trainer {ours.get(name)}: install the same "
                    "in both environments"
                )
        for name, value in shape.items():
            theirs = hello["shape"].get(name)
            if value is not None and theirs is not None and theirs != value:
                raise ServerError(
                    f"the server at {self.server} serves another model: its {name} is {theirs}, the trainer's {value}; "
                    "start it with the model that is trained"
                )
        if hello.get("quantization"):
            raise ServerError(
                f"the server at {self.server} serves quantized weights ({hello['quantization']}), which cannot be "
                "updated: start it with the unquantized model"
            )

    def _choose(self, device: torch.device, theirs: Sequence[str]) -> TransportName:
        if self._choice != "auto":
            return self._choice
        if device.type == "cuda" and "cpu" not in theirs:
            mine = str(torch.cuda.get_device_properties(device).uuid)
            if mine not in theirs:
                return "nccl"  # which refuses two ranks on one device
        return "shm"

    def _open(self, name: TransportName, here: str, device: torch.device) -> Transport:
        assert self._words is not None
        store, rank = self._words.store, self._workers
        if name == "nccl":
            try:
                return NcclTransport(store, self._name, rank, rank + 1, device)
            except ImportError as error:
                raise MissingExtraError(
                    f"NCCL needs vLLM beside the trainer ({error}): install it with `uv sync --extra vllm`, or take "
                    "weight_sync_transport='gloo'"
                ) from error
        return GlooTransport(store, self._name, rank, rank + 1, here, self._timeout_s)

    def _command(self, do: str, **details: Any) -> None:
        self._number += 1
        self._unanswered.append(self._number)
        name = json.dumps({"do": do, "session": self._name, "number": self._number, **details})
        self.server.post("/update_named_param", {"name": name, "dtype": "", "shape": []}, self._timeout_s)

    def _await_all(self, but: int = 0) -> list[dict[str, Any]]:
        """Wait for the workers' answers to all commands `but` the last few; the answers to the last one waited for."""
        assert self._words is not None
        reports: list[dict[str, Any]] = []
        while len(self._unanswered) > but:
            number = self._unanswered.pop(0)
            try:
                reports = [self._words.take(f"done/{number}/{rank}", self._timeout_s) for rank in range(self._workers)]
            except TimeoutError as error:
                raise self._failure(f"no answer within {self._timeout_s:g} s") from error
            for report in reports:
                if "error" in report:
                    raise self._failure(report["error"])
        return reports

    def _failure(self, reason: str) -> TrainingError:
        problem = self.server.health_problem(timeout_s=5.0)
        state = f"; the server: {problem}" if problem else ""
        return TrainingError(f"the weights did not arrive at the vf-vllm server {self.server}: {reason}{state}")


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
