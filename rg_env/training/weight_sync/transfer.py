"""Transfer of a model's weights to a vLLM server by vLLM's own routes, with the server's backend: `nccl` between GPUs,
`rg_env_shm` through shared memory.

All processes of the trainer gather sharded weights together (`Weights`); the main process sends them.
"""

import os
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from rg_env.errors import MissingExtraError, ServerError, how_to_install
from rg_env.inference.vllm.client import ServerInfo, VllmServer
from rg_env.inference.vllm.shared_weights import ALIGNMENT, HEADER, SHAPE, mapped, pack, read_header, reserve
from rg_env.training.strategy import DataParallel
from rg_env.training.weight_sync.parameters import BUCKET_BYTES, buckets, largest_bucket, sources

SLOTS = 2
"""Buckets in shared memory: one is filled while the server loads the other."""


class TensorMeta(NamedTuple):
    """Metadata of a tensor, as in vLLM's `WeightSource`."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Weights:
    """A model's weights to send, with the interface of vLLM's `WeightSource`.

    Iteration is a collective operation if weights are sharded. If the consumer fails, `drain` completes the iteration,
    so the other processes do not wait forever.
    """

    def __init__(self, model: PreTrainedModel, strategy: DataParallel):
        self._model, self._strategy = model, strategy
        self.bucket_bytes = BUCKET_BYTES
        self._running: Iterator[list[tuple[str, torch.Tensor]]] | None = None

    @property
    def config(self) -> Any:
        """Configuration of the model."""
        return self._model.config.get_text_config(decoder=True)

    def metadata(self) -> list[TensorMeta]:
        """Metadata of all tensors, in order, without gathering."""
        return [TensorMeta(each.name, each.dtype, each.shape) for each in sources(self._model)]

    def largest_bucket(self) -> int:
        """Maximum size of a bucket, in bytes."""
        return largest_bucket(sources(self._model))

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for bucket in self.buckets():
            yield from bucket

    def buckets(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Buckets of names and tensors. A bucket is valid until the next one is requested."""
        self._running = self._buckets()
        return self._running

    def _buckets(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        for bucket in buckets(sources(self._model, self._strategy.whole), self.bucket_bytes):
            unique = {id(parameter): parameter for source in bucket for parameter in source.parameters}
            with self._strategy.gathered(list(unique.values())), torch.no_grad():
                yield [(source.name, source.tensor().to(source.dtype)) for source in bucket]

    def drain(self) -> None:
        """Complete the last iteration."""
        for _ in self._running or ():
            pass
        self._running = None


class Routes:
    """The weight-transfer routes of a server, with the method names that vLLM's trainer engines call."""

    def __init__(self, server: VllmServer, timeout_s: float):
        self.server, self._timeout_s = server, timeout_s

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.server.post("/init_weight_transfer_engine", {"init_info": init_info}, self._timeout_s)

    def shutdown_weight_transfer_engine(self) -> None:
        self.server.post("/shutdown_weight_transfer_engine", timeout_s=3.0)

    def start_weight_update(self) -> None:
        self.server.post("/start_weight_update", timeout_s=self._timeout_s)

    def update_weights(self, update_info: Any) -> None:
        self.server.post("/update_weights", {"update_info": update_info}, self._timeout_s)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.server.post("/finish_weight_update", timeout_s=self._timeout_s)


class SharedMemoryTransfer:
    """Transfer through this machine's shared memory. Writing to it and loading from it are the only two copies.

    Raises:
        ServerError: there is not enough memory, or the server has another backend or another model.
    """

    def __init__(self, routes: Routes, weights: Weights):
        self._routes = routes
        size = -(-(weights.largest_bucket() + ALIGNMENT) // HEADER) * HEADER
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            path = reserve(name, HEADER + SLOTS * size)
        except OSError as error:
            raise ServerError(
                f"cannot reserve {SLOTS * size / 2**20:.0f} MiB of shared memory for new weights: {error.strerror}"
            ) from error
        try:
            memory = mapped(path)
            routes.init_weight_transfer_engine({"path": str(path)})
        finally:
            path.unlink()
        theirs, server = read_header(memory), routes.server
        if theirs["quantization"]:
            raise ServerError(
                f"the server at {server} serves quantized weights ({theirs['quantization']}), which cannot be updated: "
                "start it with the unquantized model"
            )
        for name in SHAPE:
            value, there = getattr(weights.config, name, None), theirs["shape"].get(name)
            if None not in (value, there) and value != there:
                raise ServerError(
                    f"the server at {server} serves another model: its {name} is {there}, the trainer's {value}; start "
                    "it with the model that is trained"
                )
        self.dtype = getattr(torch, theirs["dtype"])
        """The server's data type. Wider weights are converted to it before they are sent."""
        self._starts = [HEADER + slot * size for slot in range(SLOTS)]
        self._slots = [memory[start : start + size] for start in self._starts]

    def send(self, weights: Weights) -> None:
        """Update the server's weights. Raises `ServerError` or `RuntimeError`."""
        self._routes.start_weight_update()
        executor = ThreadPoolExecutor(1, "rg-env-weights")
        loading: Future[None] | None = None
        try:
            for number, bucket in enumerate(weights.buckets()):
                slot = number % SLOTS
                entries = pack(bucket, self._slots[slot], self.dtype)
                if loading is not None:
                    loading.result()
                tensors = [(entry.name, entry.dtype, list(entry.shape)) for entry in entries]
                update = {"start": self._starts[slot], "tensors": tensors}
                loading = executor.submit(self._routes.update_weights, update)
            if loading is not None:
                loading.result()
        finally:
            executor.shutdown(wait=False)
        self._routes.finish_weight_update()

    def close(self) -> None:
        with suppress(ServerError):
            self._routes.shutdown_weight_transfer_engine()


class NcclTransfer:
    """Transfer between GPUs, with the trainer's side of vLLM's `nccl` backend."""

    dtype = torch.bfloat16

    def __init__(self, routes: Routes, weights: Weights, workers: int):
        try:
            from vllm.distributed.weight_transfer.nccl_engine import (
                NCCLTrainerInitInfo,
                NCCLTrainerWeightTransferEngine,
            )
        except ImportError as error:
            raise MissingExtraError(
                f"NCCL needs vLLM next to the trainer ({error}): {how_to_install('vllm')}"
            ) from error
        here = routes.server.address_here()
        with socket.create_server((here, 0)) as free:
            port = free.getsockname()[1]
        init = NCCLTrainerInitInfo(master_address=here, master_port=port, world_size=workers + 1, rank=0)
        self._engine = NCCLTrainerWeightTransferEngine.trainer_init(init, client=routes, source=weights)

    def send(self, weights: Weights) -> None:
        self._engine.send_weights()

    def close(self) -> None:
        with suppress(ServerError, RuntimeError):
            self._engine.client.shutdown_weight_transfer_engine()
            self._engine.shutdown()


def open_transfer(
    server: VllmServer, info: ServerInfo, weights: Weights, timeout_s: float
) -> SharedMemoryTransfer | NcclTransfer:
    """A transfer with the server's backend. Shared memory is tried first, because a refusal is immediate.

    Raises:
        ServerError: the server cannot receive these weights.
    """
    routes = Routes(server, timeout_s)
    with suppress(ServerError):  # there is no update to finish, unless a trainer was killed during one
        routes.finish_weight_update()
    try:
        return SharedMemoryTransfer(routes, weights)
    except ServerError as error:
        if "Invalid init_info for NCCL" not in str(error):
            raise
    return NcclTransfer(routes, weights, info.workers)
