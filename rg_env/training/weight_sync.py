"""Send the trained model's weights to a vLLM server, through vLLM's own routes. The transfer uses the server's backend,
which is `nccl` (between GPUs) or `rg_env_shm` (through shared memory).

All trainer processes gather sharded weights together (`ModelWeights`), and the main process sends the weights, each in
the data type in which the server holds it. After an update, the server's weights are read back, and `Arrival` compares
their digests with those of the tensors that were sent.

With LoRA, the merged weights of adapted layers (base + update) are sent. They are merged in float32 and rounded once,
to the server's data type. Merging is done on a copy because merging and unmerging the model itself would leave rounding
errors. Tied weights are sent under each name because vLLM silently keeps the old LM head if it receives only the
embedding.
"""

import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from rg_env.core.text import reason_of
from rg_env.errors import MissingExtraError, ServerError, how_to_install
from rg_env.inference.vllm.client import ServerInfo, VllmServer, in_daemon_thread
from rg_env.inference.vllm.command import start_hint
from rg_env.inference.vllm.plugin import BACKEND
from rg_env.inference.vllm.read_back import columns_digest, sampled_columns, whole_digest
from rg_env.inference.vllm.shared_weights import ALIGNMENT, SHAPE, mapped, pack, reserve
from rg_env.training.checkpointing.files import full_shape
from rg_env.training.strategy import DataParallel

BUCKET_BYTES = 128 * 2**20
SLOTS = 2
"""Number of buckets in shared memory. One bucket is filled while the server loads the other."""
_WITHOUT_HEAD = ("cohere", "cohere2", "gemma2", "gemma3n_text")
"""Model types with tied weights for which vLLM 0.32 rejects the LM head, because vLLM's implementations have no
`lm_head` module."""


@dataclass(frozen=True)
class WeightTensor:
    """A tensor to send, with its name on the Hub."""

    name: str
    shape: tuple[int, ...]
    """The unsharded shape of the tensor."""
    dtype: torch.dtype
    """Data type in which the tensor is sent."""
    parameters: tuple[nn.Parameter, ...]
    """The parameters that the tensor depends on."""
    compute: Callable[[], Mapping[str, torch.Tensor]]
    """Computes the tensor, and the tensors that are converted together with it, by name."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def sources(model: nn.Module, whole: Callable[[Any], torch.Tensor] = lambda tensor: tensor.data) -> list[WeightTensor]:
    """Return all weights of `model` with the names and shapes that they have on the Hub, which are those that vLLM
    loads. (transformers stores the experts of a layer as one tensor, for example.) Tied weights are included under each
    name, except for an LM head that vLLM would reject.

    Args:
        whole: returns the unsharded tensor of a parameter (`DataParallel.whole`).
    """
    adapted = dict(_adapted_layers(model))
    headless = _is_tied(model) and model.config.get_text_config(decoder=True).model_type in _WITHOUT_HEAD
    weights: dict[str, tuple[tuple[nn.Parameter, ...], Callable[[], torch.Tensor]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if ".lora_" in name or ".original_module." in name or (headless and "lm_head." in name):
            continue
        layer = adapted.get(name.removesuffix(".base_layer.weight"))
        parts: tuple[nn.Parameter, ...] = ()
        tensor = partial(whole, parameter)
        if layer is not None:
            parts = tuple(part for key, part in layer.named_parameters() if key.startswith("lora_"))
            tensor = partial(_merged, parameter, layer, whole)
        weights[server_name(name)] = (parameter, *parts), tensor

    plain: Any = model.get_base_model() if getattr(model, "peft_config", None) else model
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name, (parameters, _) in weights.items():
        empty = torch.empty(full_shape(parameters[0]), dtype=parameters[0].dtype, device="meta")
        # Weights that are parts of the same tensor on the Hub are converted to its name even if they are alone.
        groups.setdefault(next(iter(revert_weight_conversion(plain, {name: empty}))), {})[name] = empty
    found = []
    for group in groups.values():
        needed = tuple(parameter for name in group for parameter in weights[name][0])
        compute = partial(_on_the_hub, plain, {name: weights[name][1] for name in group})
        for name, empty in revert_weight_conversion(plain, group).items():
            found.append(WeightTensor(name, tuple(empty.shape), empty.dtype, needed, compute))
    return found


def _on_the_hub(model: PreTrainedModel, weights: Mapping[str, Callable[[], torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return weights, given by their names in `model`, with their names on the Hub."""
    return dict(revert_weight_conversion(model, {name: tensor() for name, tensor in weights.items()}))


def _merged(base: nn.Parameter, layer: Any, whole: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """Return the weight of an adapted layer, with its active adapters merged in."""
    if layer.merged:
        return whole(base)
    merged = base.data.float()  # this makes a copy, unless the weight is already float32
    for key in layer.active_adapters:
        if key in layer.lora_variant:  # the adapter is DoRA or a similar variant
            merged = layer.lora_variant[key].merge_safe(layer, key, merged.clone())
        elif key in layer.scaling:
            merged = merged + layer.get_delta_weight(key).float()
    return whole(merged)


def unmergeable(model: Any) -> str | None:
    """Return the reason `sources` cannot represent `model`, or None if it can."""
    if any(not p.is_floating_point() for p in model.parameters()):
        return "the weights of the base model are quantized; load the base model unquantized"
    for config in getattr(model, "peft_config", {}).values():
        kind = getattr(config.peft_type, "value", config.peft_type)
        if kind != "LORA":
            return f"{kind} adapters cannot be merged into weights; use LoRA"
        for option in ("lora_bias", "trainable_token_indices", "target_parameters", "alora_invocation_tokens"):
            if getattr(config, option, None):
                return f"merged weights cannot represent LoRA with {option}; leave {option} unset"
    for name, layer in _adapted_layers(model):
        for variant in layer.lora_variant.values():
            if not type(variant).__name__.startswith("Dora"):
                return f"the adapter of {server_name(name)} is a {type(variant).__name__}; use LoRA or DoRA"
    return (
        "the model ties the LM head and the embedding, but the adapter unties them; exclude both from the adapter"
        if _untied(model)
        else None
    )


def _is_tied(model: Any) -> bool:
    config = getattr(model, "config", None)
    return config is not None and bool(config.get_text_config(decoder=True).tie_word_embeddings)


def _untied(model: Any) -> bool:
    """Whether an adapter gives the LM head and the embedding different weights although the configuration ties them."""
    if not getattr(model, "peft_config", None) or not _is_tied(model):
        return False
    ends = [model.get_base_model().get_input_embeddings(), model.get_base_model().get_output_embeddings()]
    if any(hasattr(end, "lora_A") for end in ends):
        return True
    weights = [end.modules_to_save[end.active_adapters[0]] if hasattr(end, "modules_to_save") else end for end in ends]
    return weights[0].weight is not weights[1].weight


def server_name(name: str) -> str:
    """Return the name that a parameter had before PEFT wrapped the model."""
    for part in ("base_model.model.", ".base_layer", "modules_to_save.default."):
        name = name.replace(part, "")
    return name


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    try:
        from peft.tuners.lora import LoraLayer
    except ImportError:
        return
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def buckets(found: Sequence[WeightTensor], num_bytes: int = BUCKET_BYTES) -> Iterator[list[WeightTensor]]:
    """Group consecutive sources into buckets of at most `num_bytes`. Sources that are computed together stay together;
    if they exceed this size, they get their own bucket."""
    bucket: list[WeightTensor] = []
    size = 0
    for _, each in groupby(found, key=lambda source: source.compute):
        together = list(each)
        more = sum(source.num_bytes for source in together)
        if bucket and size + more > num_bytes:
            yield bucket
            bucket, size = [], 0
        bucket += together
        size += more
    if bucket:
        yield bucket


def computed(bucket: Sequence[WeightTensor]) -> list[tuple[str, torch.Tensor]]:
    """Return the names and tensors of a bucket, in the data types in which they are sent."""
    found = {compute: compute() for compute in dict.fromkeys(source.compute for source in bucket)}
    return [(source.name, found[source.compute][source.name].to(source.dtype)) for source in bucket]


@dataclass(frozen=True)
class ServerTensor:
    """How the server holds one of the trainer's tensors."""

    dtype: torch.dtype
    is_plain: bool
    """Whether all of its elements can be read back."""
    is_packed: bool
    """Whether the server computes with a packed copy, of which some columns are read back after each update."""


@dataclass(frozen=True)
class ServerModel:
    """What the server's workers report about its model."""

    backend: str | None
    """Weight-transfer backend."""
    dtype: torch.dtype
    quantization: str | None
    shape: Mapping[str, int | None]
    tensors: Mapping[str, ServerTensor]
    """The tensors that can be read back, at least in part, by the trainer's names."""
    problem: str | None = None
    """The reason some tensors cannot be read back, if it is known."""

    @classmethod
    def of(cls, server: VllmServer, tensors: Sequence[WeightTensor], timeout_s: float) -> "ServerModel":
        """Ask a server about its model and the trainer's `tensors`."""
        names = [(each.name, list(each.shape)) for each in tensors]
        workers = server.on_workers("rg_env_layout", names, timeout_s=timeout_s)
        try:
            found = {name: each for worker in workers for name, each in worker["tensors"].items()}
            return cls(
                workers[0]["backend"],
                getattr(torch, workers[0]["dtype"]),
                workers[0]["quantization"],
                workers[0]["shape"],
                {name: ServerTensor(getattr(torch, dtype), *kinds) for name, (dtype, *kinds) in found.items()},
                workers[0]["problem"],
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ServerError(f"the server at {server} runs another version of rg_env: {reason_of(error)}") from error

    def check(self, server: VllmServer, config: Any) -> None:
        """Raise `ServerError` if the model cannot receive the weights of a model with this configuration."""
        if self.quantization:
            raise ServerError(
                f"the server at {server} serves quantized weights ({self.quantization}), which cannot be updated: "
                "start the server with the unquantized model"
            )
        for name in SHAPE:
            value, there = getattr(config, name, None), self.shape.get(name)
            if None not in (value, there) and value != there:
                raise ServerError(
                    f"the server at {server} serves another model: its {name} is {there}, but the trainer's is "
                    f"{value}; start the server with the model being trained"
                )


class ModelWeights:
    """The weights of a model, ready to be sent, with the interface of vLLM's `WeightSource`.

    Iteration is a collective operation if the weights are sharded. If the consumer fails, `drain` completes the
    iteration so that the other processes do not wait forever.
    """

    def __init__(self, model: PreTrainedModel, strategy: DataParallel):
        self._model, self._strategy = model, strategy
        self.bucket_bytes = BUCKET_BYTES
        self.server: ServerModel | None = None
        """The server's model, which determines the data types. All processes must have the same value."""
        self.arrival: Arrival | None = None
        """Receives the tensors that are sent. Only the main process has an arrival."""
        self.moved_at = 0.0
        """Time of the last progress of a transfer."""
        self._running: Iterator[list[tuple[str, torch.Tensor]]] | None = None

    @property
    def config(self) -> Any:
        """Configuration of the model."""
        return self._model.config.get_text_config(decoder=True)

    def metadata(self) -> list[WeightTensor]:
        """Return the names, data types and shapes of all tensors, in order, without gathering the weights."""
        found = sources(self._model, self._strategy.whole)
        return found if self.server is None else [replace(each, dtype=self._dtype(each.name)) for each in found]

    def _dtype(self, name: str) -> torch.dtype:
        assert self.server is not None
        held = self.server.tensors.get(name)
        return self.server.dtype if held is None else held.dtype

    def largest_bucket(self) -> int:
        """Return the maximum bucket size in bytes, including alignment."""
        return max(
            sum(source.num_bytes + ALIGNMENT for source in bucket)
            for bucket in buckets(self.metadata(), self.bucket_bytes)
        )

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for bucket in self.buckets():
            yield from bucket

    def buckets(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Return an iterator over buckets of (name, tensor) pairs. A bucket is valid until the next bucket is
        requested."""
        self._running = self._buckets()
        return self._running

    def _buckets(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        for bucket in buckets(self.metadata(), self.bucket_bytes):
            unique = {id(parameter): parameter for source in bucket for parameter in source.parameters}
            with self._strategy.gathered(list(unique.values())):
                with torch.no_grad():  # not around `yield`, where it would apply to the consumer as well
                    tensors = computed(bucket)
                    if self.arrival is not None:
                        self.arrival.add(tensors)
                # vLLM's producer reads the tensors on streams of its own. The tensors must be complete before it reads
                # them, and must not be freed before it has read them.
                self._synchronize()
                self.has_moved()
                yield tensors
                self._synchronize()

    def _synchronize(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)

    def has_moved(self) -> None:
        """Note the time of progress in a transfer."""
        self.moved_at = time.monotonic()

    def drain(self) -> None:
        """Complete the last iteration. Raises `ValueError` if another thread is still in it."""
        for _ in self._running or ():
            pass
        self._running = None


class Arrival:
    """Proof that the weights of each update arrived.

    After an update, the digest of every tensor that can be read back must equal the digest of what was sent. The only
    exceptions are tensors that have never been equal, because vLLM rearranges them (such as the weights of experts on
    some GPUs). Their digests must change whenever what is sent changes.

    Attributes:
        unproven: names of tensors that were not equal after the last update, because the server rearranges them or
            because they cannot be read back.
    """

    def __init__(self, server: ServerModel) -> None:
        self.unproven: list[str] = []
        self._server, self._round = server, 0
        self._sent: dict[str, tuple[int, torch.Tensor, torch.Tensor]] = {}
        """For each tensor, the number of elements to read back, their digest, and the digest of the whole tensor."""
        self._before: dict[str, tuple[int, int]] = {}
        """For each tensor, the digests of the whole tensor and of the server's elements after the last update."""
        self._equal: set[str] = set()

    @property
    def sent(self) -> int:
        """Number of tensors in the last update."""
        return len(self._sent)

    def start(self) -> None:
        """Prepare for an update."""
        self._round += 1
        self._sent = {}

    def add(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Add tensors that are sent. Later changes to the tensors have no effect."""
        for name, tensor in tensors:
            held = self._server.tensors.get(name)
            whole = whole_digest(tensor)
            elements, digest = (tensor.numel(), whole) if held and held.is_plain else (0, torch.zeros_like(whole))
            if held and held.is_packed:
                elements += len(tensor) * len(sampled_columns(tensor.shape[1], self._round))
                digest = digest + columns_digest(tensor, self._round)
            self._sent[name] = elements, digest, whole

    def missing(self, server: VllmServer, timeout_s: float) -> list[str]:
        """Read the weights back, and return the names of the tensors that did not arrive."""
        workers = server.on_workers("rg_env_digests", self._round, timeout_s=timeout_s)
        missing, self.unproven = [], []
        for name, (elements, digest, tensor) in self._sent.items():
            parts = [worker[name] for worker in workers if name in worker]
            count, theirs, whole = sum(part[0] for part in parts), sum(part[1] for part in parts), int(tensor)
            copies = count // elements if elements else 0  # with tensor parallelism, some weights are replicated
            before, self._before[name] = self._before.get(name), (whole, theirs)
            if copies and count == copies * elements and (theirs - copies * int(digest)) % 2**64 == 0:
                self._equal.add(name)
                continue
            held = self._server.tensors.get(name)
            is_stale = before is not None and before[0] != whole and before[1] == theirs
            if held and (held.is_packed or name in self._equal or (held.is_plain and is_stale)):
                missing.append(name)
            else:
                self.unproven.append(name)
        return missing


class Routes:
    """The weight-transfer routes of a server, with the method names that vLLM's trainer engines call.

    Args:
        has_moved: called after each request that succeeded.
    """

    def __init__(self, server: VllmServer, timeout_s: float, has_moved: Callable[[], None]):
        self.server, self._timeout_s, self._has_moved = server, timeout_s, has_moved

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._post("/init_weight_transfer_engine", {"init_info": init_info})

    def shutdown_weight_transfer_engine(self) -> None:
        self.server.post("/shutdown_weight_transfer_engine", timeout_s=3.0)

    def start_weight_update(self) -> None:
        self._post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("/finish_weight_update")

    def _post(self, path: str, body: dict[str, Any] | None = None) -> None:
        self.server.post(path, body, self._timeout_s)
        self._has_moved()


class SharedMemoryTransfer:
    """Weight transfer through this machine's shared memory. Weights are copied only twice, once into shared memory and
    once out of it.

    Raises:
        ServerError: there is not enough shared memory.
    """

    def __init__(self, routes: Routes, weights: ModelWeights):
        self._routes = routes
        size = -(-weights.largest_bucket() // ALIGNMENT) * ALIGNMENT
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            path = reserve(name, SLOTS * size)
        except OSError as error:
            raise ServerError(
                f"cannot reserve {SLOTS * size / 2**20:.0f} MiB of shared memory for new weights: {error.strerror}"
            ) from error
        try:
            memory = mapped(path)
            routes.init_weight_transfer_engine({"path": str(path)})
        finally:
            path.unlink()
        self._starts = [slot * size for slot in range(SLOTS)]
        self._slots = [memory[start : start + size] for start in self._starts]

    def send(self, weights: ModelWeights) -> None:
        """Update the server's weights. Raises `ServerError` or `RuntimeError` if the update fails."""
        self._routes.start_weight_update()
        loading: Future[None] | None = None
        for number, bucket in enumerate(weights.buckets()):
            slot = number % SLOTS
            entries = pack(bucket, self._slots[slot])
            if loading is not None:
                loading.result()
            tensors = [(entry.name, entry.dtype, list(entry.shape)) for entry in entries]
            update = {"start": self._starts[slot], "tensors": tensors}
            loading = in_daemon_thread(partial(self._routes.update_weights, update), "rg-env-weights")
        if loading is not None:
            loading.result()
        self._routes.finish_weight_update()

    def abort(self) -> None:
        """Let a transfer that is stuck fail."""

    def close(self) -> None:
        with suppress(ServerError):
            self._routes.shutdown_weight_transfer_engine()


class NcclTransfer:
    """Weight transfer between GPUs, using the trainer's side of vLLM's `nccl` backend."""

    def __init__(self, routes: Routes, weights: ModelWeights, workers: int):
        try:
            from vllm.distributed.weight_transfer import nccl_engine
        except ImportError as error:
            raise MissingExtraError(
                f"NCCL needs vLLM in the trainer's environment ({error}): {how_to_install('vllm')}"
            ) from error
        here = routes.server.address_here()
        with socket.create_server((here, 0)) as free:
            port = free.getsockname()[1]
        init = nccl_engine.NCCLTrainerInitInfo(master_address=here, master_port=port, world_size=workers + 1, rank=0)
        self._engine = nccl_engine.NCCLTrainerWeightTransferEngine.trainer_init(init, client=routes, source=weights)

    def send(self, weights: ModelWeights) -> None:
        self._engine.send_weights()

    def abort(self) -> None:
        """Let a transfer that is stuck fail. Broadcasts on the GPU end only if their communicator is destroyed."""
        with suppress(RuntimeError):
            self._engine.shutdown()

    def close(self) -> None:
        with suppress(ServerError, RuntimeError):
            self._engine.client.shutdown_weight_transfer_engine()
            self._engine.shutdown()


def open_transfer(
    server: VllmServer, info: ServerInfo, weights: ModelWeights, timeout_s: float
) -> SharedMemoryTransfer | NcclTransfer:
    """Return a transfer that uses the server's backend, and set `weights.server` and `weights.arrival`.

    Raises:
        ServerError: the server cannot receive these weights.
    """
    routes = Routes(server, timeout_s, weights.has_moved)
    with suppress(ServerError):  # an update is unfinished only if a trainer was killed during the update
        routes.finish_weight_update()
    model = ServerModel.of(server, weights.metadata(), timeout_s)
    model.check(server, weights.config)
    weights.server, weights.arrival = model, Arrival(model)
    if model.backend == BACKEND:
        return SharedMemoryTransfer(routes, weights)
    if model.backend == "nccl":
        return NcclTransfer(routes, weights, info.workers)
    raise ServerError(
        f"the server at {server} receives weights with the backend {model.backend}, but only nccl and {BACKEND} are "
        f"supported: start it with `{start_hint(port=server.port)}`"
    )
