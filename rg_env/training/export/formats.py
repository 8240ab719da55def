"""Which reader a checkpoint has, by the kind that `locate` found."""

from collections.abc import Callable
from pathlib import Path

from rg_env.errors import InputError
from rg_env.training.export.adapters import AdapterReader
from rg_env.training.export.distcp import DistcpReader
from rg_env.training.export.dtensor import DTensorReader
from rg_env.training.export.locate import Checkpoint, Kind
from rg_env.training.export.readers import GuardedReader, Reader, SafetensorsReader, has_weights, plain_reader
from rg_env.training.export.zero import ZeroReader
from rg_env.training.saved_weights import ADAPTER

_MAKERS: dict[Kind, Callable[[Path], Reader]] = {
    "plain": plain_reader,
    "deepspeed": ZeroReader,
    "dtensor": DTensorReader,
    "distcp": DistcpReader,
}


def reader_of(kind: Kind, folder: Path) -> Reader:
    """The weights of `kind` in `folder`. Raises `InputError`, also when they are read: the files are damaged."""
    return GuardedReader(lambda: _MAKERS[kind](folder), folder)


def adapter_reader(checkpoint: Checkpoint) -> Reader:
    """The adapters' file, or the shards beside it, where ZeRO-3 left it empty.

    Raises:
        InputError: there is neither, or they are damaged.
    """
    whole = None
    if has_weights(checkpoint.weights, ADAPTER):
        whole = SafetensorsReader(checkpoint.weights, ADAPTER)
        if not any(entry.empty for entry in whole.stored().values()):
            return whole
    others = [(kind, folder) for kind, folder in checkpoint.also if kind != "plain"]
    if others:
        return AdapterReader(reader_of(*others[0]))
    if whole is None:
        raise InputError(f"{checkpoint.weights} has adapter_config.json, and no {ADAPTER} beside it: copy it, too")
    return whole
