"""Weights by name, whatever the files are; and those in safetensors and .bin files."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from rg_env.core.text import one_line
from rg_env.errors import InputError, RGEnvError
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, weight_files
from rg_env.training.checkpointing.pickles import Saved, read_into

BIN = "pytorch_model.bin"
_PIECE = 2**20
"""Values that are compared at a time: they stay in the processor's cache."""


@dataclass(frozen=True)
class Stored:
    """What is known of a tensor without reading it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    alias_of: str | None = None
    """The name that it shares its values with, where the files say so."""

    @property
    def empty(self) -> bool:
        return 0 in self.shape


class Reader(Protocol):
    """The weights of a checkpoint."""

    described: str
    """What they are, for people: "ZeRO-3 shards of 2 processes"."""

    def stored(self) -> dict[str, Stored]:
        """All there is, by name."""

    def read(self, name: str) -> torch.Tensor:
        """One of them, whole, on the CPU; not to be changed."""


class GuardedReader:
    """The reader that `make` gives of what lies in `folder`, which may hold anything: what no reader expects of its
    files is an `InputError`, as what it does expect."""

    def __init__(self, make: Callable[[], Reader], folder: Path):
        self._folder = folder
        with self._told():
            self._reader = make()
        self.described = self._reader.described

    def stored(self) -> dict[str, Stored]:
        with self._told():
            found = self._reader.stored()
            if strange := [name for name in found if not isinstance(name, str)]:
                raise TypeError(f"the name {strange[0]!r}")
            return found

    def read(self, name: str) -> torch.Tensor:
        with self._told():
            return self._reader.read(name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except RGEnvError:
            raise
        except OSError as error:
            raise InputError(f"{self._folder} cannot be read: {error.strerror}") from error
        except Exception as error:  # values of any kind, where others are expected
            kind, line = type(error).__name__, one_line(error)
            raise InputError(
                f"{self._folder} has files that are damaged, or of a format that is not read here ({kind}: {line})"
            ) from error


class SafetensorsReader:
    """Weights in safetensors files, one or several with an index. Raises `InputError` where they are damaged."""

    def __init__(self, folder: Path, name: str = WEIGHTS):
        self.described = "LoRA adapters" if name == ADAPTER else "safetensors"
        self._stored: dict[str, Stored] = {}
        self._places: dict[str, tuple[Path, int]] = {}
        for file in weight_files(folder, name):
            for key, (entry, at) in _head(file).items():
                if key in self._places:
                    raise _twice(file, key, self._places[key][0])
                self._stored[key], self._places[key] = entry, (file, at)

    def stored(self) -> dict[str, Stored]:
        return self._stored

    def read(self, name: str) -> torch.Tensor:
        entry, (path, at) = self._stored[name], self._places[name]
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            read_into(file, tensor.view(-1), path)
        return tensor

    def holds(self, name: str, value: torch.Tensor) -> bool:
        """Whether `value`, rounded to the stored type, is what is stored; neither is copied as a whole."""
        entry, (path, at) = self._stored[name], self._places[name]
        if tuple(value.shape) != entry.shape:
            return False
        flat, stored = value.reshape(-1), torch.empty(_PIECE, dtype=entry.dtype)
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            for piece in flat.split(_PIECE) if flat.numel() else ():
                there = stored[: piece.numel()]
                read_into(file, there, path)
                if not torch.equal(piece.to(entry.dtype), there):
                    return False
        return True


def _head(path: Path) -> dict[str, tuple[Stored, int]]:
    """What a safetensors file has, by name, and at which byte (see `writer`)."""
    try:
        with safe_open(path, framework="pt"):  # checks that the head is right and the file as long as it says
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            head = json.loads(file.read(length))
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path} is truncated, damaged, or no safetensors file: copy it again") from error
    head.pop("__metadata__", None)
    for key, entry in head.items():
        if entry["dtype"] not in _DTYPES:
            raise InputError(f"{path}: {key} is of type {entry['dtype']}, which is not exported")
    return {
        key: (Stored(tuple(entry["shape"]), _DTYPES[entry["dtype"]]), 8 + length + entry["data_offsets"][0])
        for key, entry in head.items()
    }


class BinReader:
    """Weights that torch saved, in `pytorch_model.bin`, one file or several with an index."""

    def __init__(self, folder: Path):
        self.described = "pytorch_model.bin"
        self._places: dict[str, Saved] = {}
        for path in weight_files(folder, BIN):
            file = Saved(path, _tensors)
            for key in file.content:
                if key in self._places:
                    raise _twice(path, key, self._places[key].path)
                self._places[key] = file

    def stored(self) -> dict[str, Stored]:
        found = {name: file.content[name] for name, file in self._places.items()}
        return {name: Stored(tuple(tensor.shape), tensor.dtype) for name, tensor in found.items()}

    def read(self, name: str) -> torch.Tensor:
        file = self._places[name]
        return file.whole(file.content[name])


def _twice(path: Path, key: str, other: Path) -> InputError:
    return InputError(f"{path}: {key} stands in {other.name} too: which one is meant?")


def plain_reader(folder: Path) -> Reader:
    """The weights of a model folder: safetensors, or what torch saved."""
    found = next((name for name in (WEIGHTS, BIN) if has_weights(folder, name)), WEIGHTS)
    return SafetensorsReader(folder) if found == WEIGHTS else BinReader(folder)


def has_weights(folder: Path, *names: str) -> bool:
    """Whether there is a file of one of these names, or the index of several."""
    return any((folder / file).is_file() for name in names for file in (name, f"{name}.index.json"))


def has_adapter(folder: Path) -> bool:
    """Whether it says that it holds adapters."""
    return (folder / "adapter_config.json").is_file() or has_weights(folder, ADAPTER)


def check_type(name: str, entry: Stored) -> None:
    """Raise `InputError` where these are no floating-point weights that can be exported."""
    if entry.dtype not in SAFETENSORS_NAMES or not entry.dtype.is_floating_point:
        kind = one_line(entry.dtype).removeprefix("torch.")
        raise InputError(f"{name} is of type {kind}, as quantized weights are, which are not exported")


def _tensors(content: Any) -> dict[str, torch.Tensor]:
    found = {name: value for name, value in dict(content).items() if isinstance(value, torch.Tensor)}
    if not found:
        raise KeyError("tensors by name")
    return found


_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
SAFETENSORS_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
"""What safetensors calls them."""
