"""Send the trained model's weights to a vLLM server, through vLLM's own routes. The transfer uses the server's backend,
which is `nccl` (between GPUs) or `rg_env_shm` (through shared memory).

All trainer processes gather sharded weights together (`ModelWeights`), and the main process sends the weights.

With LoRA, the merged weights of adapted layers (base + update) are sent. Merging is done on a copy because merging and
unmerging the model itself would leave rounding errors. Tied weights are sent under each name because vLLM silently
keeps the old LM head if it receives only the embedding.
"""

import math
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rg_env.errors import MissingExtraError, ServerError, how_to_install
from rg_env.inference.vllm.client import ServerInfo, VllmServer
from rg_env.inference.vllm.shared_weights import ALIGNMENT, HEADER_BYTES, SHAPE, mapped, pack, read_header, reserve
from rg_env.training.strategy import DataParallel

BUCKET_BYTES = 128 * 2**20
SLOTS = 2
"""Number of buckets in shared memory. One bucket is filled while the server loads the other."""
_WITHOUT_HEAD = ("cohere", "cohere2", "gemma2", "gemma3n_text")
"""Model types with tied weights for which vLLM 0.32 rejects the LM head, because vLLM's implementations have no
`lm_head` module."""


@dataclass(frozen=True)
class WeightTensor:
    """A tensor to send, with its name on the server, the parameters that it depends on, and the function that computes
    it."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    tensor: Callable[[], torch.Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        """The unsharded shape of the tensor."""
        # ZeRO-3 replaces a sharded parameter with an empty tensor that has the shape as an attribute.
        return tuple(getattr(self.parameters[0], "ds_shape", self.parameters[0].shape))

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.parameters[0].element_size()

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the trainer's tensor."""
        return self.parameters[0].dtype


def sources(model: nn.Module, whole: Callable[[Any], torch.Tensor] = lambda tensor: tensor.data) -> list[WeightTensor]:
    """Return all weights of `model`. Tied weights are included under each name, except for an LM head that vLLM would
    reject.

    Args:
        whole: returns the unsharded tensor of a parameter (`DataParallel.whole`).
    """
    adapted = dict(_adapted_layers(model))
    headless = _is_tied(model) and model.config.get_text_config(decoder=True).model_type in _WITHOUT_HEAD
    found = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if ".lora_" in name or ".original_module." in name or (headless and "lm_head." in name):
            continue
        layer = adapted.get(name.removesuffix(".base_layer.weight"))
        if layer is None:
            found.append(WeightTensor(server_name(name), (parameter,), partial(whole, parameter)))
        else:
            parts = (part for key, part in layer.named_parameters() if key.startswith("lora_"))
            found.append(
                WeightTensor(server_name(name), (parameter, *parts), partial(_merged, parameter, layer, whole))
            )
    return found


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
    """Group consecutive sources into buckets of at most `num_bytes`. A source that exceeds this size gets its own
    bucket."""
    bucket: list[WeightTensor] = []
    size = 0
    for source in found:
        if bucket and size + source.num_bytes > num_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(source)
        size += source.num_bytes
    if bucket:
        yield bucket


class ModelWeights:
    """The weights of a model, ready to be sent, with the interface of vLLM's `WeightSource`.

    Iteration is a collective operation if the weights are sharded. If the consumer fails, `drain` completes the
    iteration so that the other processes do not wait forever.
    """

    def __init__(self, model: PreTrainedModel, strategy: DataParallel):
        self._model, self._strategy = model, strategy
        self.bucket_bytes = BUCKET_BYTES
        self._running: Iterator[list[tuple[str, torch.Tensor]]] | None = None

    @property
    def config(self) -> Any:
        """Configuration of the model."""
        return self._model.config.get_text_config(decoder=True)

    def metadata(self) -> list[WeightTensor]:
        """Return the names, data types and shapes of all tensors, in order, without gathering the weights."""
        return sources(self._model)

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
    """Weight transfer through this machine's shared memory. Weights are copied only twice, once into shared memory and
    once out of it.

    Raises:
        ServerError: there is not enough shared memory, or the server uses another backend or serves quantized weights
            or another model.
    """

    def __init__(self, routes: Routes, weights: ModelWeights):
        self._routes = routes
        size = -(-(weights.largest_bucket() + ALIGNMENT) // HEADER_BYTES) * HEADER_BYTES
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            path = reserve(name, HEADER_BYTES + SLOTS * size)
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
                "start the server with the unquantized model"
            )
        for name in SHAPE:
            value, there = getattr(weights.config, name, None), theirs["shape"].get(name)
            if None not in (value, there) and value != there:
                raise ServerError(
                    f"the server at {server} serves another model: its {name} is {there}, but the trainer's is "
                    f"{value}; start the server with the model being trained"
                )
        self.dtype = getattr(torch, theirs["dtype"])
        """The server's data type. Wider weights are converted to this data type before they are sent."""
        self._starts = [HEADER_BYTES + slot * size for slot in range(SLOTS)]
        self._slots = [memory[start : start + size] for start in self._starts]

    def send(self, weights: ModelWeights) -> None:
        """Update the server's weights. Raises `ServerError` or `RuntimeError` if the update fails."""
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
    """Weight transfer between GPUs, using the trainer's side of vLLM's `nccl` backend."""

    dtype = torch.bfloat16

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

    def close(self) -> None:
        with suppress(ServerError, RuntimeError):
            self._engine.client.shutdown_weight_transfer_engine()
            self._engine.shutdown()


def open_transfer(
    server: VllmServer, info: ServerInfo, weights: ModelWeights, timeout_s: float
) -> SharedMemoryTransfer | NcclTransfer:
    """Return a transfer that uses the server's backend. Shared memory is tried first because a server with another
    backend rejects the request immediately.

    Raises:
        ServerError: the server cannot receive these weights.
    """
    routes = Routes(server, timeout_s)
    with suppress(ServerError):  # an update is unfinished only if a trainer was killed during the update
        routes.finish_weight_update()
    try:
        return SharedMemoryTransfer(routes, weights)
    except ServerError as error:
        if "Invalid init_info for NCCL" not in str(error):
            raise
    return NcclTransfer(routes, weights, info.workers)
