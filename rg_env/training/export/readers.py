"""Weights by name, whatever the files are; and those in safetensors and .bin files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from rg_env.errors import InputError
from rg_env.training.export.pickles import WINDOW_BYTES, Window
from rg_env.training.saved_weights import ADAPTER, WEIGHTS

BIN = "pytorch_model.bin"


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


class SafetensorsReader:
    """Weights in safetensors files, one or several with an index. Raises `InputError` where they are damaged."""

    def __init__(self, folder: Path, name: str = WEIGHTS):
        self.described = "safetensors"
        self._files = _files(folder, name)
        self._opened: dict[Path, Any] = {}
        self._spent = 0
        self._stored: dict[str, Stored] = {}
        self._place: dict[str, Path] = {}
        for file in self._files:
            weights = self._open(file)
            for key in weights.keys():  # noqa: SIM118
                if key in self._place:
                    raise InputError(f"{file}: {key} stands in {self._place[key].name} too: which one is meant?")
                part = weights.get_slice(key)
                if part.get_dtype() not in _DTYPES:
                    raise InputError(f"{file}: {key} is of type {part.get_dtype()}, which is not exported")
                self._stored[key] = Stored(tuple(part.get_shape()), _DTYPES[part.get_dtype()])
                self._place[key] = file

    def stored(self) -> dict[str, Stored]:
        return self._stored

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._open(self._place[name]).get_tensor(name)
        self._spent += tensor.nbytes
        if self._spent >= WINDOW_BYTES:  # see Window
            self._spent = 0
            self._opened.clear()
        return tensor

    def _open(self, file: Path) -> Any:
        if file not in self._opened:
            try:
                self._opened[file] = safe_open(file, framework="pt")
            except (OSError, SafetensorError, ValueError) as error:
                raise InputError(f"{file} is truncated, damaged, or no safetensors file: copy it again") from error
        return self._opened[file]


class BinReader:
    """Weights that torch saved, in `pytorch_model.bin`, one file or several with an index."""

    def __init__(self, folder: Path):
        self.described = "pytorch_model.bin"
        self._window = Window()
        self._stored: dict[str, Stored] = {}
        self._place: dict[str, Any] = {}
        for path in _files(folder, BIN):
            file = self._window.file(path, _tensors)
            for key, tensor in file.content.items():
                if key in self._place:
                    raise InputError(f"{path}: {key} stands in {self._place[key].path.name} too: which one is meant?")
                self._stored[key] = Stored(tuple(tensor.shape), tensor.dtype)
                self._place[key] = file

    def stored(self) -> dict[str, Stored]:
        return self._stored

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._place[name].content[name]
        self._window.spend(tensor.nbytes)
        return tensor


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


def pieces(parts: Sequence[torch.Tensor], start: int, count: int) -> list[torch.Tensor]:
    """`count` values from `start` on of these flat tensors, taken as one after the other, without copying."""
    found = []
    for part in parts:
        if start < part.numel() and count > 0:
            taken = min(count, part.numel() - start)
            found.append(part.narrow(0, start, taken))
            start, count = 0, count - taken
        else:
            start -= min(start, part.numel())
    return found


def _files(folder: Path, name: str) -> list[Path]:
    # A folder with both is read as transformers does: from the single file.
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}.index.json"
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        files = [folder / part for part in sorted(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} cannot be read, or is no index of weights") from error
    if strange := [file for file in files if file.parent != folder]:
        raise InputError(f"{index} names a file elsewhere: {strange[0]}")
    if missing := [file.name for file in files if not file.is_file()]:
        raise InputError(f"{folder} lacks {missing[0]}, which {index.name} names: copy it again")
    return files


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
