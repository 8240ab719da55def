"""Digests of the weights that a vLLM server computes with, to prove that a trainer's weights arrived.

`WeightReader` is a worker extension (vLLM's `--worker-extension-cls`), whose methods are called through vLLM's route
`/collective_rpc`. `rg_env_layout` finds out where each of the trainer's tensors is stored on the server, although vLLM
fuses, pads, shards and transposes weights: vLLM's own loading functions run on tensors without memory, and each copy
that they make into a parameter is recorded instead of performed. `rg_env_digests` then reads the weights at these
places.

vLLM packs the weights of linear layers on a CPU, where only the layer's function is left. The reader therefore passes
one-hot rows to the layer, which return columns of the weight exactly. Each round reads other columns, so that all
columns are read in turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rg_env.inference.vllm.shared_weights import SHAPE

COLUMNS = 16
"""Minimum number of columns to read from a packed weight in each round (or all, if there are fewer)."""
_BLOCK = 2**17, 2**24
"""Number of elements to convert to integers at once on a CPU (where they fit in its cache) and on other devices."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(values: torch.Tensor, positions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of `bits * position` over all elements, modulo 2**64, as an int64 tensor of shape `()`.

    The digests of a tensor's parts add up to the digest of the tensor, in whatever way it is split over processes.

    Args:
        values: tensor whose bits are read as integers.
        positions: one int64 tensor per dimension. An element's position is the sum of their entries at its indices.
    """
    bits = values.view(_BITS[values.dtype.itemsize])
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    first, *rest = (position.to(values.device) for position in positions)
    rows = max(1, _BLOCK[values.device.type != "cpu"] // max(1, bits[:1].numel()))
    for block, along_block in zip(bits.split(rows), first.split(rows), strict=True):
        integers = block.to(torch.int64)
        for dim, position in enumerate([along_block, *rest]):
            others = [other for other in range(bits.ndim) if other != dim]
            total += ((integers.sum(others) if others else integers) * position).sum()
    return total


def whole_digest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the digest of a complete tensor, in which the first element has position 1."""
    tensor = tensor.reshape(-1) if tensor.ndim == 0 else tensor
    return digest(tensor, _positions(torch.empty(tensor.shape, device="meta")))


def columns_digest(tensor: torch.Tensor, round_: int) -> torch.Tensor:
    """Return the digest of the columns of a matrix (rows, columns) that are read in round `round_`."""
    rows, width = tensor.shape
    columns = sampled_columns(width, round_)
    positions = [1 + width * torch.arange(rows), columns]
    return digest(_without_negative_zeros(tensor[:, columns.to(tensor.device)]), positions)


def sampled_columns(width: int, round_: int) -> torch.Tensor:
    """Return the indices of the columns that are read in round `round_` from a weight with `width` columns."""
    step = max(1, width // COLUMNS)
    return torch.arange(round_ % step, width, step)


@dataclass(frozen=True)
class _Place:
    """A part of a trainer's tensor and its place in a parameter."""

    layer: nn.Module
    name: str
    """Name of the parameter in the layer."""
    parameter: torch.Tensor
    """The parameter as vLLM loads it, before any packing. This tensor and the views below have no memory."""
    target: torch.Tensor
    """View of `parameter`."""
    source: torch.Tensor
    """View of the trainer's tensor, with the same shape."""
    width: int
    """Number of columns of the trainer's tensor."""

    @property
    def is_plain(self) -> bool:
        """Whether the parameter still has the shape and type in which it was loaded."""
        live = getattr(self.layer, self.name)
        return bool(live.shape == self.parameter.shape and live.dtype == self.parameter.dtype)

    @property
    def is_packed(self) -> bool:
        """Whether the layer computes with a packed copy of the weight."""
        has_rows = self.parameter.ndim == 2 and self.target.stride()[1:] == self.source.stride()[1:] == (1,)
        return self.name == "weight" and has_rows and hasattr(self.layer, "cpu_linear")

    def plain(self) -> tuple[int, torch.Tensor]:
        """Return the number of elements in this place and their digest."""
        live, target = getattr(self.layer, self.name).detach().contiguous(), self.target
        values = live.as_strided(target.shape, target.stride(), live.storage_offset() + target.storage_offset())
        return values.numel(), digest(values, _positions(self.source))

    def packed(self, round_: int, read: dict[Any, torch.Tensor]) -> tuple[int, torch.Tensor]:
        """Like `plain`, for the columns that are read in this round. `read` caches the columns of layers."""
        rows, columns = self.target.shape
        row, column = divmod(self.target.storage_offset(), self.parameter.shape[1])
        source_row, source_column = divmod(self.source.storage_offset(), self.width)
        sampled = sampled_columns(self.width, round_)
        sampled = sampled[(sampled >= source_column) & (sampled < source_column + columns)]
        inputs = sampled - source_column + column
        key = (self.layer, tuple(inputs.tolist()))
        if key not in read:
            one_hot = torch.zeros(len(inputs), self.parameter.shape[1], dtype=self.parameter.dtype)
            one_hot[torch.arange(len(inputs)), inputs] = 1
            read[key] = self.layer.cpu_linear(one_hot, self.layer.weight, None)
        values = read[key][:, row : row + rows].T.to(self.parameter.dtype).contiguous()
        positions = [1 + self.width * (source_row + torch.arange(rows)), sampled]
        return values.numel(), digest(_without_negative_zeros(values), positions)


class WeightReader:
    """Worker extension that reads weights back. vLLM adds this class to the bases of its worker class."""

    def rg_env_layout(self, tensors: list[tuple[str, list[int]]]) -> dict[str, Any]:
        """Describe this worker's model, and find the places of the trainer's `tensors` (names and shapes).

        The result has the weight-transfer backend, the data type, the quantization and sizes of the model, and for each
        tensor that this worker has: its data type, whether its parameter can be read, and whether the layer computes
        with a packed copy.
        """
        from vllm.config import set_current_vllm_config

        worker: Any = self
        config = worker.model_config
        with set_current_vllm_config(worker.vllm_config):
            self._rg_env_places, problem = _places(worker.model_runner.get_model(), tensors)
        return {
            "backend": getattr(worker.vllm_config.weight_transfer_config, "backend", None),
            "dtype": str(config.dtype).removeprefix("torch."),
            "quantization": config.quantization,
            "shape": {name: getattr(config.hf_text_config, name, None) for name in SHAPE},
            "problem": problem,
            "tensors": {
                name: [
                    str(places[0].parameter.dtype).removeprefix("torch."),
                    all(place.is_plain for place in places),
                    all(place.is_packed for place in places),
                ]
                for name, places in self._rg_env_places.items()
            },
        }

    def rg_env_digests(self, round_: int) -> dict[str, list[int]]:
        """Return the number of elements read and their digest, for each tensor that this worker has and can read."""
        found: dict[str, tuple[int, torch.Tensor]] = {}
        read: dict[Any, torch.Tensor] = {}
        with torch.inference_mode():
            for name, places in self._rg_env_places.items():
                parts = [place.plain() for place in places] if all(each.is_plain for each in places) else []
                if all(each.is_packed for each in places):
                    parts += [place.packed(round_, read) for place in places]
                if parts:
                    found[name] = (sum(count for count, _ in parts), torch.stack([part for _, part in parts]).sum())
        digests = torch.stack([each for _, each in found.values()]).tolist() if found else []
        return {name: [count, each] for (name, (count, _)), each in zip(found.items(), digests, strict=True)}


class _Copies(TorchDispatchMode):
    """Records copies as (destination, source) instead of performing them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.found.append((args[0], args[1]))
            return args[0]
        return func(*args, **(kwargs or {}))


def _places(model: Any, tensors: Sequence[tuple[str, Sequence[int]]]) -> tuple[dict[str, list[_Place]], str | None]:
    """Return the places of tensors (names and shapes) in `model`'s parameters as they were before any packing, and the
    first problem, if any. Tensors that vLLM does not copy element by element are omitted."""
    from vllm.model_executor.model_loader.reload.layerwise import _get_original_loader, get_layerwise_info
    from vllm.model_executor.model_loader.reload.meta import restore_layer_on_meta

    sent = {name: torch.empty(tuple(shape), device="meta") for name, shape in tensors}
    live = [
        (layer, dict(layer._parameters), dict(layer._buffers), set(layer._non_persistent_buffers_set))
        for layer in model.modules()
    ]
    copies = _Copies()
    try:
        for layer, *_ in live:
            restore_layer_on_meta(layer, get_layerwise_info(layer))
        owners = {
            _storage(tensor): (layer, name, tensor)
            for layer, *_ in live
            for name, tensor in [*layer._parameters.items(), *layer._buffers.items()]
            if tensor is not None
        }
        for _, _, tensor in owners.values():  # an earlier update may have left a loader that ignores what it gets
            if hasattr(tensor, "weight_loader"):
                tensor.weight_loader = _get_original_loader(tensor)
        with torch.no_grad(), copies:
            problem = _load(model, list(sent.items()))
        return _matched(sent, copies.found, owners), problem
    finally:
        for layer, parameters, buffers, non_persistent in live:
            layer._parameters.clear()
            layer._parameters.update(parameters)
            layer._buffers.clear()
            layer._buffers.update(buffers)
            layer._non_persistent_buffers_set.clear()
            layer._non_persistent_buffers_set.update(non_persistent)


def _load(model: Any, tensors: list[tuple[str, torch.Tensor]]) -> str | None:
    """Load as many of the tensors as possible, and return the first problem, if any. A loading function may fail on a
    tensor without memory; loading then continues with the next tensor."""

    def each() -> Iterator[tuple[str, torch.Tensor]]:
        while tensors:
            yield tensors.pop(0)

    left, problem = len(tensors) + 1, None
    while 0 < len(tensors) < left:
        left = len(tensors)
        try:
            model.load_weights(each())
        except Exception as error:
            problem = problem or f"{type(error).__name__}: {error}"
    return problem


def _matched(
    sent: dict[str, torch.Tensor],
    copies: list[tuple[torch.Tensor, torch.Tensor]],
    owners: dict[int, tuple[nn.Module, str, torch.Tensor]],
) -> dict[str, list[_Place]]:
    """Return the places of the tensors `sent`, given all copies and the parameters by storage."""
    names = {_storage(tensor): name for name, tensor in sent.items()}
    found: dict[str, list[_Place]] = {}
    for target, source in copies:
        name, owner = names.get(_storage(source)), owners.get(_storage(target))
        if name is None or owner is None or target.shape != source.shape:
            continue
        layer, parameter, loaded = owner
        if target.ndim == 0:
            target, source = target.reshape(1), source.reshape(1)
        width = sent[name].shape[-1] if sent[name].ndim else 1
        found.setdefault(name, []).append(_Place(layer, parameter, loaded, target, source, width))
    return found


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _positions(view: torch.Tensor) -> list[torch.Tensor]:
    """Return the positions (see `digest`) of a view's elements in the tensor that it belongs to, starting with 1."""
    first, *rest = (stride * torch.arange(size) for size, stride in zip(view.shape, view.stride(), strict=True))
    return [1 + view.storage_offset() + first, *rest]


def _without_negative_zeros(values: torch.Tensor) -> torch.Tensor:
    """Return a copy in which zeros are positive, as in a product with one-hot rows."""
    return values + 0.0
