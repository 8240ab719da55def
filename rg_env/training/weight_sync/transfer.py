"""Updates a vLLM server's weights to the trainer's, and proves that they arrived.

Every training process has a `WeightSync`. All of them gather sharded weights together, and the main process sends them
through vLLM's own weight-transfer routes with the server's backend: `nccl` between GPUs, or `rg_env_shm` through shared
memory. An error on the main process is raised on all. After each sync, the server's log-probabilities of a fixed prompt
are compared with the model's. Wrong, missing or misplaced weights end the run, instead of silently making it learn
worse.
"""

import fcntl
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from rg_env.errors import MissingExtraError, ServerError, TrainingError, how_to_install
from rg_env.inference.vllm.client import ServerInfo, VllmServer, start_hint
from rg_env.inference.vllm.shared_weights import ALIGNMENT, HEADER, SHAPE, mapped, pack, read_header, reserve
from rg_env.training.distributed import on_main
from rg_env.training.strategy import Strategy
from rg_env.training.weight_sync.parameters import BUCKET_BYTES, buckets, largest_bucket, sources
from rg_env.training.weight_sync.proof import PROOF_TOKENS, TOLERANCE, checked_difference, model_logprobs

SLOTS = 2
"""Buckets in shared memory: one is filled while the server loads the other."""


class TensorMeta(NamedTuple):
    """Metadata of a tensor, as in vLLM's `WeightSource`."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Weights:
    """The weights of a model to send, with the interface of vLLM's `WeightSource`.

    Iteration is a collective operation if weights are sharded. If the consumer fails, `drain` completes the iteration,
    so that the other processes do not wait forever.
    """

    def __init__(self, model: PreTrainedModel, strategy: Strategy):
        self._model, self._strategy = model, strategy
        self._running: Iterator[list[tuple[str, torch.Tensor]]] | None = None

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
        for bucket in buckets(sources(self._model, self._strategy.whole), BUCKET_BYTES):
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

    Args:
        shape: sizes of the trainer's model (`SHAPE`), which must equal those of the server's model.

    Raises:
        ServerError: there is not enough memory, or the server has another backend or another model.
    """

    def __init__(self, routes: Routes, weights: Weights, shape: dict[str, Any]):
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
        for name, value in shape.items():
            if None not in (value, there := theirs["shape"].get(name)) and value != there:
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


class WeightSync:
    """Keeps a server's weights equal to those of `model`. All processes create one; only the main process has a server.

    Args:
        model: the unwrapped model, with or without PEFT.
        proof: token ids of a prompt, equal on all processes.
        served: the name under which the server serves the model.

    Raises:
        ServerError: another trainer uses the server, or it cannot receive weights; on the main process.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        server: VllmServer | None,
        model: PreTrainedModel,
        *,
        info: ServerInfo,
        proof: list[int],
        strategy: Strategy,
        timeout_s: float,
    ):
        self._accelerator, self._server, self._model = accelerator, server, model
        self._served, self._proof, self._timeout_s = info.name, proof[:PROOF_TOKENS], timeout_s
        self._weights = Weights(model, strategy)
        self.count = 0
        """Number of syncs so far."""
        self.seconds = 0.0
        """Duration of the last sync, in seconds."""
        self.difference: float | None = None
        """Mean absolute difference of log-probabilities at the last proof."""
        self._lock: IO[str] | None = None
        self._transfer: SharedMemoryTransfer | NcclTransfer | None = None
        if server is not None:
            self._lock = _held(server)
            try:
                self._transfer = self._open(server, info, timeout_s)
                server.check_logprobs(info.name)
            except BaseException:
                self.close()
                raise

    def _open(self, server: VllmServer, info: ServerInfo, timeout_s: float) -> "SharedMemoryTransfer | NcclTransfer":
        """Open a transfer with the server's backend. Shared memory is tried first, because a refusal is immediate."""
        routes = Routes(server, timeout_s)
        with suppress(ServerError):  # there is no update to finish, unless a trainer was killed during one
            routes.finish_weight_update()
        config = self._model.config.get_text_config(decoder=True)
        try:
            return SharedMemoryTransfer(routes, self._weights, {name: getattr(config, name, None) for name in SHAPE})
        except ServerError as error:
            if "Invalid init_info for NCCL" not in str(error):
                raise
        return NcclTransfer(routes, self._weights, info.workers)

    def run(self) -> None:
        """Send the weights and prove that they arrived.

        Raises:
            TrainingError: the weights did not arrive. With several processes, `StoppedTogether`.
        """
        start = time.monotonic()
        failure: Exception | None = None
        try:
            if self._transfer is not None:
                self._transfer.send(self._weights)
            else:
                for _ in self._weights:
                    pass  # takes part in the gathering
        except Exception as error:
            failure = error
            self._weights.drain()
        on_main(self._accelerator, lambda: self._finish(failure))
        ours = model_logprobs(self._model, self._proof, self._accelerator.device)  # a collective operation with ZeRO-3
        self.difference = on_main(self._accelerator, lambda: self._prove(ours))
        self.count += 1
        self.seconds = time.monotonic() - start

    @property
    def tolerance(self) -> float:
        """Largest mean absolute difference of log-probabilities; on the main process."""
        assert self._transfer is not None
        return TOLERANCE.get(self._transfer.dtype, 0.15)

    def close(self) -> None:
        """Disconnect from the server, which keeps running and accepts the next trainer."""
        if self._transfer is not None:
            self._transfer.close()
            self._transfer = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _finish(self, failure: Exception | None) -> None:
        assert self._server is not None
        if failure is not None:
            problem = self._server.health_problem(timeout_s=5.0)
            state = f"; the server: {problem}" if problem else ""
            reason = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
            raise TrainingError(
                f"the weights did not arrive at the vLLM server {self._server}: {reason}{state}"
            ) from failure
        with _in_a_run():
            self._server.post("/reset_prefix_cache", timeout_s=self._timeout_s)

    def _prove(self, ours: torch.Tensor) -> float:
        assert self._server is not None
        with _in_a_run():
            theirs = self._server.logprobs(self._served, self._proof)
        return checked_difference(ours, theirs, self.tolerance, server=self._server, sync=self.count)


def _held(server: VllmServer) -> IO[str]:
    """Acquire this machine's lock for trainers of a server. It is released when its holder ends for any reason."""
    path = Path(tempfile.gettempdir()) / f"rg-env-{os.getuid()}-{server.host}-{server.port}.lock".replace(":", "_")
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        raise ServerError(
            f"the server at {server} serves another trainer (process {holder or 'unknown'}): wait for it, or start "
            f"another server on another port with `{start_hint(port=server.port + 1)}`"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


@contextmanager
def _in_a_run() -> Iterator[None]:
    """Context that raises `ServerError` as `TrainingError`: a server that disappears during a run is not invalid
    input."""
    try:
        yield
    except ServerError as error:
        raise TrainingError(str(error)) from error
