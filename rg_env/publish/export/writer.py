"""Safetensors files written tensor by tensor: no more than one of them is in memory.

The format (github.com/huggingface/safetensors): 8 bytes with the length of the head, the head (JSON: name → type,
shape, first and last byte), then the values, one tensor after the other, little-endian.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from rg_env.errors import InputError
from rg_env.training.checkpointing.files import WEIGHTS
from rg_env.training.checkpointing.readers import SAFETENSORS_NAMES

SHARD_BYTES = 5 * 10**9
"""Of one file; transformers writes as much."""

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Name → shape and type, in the order of writing."""


def size(layout: Layout) -> int:
    """Bytes of all values."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())


def write(
    folder: Path,
    layout: Layout,
    tensor: Callable[[str], torch.Tensor],
    *,
    shard_bytes: int = SHARD_BYTES,
    name: str = WEIGHTS,
) -> list[Path]:
    """Write what `tensor` gives for each name of `layout`; with an index, where it takes several files.

    Raises:
        OSError: the disk is full, or will not be written.
    """
    if sys.byteorder != "little":
        raise InputError("safetensors files are little-endian, and this machine is not: export on another")
    shards = list(_shards(layout, shard_bytes))
    stem = name.removesuffix(".safetensors")
    files = [
        folder / (name if len(shards) == 1 else f"{stem}-{number:05}-of-{len(shards):05}.safetensors")
        for number in range(1, len(shards) + 1)
    ]
    for file, shard in zip(files, shards, strict=True):
        _write_one(file, shard, tensor)
    if len(files) > 1:
        places = {key: file.name for file, shard in zip(files, shards, strict=True) for key in shard}
        index = {"metadata": {"total_size": size(layout)}, "weight_map": dict(sorted(places.items()))}
        (folder / f"{name}.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return files


def _shards(layout: Layout, limit: int) -> Iterator[Layout]:
    shard: Layout = {}
    for key, entry in layout.items():
        if shard and size(shard) + size({key: entry}) > limit:
            yield shard
            shard = {}
        shard[key] = entry
    yield shard


def _write_one(file: Path, layout: Layout, tensor: Callable[[str], torch.Tensor]) -> None:
    # The widest types first: then each value stands at a multiple of its size.
    names = sorted(layout, key=lambda key: -layout[key][1].itemsize)
    head: dict[str, Mapping[str, object]] = {"__metadata__": {"format": "pt"}}
    at = 0
    for key in names:
        shape, dtype = layout[key]
        end = at + math.prod(shape) * dtype.itemsize
        head[key] = {"dtype": SAFETENSORS_NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for key in names:
            shape, dtype = layout[key]
            value = tensor(key)
            if tuple(value.shape) != shape or value.dtype != dtype:
                raise ValueError(f"{key}: {tuple(value.shape)} of {value.dtype} is not {shape} of {dtype}")
            stream.write(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
