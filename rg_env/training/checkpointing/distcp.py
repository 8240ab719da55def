"""Weights in folders of torch.distributed.checkpoint (`.metadata` and `*.distcp`), as FSDP's trainers write them.

`.metadata` is a pickle that says which chunks each tensor has, and in which file, at which byte each chunk stands. It
is read by a reader of its own that knows these few classes and nothing else: torch's own executes whatever is in it.
Each chunk is what `torch.save` gives, and is read as such.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata

from rg_env.core.text import one_line
from rg_env.errors import InputError
from rg_env.training.checkpointing.pickles import load_bytes
from rg_env.training.checkpointing.readers import Stored

METADATA = ".metadata"


def _path(*parts: str) -> str:
    return "/".join(parts)


_ALLOWED: dict[tuple[str, str], Any] = {
    **{
        (metadata.__name__, kind.__name__): kind
        for kind in (
            metadata.Metadata,
            metadata.MetadataIndex,
            metadata.TensorStorageMetadata,
            metadata.BytesStorageMetadata,
            metadata.ChunkStorageMetadata,
            metadata.TensorProperties,
            metadata._MEM_FORMAT_ENCODING,
            metadata.StorageMeta,
        )
    },
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("pathlib", "PosixPath"): _path,
    ("pathlib", "WindowsPath"): _path,
    ("pathlib._local", "PosixPath"): _path,
    ("collections", "OrderedDict"): dict,
}


class _Restricted(pickle.Unpickler):
    """Makes objects of the classes of `.metadata` alone."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        kind = getattr(torch, name, None) if module == "torch" and "." not in name else None
        if isinstance(kind, torch.dtype):
            return kind
        raise _Strange(f"{module}.{name}")


class _Strange(Exception):
    """Something else than what stands in metadata."""


class DistcpReader:
    """Reads such a folder. Raises `InputError`: a file is missing, damaged, or holds what does not belong there."""

    def __init__(self, folder: Path):
        self._folder = folder
        found = _metadata(folder / METADATA)
        try:
            self._chunks: dict[str, list[tuple[Any, Any]]] = {}
            self._stored: dict[str, Stored] = {}
            self.objects: list[str] = []
            """Names of what is no tensor: pickles, which are not read here."""
            for name, entry in found.state_dict_metadata.items():
                if isinstance(entry, metadata.TensorStorageMetadata):
                    if len({tuple(chunk.offsets) for chunk in entry.chunks}) < len(entry.chunks):
                        raise ValueError(f"parts of {one_line(name)} have the same place")
                    self._stored[str(name)] = Stored(tuple(entry.size), entry.properties.dtype)
                    self._chunks[str(name)] = [
                        (chunk, found.storage_data[metadata.MetadataIndex(name, chunk.offsets)])
                        for chunk in entry.chunks
                    ]
                else:
                    self.objects.append(one_line(name))
            files = sorted({str(place.relative_path) for chunks in self._chunks.values() for _, place in chunks})
            ends = dict.fromkeys(files, 0)
            for chunks in self._chunks.values():
                for _, place in chunks:
                    ends[place.relative_path] = max(ends[place.relative_path], place.offset + place.length)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            told = one_line(error)
            raise InputError(f"{folder / METADATA} is not what torch.distributed.checkpoint writes: {told}") from error
        for file, end in ends.items():
            self._check_file(folder / file, end)
        self.described = f"torch.distributed.checkpoint, {len(files)} file{'' if len(files) == 1 else 's'}"

    def stored(self) -> dict[str, Stored]:
        return self._stored

    def read(self, name: str) -> torch.Tensor:
        entry = self._stored[name]
        whole, filled = torch.empty(entry.shape, dtype=entry.dtype), 0
        for chunk, place in self._chunks[name]:
            part = self._read_chunk(name, place)
            if part.shape != chunk.sizes:
                raise InputError(f"{self._folder / place.relative_path}: its part of {name} has another shape")
            target = whole
            for dim, (start, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                target = target.narrow(dim, start, size)
            target.copy_(part)
            filled += part.numel()
        if filled != whole.numel():
            raise InputError(f"{self._folder}: the chunks of {name} have {filled} of {whole.numel()} values")
        return whole

    def _read_chunk(self, name: str, place: Any) -> torch.Tensor:
        file = self._folder / place.relative_path
        if getattr(place, "transform_descriptors", None):
            raise InputError(f"{file} is compressed or encrypted ({place.transform_descriptors}): not read here")
        with file.open("rb") as stream:
            stream.seek(place.offset)
            found = load_bytes(io.BytesIO(stream.read(place.length)), file)
        if not isinstance(found, torch.Tensor):
            raise InputError(f"{file} has no tensor where {name} should be")
        return found

    def _check_file(self, file: Path, end: int) -> None:
        if file.parent != self._folder:
            raise InputError(f"{self._folder / METADATA} names a file elsewhere: {one_line(file)}")
        if not file.is_file():
            raise InputError(f"{self._folder} lacks {one_line(file.name)}, which its {METADATA} names: copy all files")
        if file.stat().st_size < end:
            raise InputError(f"{file} is truncated: it has {file.stat().st_size:,} of at least {end:,} bytes")


def _metadata(file: Path) -> Any:
    try:
        with file.open("rb") as stream:
            found = _Restricted(stream).load()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}: without it the .distcp files cannot be read: copy it") from error
    except _Strange as error:
        raise InputError(f"{file} holds {one_line(error)}, which no checkpoint needs; it was not executed") from error
    except Exception as error:  # whatever a damaged pickle raises
        raise InputError(f"{file} is truncated, or damaged: copy it again") from error
    if not isinstance(found, metadata.Metadata):
        raise InputError(f"{file} is not what torch.distributed.checkpoint writes")
    return found
