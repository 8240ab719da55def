"""Read weights by name from a checkpoint.

`plain`      safetensors or pytorch_model.bin, one file or several with an index
`deepspeed`  shards from ZeRO-1, ZeRO-2 or ZeRO-3, read with DeepSpeed's `zero_to_fp32`

Unsharded tensors stay in their memory-mapped files, and sharded tensors are assembled in memory. The folder may come
from anyone, so code in it is never executed: torch and DeepSpeed read all pickles with `weights_only=True`. For
DeepSpeed's shards, its own classes are added to those that torch allows.
"""

import io
import pickle
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from rg_env.core.text import counted, one_line
from rg_env.errors import InputError, RGEnvError
from rg_env.publish.checkpoint import BIN, Kind
from rg_env.training.checkpointing.files import WEIGHTS, weight_files

StateDict = dict[str, torch.Tensor]
"""Weights by name."""


def read_weights(kind: Kind, folder: Path) -> tuple[str, StateDict]:
    """Read the weights in `folder`, which have the format `kind`. Returns a description of the format, and the weights.

    Raises:
        InputError: a file is missing, damaged, from another checkpoint or in an unknown format.
    """
    try:
        described, found = _READERS[kind](folder)
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.is_meta or value.is_sparse:
                raise TypeError(f"{name} is not a dense tensor")
    except RGEnvError:
        raise
    except Exception as error:  # damaged files can raise any exception
        reason = one_line(f"{type(error).__name__}: {error}", 400)
        raise InputError(f"{folder} has damaged files, or files in an unknown format ({reason})") from error
    return described, {name: value.detach() for name, value in found.items()}


def _plain(folder: Path) -> tuple[str, StateDict]:
    found = _files(folder, WEIGHTS)
    return ("safetensors", found) if found else (BIN, _files(folder, BIN))


def _files(folder: Path, name: str) -> StateDict:
    found: StateDict = {}
    for file in weight_files(folder, name):
        try:
            tensors = _load(file) if name == BIN else load_file(file)
        except SafetensorError as error:
            raise InputError(f"{file} is truncated, damaged, or not a safetensors file: copy it again") from error
        if both := sorted(found.keys() & tensors.keys()):
            raise InputError(f"{both[0]} is both in {file} and in another file: keep only one of the two files")
        found |= tensors
    return found


def _load(file: Path) -> Any:
    """Return the contents of a file that torch saved, with memory-mapped tensors. Raises `InputError` if the file is
    damaged, or contains anything other than tensors, plain values and allowed classes."""
    try:
        return torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # a damaged file can raise any exception
        refused = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if refused:
            raise InputError(f"{file} contains {refused[1]}, which no checkpoint needs; it was not executed") from error
        raise InputError(f"{file} is truncated, damaged, or not a torch file: copy it again") from error


def _deepspeed(folder: Path) -> tuple[str, StateDict]:
    # DeepSpeed passes weights_only=False, which this environment variable overrides.
    weights_only = patch.dict("os.environ", TORCH_FORCE_WEIGHTS_ONLY_LOAD="1")
    with weights_only, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
            from deepspeed.runtime.zero.config import ZeroStageEnum
            from deepspeed.utils.tensor_fragment import fragment_address
            from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        except ImportError as error:
            raise InputError(f"reading {folder} requires deepspeed: `pip install deepspeed`") from error

        def member(kind: Any, name: str) -> ZeroStageEnum:
            """Replace `getattr`, which Python 3.11.0 to 3.11.3 use to pickle members of an enum."""
            if kind is not ZeroStageEnum:
                raise pickle.UnpicklingError("GLOBAL builtins.getattr")
            return ZeroStageEnum[name]

        allowed = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address, (member, "builtins.getattr")]
        with torch.serialization.safe_globals(allowed):
            # All files are read here first, because DeepSpeed's errors do not name the file.
            contents = {file.name: _load(file) for file in sorted(folder.glob("*_states.pt"))}
            found = get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), folder.name)
    shards = [content["optimizer_state_dict"] for name, content in contents.items() if name.endswith("optim_states.pt")]
    return f"ZeRO-{int(shards[0]['zero_stage'])} shards of {counted(len(shards), 'process')}", found


_READERS: dict[Kind, Callable[[Path], tuple[str, StateDict]]] = {"plain": _plain, "deepspeed": _deepspeed}
