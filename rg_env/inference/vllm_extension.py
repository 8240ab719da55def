"""The workers' side of weight sync, in place of the methods of `vf-vllm`'s `WeightSyncWorkerExtension`.

The server's HTTP interface is verifiers' own. It answers before a worker has done anything, and what a worker raises is
lost in a log; so everything a trainer must know goes through the store that the trainer hosts (`weight_channel`). What
goes wrong here is told there, and ends the session, never the server.

    /init_communicator  host "rg-env://SESSION@ADDRESS": join the store, say hello
    /update_named_param name: a command as JSON, the others unused; answered under `done/NUMBER/RANK`
    /close_communicator the trainer leaves
"""

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from vllm.distributed.parallel_state import get_world_group

from rg_env.inference.vllm_plugin import SCHEME
from rg_env.inference.weight_channel import (
    PROTOCOL,
    Entry,
    Words,
    checksum,
    own_address,
    unpack,
)
from rg_env.inference.weight_transports import GlooTransport, NcclTransport, SharedMemory, Transport

JOIN_S = 20.0

_logger = logging.getLogger("vllm.rg_env")


@dataclass
class Session:
    """One trainer's connection to one worker."""

    name: str
    words: Words
    rank: int
    world_size: int
    transport: Transport | None = None
    arrived: set[str] = field(default_factory=set)
    """Names of the worker's own parameters that this trainer has written."""

    @property
    def alive(self) -> bool:
        """Whether the trainer is still there."""
        try:
            return self.words.has("trainer")
        except RuntimeError:  # the store has gone with its trainer
            return False

    def close(self) -> None:
        if self.transport is not None:
            with contextlib.suppress(Exception):
                self.transport.close()


def init_communicator(self: Any, host: str, port: int, world_size: int) -> None:
    """Join the store of a new trainer and say who is here, or that another trainer is being served."""
    if not host.startswith(SCHEME):
        raise RuntimeError("this server takes weights from rg_env's trainer only (RG_ENV_WEIGHT_SYNC=1 is set)")
    name, _, address = host.removeprefix(SCHEME).partition("@")
    rank = get_world_group().rank
    words = Words.joined(address, port, JOIN_S)
    before: Session | None = getattr(self, "_rg_env_session", None)
    if before is not None and before.alive:
        words.put(f"hello/{rank}", {"busy": before.name})
        return
    if before is not None:
        before.close()
    self._rg_env_session = Session(name, words, rank, world_size)
    words.put(f"hello/{rank}", _hello(self))


def update_named_param(self: Any, name: str, dtype: str, shape: Any) -> None:
    """Do one command of the trainer and report."""
    session: Session | None = getattr(self, "_rg_env_session", None)
    try:
        command = json.loads(name)
    except ValueError:
        command = None
    if session is None or not isinstance(command, dict) or command.get("session") != session.name:
        _logger.warning("a weight-sync command of a trainer that is not served was left aside")
        return
    try:
        report = {"connect": _connect, "load": _load, "finish": _finish}[command["do"]](self, session, command)
    except Exception as error:  # whatever vLLM's loaders raise: it is the trainer's to know, and not the server's end
        _logger.exception("weight sync failed")
        report = {"error": f"{type(error).__name__}: {error}"}
    try:
        session.words.put(f"done/{command['number']}/{session.rank}", report)
    except RuntimeError:
        _logger.warning("the trainer %s has gone without a farewell", session.name)
        close_communicator(self)


def close_communicator(self: Any) -> None:
    """Let the trainer go; the next one may come."""
    session: Session | None = getattr(self, "_rg_env_session", None)
    if session is not None:
        session.close()
        self._rg_env_session = None


def _connect(self: Any, session: Session, command: dict[str, Any]) -> dict[str, Any]:
    store = session.words.store
    if command["transport"] == "nccl":
        device = self.model_runner.device
        session.transport = NcclTransport(store, session.name, session.rank, session.world_size, device)
    elif command["transport"] == "shm":
        session.transport = SharedMemory(command["path"])
    else:
        address = own_address(session.words.host)
        session.transport = GlooTransport(
            store, session.name, session.rank, session.world_size, address, command["timeout_s"]
        )
    return {}


def _load(self: Any, session: Session, command: dict[str, Any]) -> dict[str, Any]:
    assert session.transport is not None, "a bucket before connect"
    entries = [Entry(name, dtype, tuple(shape)) for name, dtype, shape in command["entries"]]
    flat = session.transport.buffer(sum(entry.num_bytes for entry in entries))
    session.transport.broadcast(flat)
    if checksum(flat) != command["checksum"]:
        raise RuntimeError(f"{entries[0].name} … {entries[-1].name} did not arrive as they were sent (checksum)")
    runner = self.model_runner
    session.arrived |= load_tensors(runner.model, [(name, t.to(runner.device)) for name, t in unpack(entries, flat)])
    return {}


def _finish(self: Any, session: Session, command: dict[str, Any]) -> dict[str, Any]:
    """After the last bucket of a whole model: which of the worker's parameters none of them has written?"""
    arrived, session.arrived = session.arrived, set()
    return {"missing": unwritten(self.model_runner.model, arrived) if command["complete"] else []}


def load_tensors(model: Any, tensors: Sequence[tuple[str, torch.Tensor]]) -> set[str]:
    """Give `model`, which is vLLM's, the trainer's tensors; the names of those of its own parameters that they fill."""
    return set(model.load_weights(weights=tensors) or ())


def unwritten(model: Any, arrived: set[str]) -> list[str]:
    """The parameters of vLLM's `model` that no tensor filled; none where it does not tell what it loads."""
    return sorted(set(dict(model.named_parameters())) - arrived) if arrived else []


def _hello(self: Any) -> dict[str, Any]:
    """What the trainer checks before it begins."""
    model = self.vllm_config.model_config
    config = model.hf_config.get_text_config()
    device = torch.device(self.model_runner.device)
    return {
        "protocol": PROTOCOL,
        "versions": {name: version(name) for name in ("rg-env", "verifiers")},
        "architectures": list(model.hf_config.architectures or ()),
        "shape": {
            name: getattr(config, name, None)
            for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        },
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": model.quantization,
        "logprobs_mode": str(getattr(model, "logprobs_mode", "raw_logprobs")),
        "device": str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type,
    }
