"""An export: find the checkpoint, read its weights, write them aside, verify them, rename the folder."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError

from rg_env.errors import ExportError, InputError
from rg_env.publish.export import adapters, verify
from rg_env.publish.export.architecture import Architecture
from rg_env.publish.export.companions import Companions
from rg_env.publish.export.destination import check_space, written_aside
from rg_env.publish.export.locate import Checkpoint, locate
from rg_env.publish.export.weights import Tensors, Weights, check_type, has_weights, read_weights
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SHARD_SIZE = "5GB"
_REMEDIES = {
    torch.float16: "fp16: use bf16",
    torch.bfloat16: "bf16: use fp32",
    torch.float32: "fp32: is that what was trained?",
}


@dataclass(frozen=True)
class ExportRequest:
    """What to export, and how."""

    path: Path
    """A checkpoint, or a run that has some."""
    out: Path | None = None
    """A new folder; default: the checkpoint's name with "-export", next to it."""
    dtype: str | None = None
    """"bf16", "fp16" or "fp32"; default: the dtype of the run or of the configuration."""
    merge_lora: bool = False
    """Merge adapters into the base model, instead of exporting the adapters alone."""
    verify: bool = True
    best: bool = False
    """For a run: its checkpoint with the best recorded accuracy, instead of the last one."""
    base: str | None = None
    """The model that was trained, if the checkpoint does not name it: a folder, or a name on the Hub."""


def export(request: ExportRequest, say: Callable[[str], None] = print) -> Path:
    """Create the folder, report progress with `say`, and return the folder.

    Raises:
        InputError: there is no checkpoint that can be read, or it lacks something; the folder exists or cannot be
            written.
        ExportError: a check failed. Nothing is left of the folder.
    """
    checkpoint = locate(request.path, best=request.best)
    if request.merge_lora and checkpoint.kind != "adapter":
        raise InputError(f"{checkpoint.folder} has no adapters to merge: omit --merge-lora")
    folder = Path(os.path.abspath(checkpoint.folder))  # "." and ".." have no names
    out = request.out or folder.with_name(f"{folder.name}-export")
    with written_aside(out) as aside:
        if checkpoint.kind == "adapter" and not request.merge_lora:
            _export_adapters(request, checkpoint, aside, say)
        else:
            _export_model(request, checkpoint, aside, say)
    return out


def _export_model(request: ExportRequest, checkpoint: Checkpoint, aside: Path, say: Callable[[str], None]) -> None:
    companions = Companions(checkpoint, request.base)
    architecture = Architecture(companions.config())
    unmerged = None
    if checkpoint.kind == "adapter":
        weights = _adapters(checkpoint)
        unmerged = _on_base(companions, weights.tensors, checkpoint)
        _report(checkpoint, f"{weights.described}, merged", say)
    else:
        weights = read_weights(checkpoint.kind, checkpoint.weights)
        _report(checkpoint, weights.described, say)
    tokenizer = companions.tokenizer()
    ids, counts = verify.prompt_ids(tokenizer, architecture.model.get_input_embeddings().weight.shape[0])
    reference = verify.logits(unmerged, ids, counts) if unmerged and request.verify else None  # merging changes it
    tensors, left = architecture.match(adapters.merged(unmerged) if unmerged else weights.tensors)
    if left:
        say(f"left out, not part of the model: {left[0]}" + (f" and {len(left) - 1} more" if left[1:] else ""))
    dtype = _dtype(request, companions, tensors)
    companions.write(aside, _name(dtype))
    _write(tensors, dtype, aside, WEIGHTS, say)
    if not request.verify:
        return
    verify.load(aside, architecture, dtype)  # as users load it
    exported = verify.load(aside, architecture, torch.float32)
    verify.check_tensors(exported, tensors, dtype)
    told = "each tensor is the trained one"
    if _matches_whole(checkpoint, architecture, tensors, say):
        told += f", and that of {WEIGHTS} next to the shards"
    if reference is None:
        reference = verify.trained_logits(architecture, tensors, ids, counts)
    rounded = any(value.dtype != dtype for value in tensors.values() if value.is_floating_point())
    tolerance = verify.TOLERANCE[dtype if rounded else torch.float32]
    difference = verify.check_logits(reference, verify.logits(exported, ids, counts), tolerance)
    say(f"verified: {told}; logits on fixed prompts differ by {difference:.1g} of their size")
    lossless = unmerged is None and not rounded
    del exported, weights, tensors, unmerged  # the model that answers is then the only one in memory
    say(_answers(checkpoint, lambda: verify.load(aside, architecture, dtype), tokenizer, lossless))


def _export_adapters(request: ExportRequest, checkpoint: Checkpoint, aside: Path, say: Callable[[str], None]) -> None:
    companions = Companions(checkpoint, request.base)
    weights = _adapters(checkpoint)
    _report(checkpoint, weights.described, say)
    shutil.copyfile(checkpoint.weights / "adapter_config.json", aside / "adapter_config.json")
    companions.write(aside, None)
    tokenizer = companions.tokenizer()
    dtype = DTYPES[request.dtype] if request.dtype else None
    _write(weights.tensors, dtype, aside, ADAPTER, say)
    say(f"the base model is {companions.base}")
    if not request.verify:
        return
    base = adapters.base_model(companions.base_name)
    model = adapters.adapted(base, aside)
    written = read_weights("adapter", aside).tensors
    for name, value in weights.tensors.items():
        if not torch.equal(written[name], value.to(written[name].dtype)):
            raise ExportError(f"{name} was not exported as it is in the checkpoint")
    ids, counts = verify.prompt_ids(tokenizer, base.get_input_embeddings().weight.shape[0])
    if not torch.isfinite(verify.logits(model, ids, counts)).all():
        raise ExportError("the base model with these adapters computes values that are not finite")
    say("verified: each tensor is the trained one, and PEFT loads them on the base model")
    lossless = all(value.dtype == (dtype or value.dtype) for value in weights.tensors.values())
    say(_answers(checkpoint, lambda: model, tokenizer, lossless))


def _adapters(checkpoint: Checkpoint) -> Weights:
    """The adapters' file, or the shards next to it if ZeRO-3 left it empty.

    Raises:
        InputError: there is neither, or they are damaged.
        ExportError: they are empty.
    """
    whole = read_weights("adapter", checkpoint.weights) if has_weights(checkpoint.weights, ADAPTER) else None
    shards = [(kind, folder) for kind, folder in checkpoint.also if kind != "plain"]
    empty = [name for name, tensor in whole.tensors.items() if not tensor.numel()] if whole else []
    if shards and (empty or whole is None):
        weights = read_weights(*shards[0])
        return Weights(f"adapters in {weights.described}", adapters.adapters_in(weights.tensors))
    if whole is None:
        raise InputError(f"{checkpoint.weights} has adapter_config.json but no {ADAPTER}: copy it, too")
    if empty:
        raise ExportError(f"{empty[0]} is empty in the checkpoint, and there are no shards next to it to take it from")
    for name, tensor in whole.tensors.items():
        check_type(name, tensor)
    return whole


def _on_base(companions: Companions, tensors: Tensors, checkpoint: Checkpoint) -> Any:
    """The base model with these adapters, as PEFT has it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(checkpoint.weights / "adapter_config.json", Path(folder) / "adapter_config.json")
        _write(tensors, None, Path(folder), ADAPTER, lambda _: None)
        return adapters.adapted(adapters.base_model(companions.base_name), Path(folder))


def _write(tensors: Tensors, dtype: torch.dtype | None, folder: Path, name: str, say: Callable[[str], None]) -> None:
    """Write the tensors as safetensors; `dtype` None keeps theirs. Masks and counts always keep theirs."""
    rounded = {key: _finite(key, value, dtype) for key, value in tensors.items()}
    size = sum(value.nbytes for value in rounded.values())
    check_space(size, folder)
    pattern = name.replace(".safetensors", "{suffix}.safetensors")
    try:
        save_torch_state_dict(rounded, folder, filename_pattern=pattern, max_shard_size=SHARD_SIZE)
    except SafetensorError as error:  # how it reports a full disk
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise
    count, files = sum(value.numel() for value in rounded.values()), len(list(folder.glob("*.safetensors")))
    kinds = ", ".join(sorted({_name(value.dtype) for value in rounded.values()}))
    say(
        f"{len(rounded)} tensors, {count / 1e6:,.2f} M parameters of {kinds}: {size / 1e6:,.1f} MB in {files} "
        f"file{'' if files == 1 else 's'}"
    )


def _finite(name: str, value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """`value` as `dtype`. Raises `ExportError` if it has or gets values that are not finite."""
    if not value.is_floating_point() or not value.numel():
        return value
    low, high = torch.aminmax(value)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise ExportError(f"{name} has values in the checkpoint that are not finite (NaN, or infinite)")
    dtype = dtype or value.dtype
    largest = max(-low.item(), high.item())
    if largest > torch.finfo(dtype).max:
        raise ExportError(f"{name} has values up to {largest:.3g}, too large for {_REMEDIES[dtype]}")
    value = value.detach().to(dtype).contiguous()
    is_view = value.untyped_storage().nbytes() != value.nbytes  # of a shard, whose other values must not be written
    return value.clone() if is_view else value


def _matches_whole(
    checkpoint: Checkpoint, architecture: Architecture, tensors: Tensors, say: Callable[[str], None]
) -> bool:
    """Whether the weights that the trainer gathered next to its shards are there and complete.

    Raises:
        ExportError: they differ from those in the shards.
    """
    folder = dict(checkpoint.also).get("plain")
    if checkpoint.kind == "adapter" or folder is None or not has_weights(folder, WEIGHTS):
        return False
    try:
        whole, _ = architecture.match(read_weights("plain", folder).tensors)
    except ExportError as error:
        say(f"{WEIGHTS} next to the shards is of no use: {error}")
        return False
    for name, value in tensors.items():
        if not torch.equal(whole[name], value.to(whole[name].dtype)):
            raise ExportError(
                f"{name} differs between the shards and {folder}: one of them is of another step or damaged; leave "
                "only the right one there"
            )
    return True


def _dtype(request: ExportRequest, companions: Companions, tensors: Tensors) -> torch.dtype:
    if request.dtype:
        return DTYPES[request.dtype]
    names = {_name(dtype): dtype for dtype in DTYPES.values()}
    first = next(iter(tensors.values())).dtype
    return names.get(companions.dtype_name() or "") or (first if first in names.values() else torch.float32)


def _answers(checkpoint: Checkpoint, load: Callable[[], Any], tokenizer: Any, lossless: bool) -> str:
    """How the export's answers compare with what the run recorded, or why they are not compared."""
    if checkpoint.run is None:
        return "not compared with the run's accuracy: it is not in a run with evaluations"
    from rg_env.publish.export.recorded import compared  # imports verifiers, which takes a second

    return compared(checkpoint.run, checkpoint.step, load, tokenizer, lossless=lossless)


def _report(checkpoint: Checkpoint, described: str, say: Callable[[str], None]) -> None:
    step = "" if checkpoint.step is None else f", step {checkpoint.step}"
    say(f"exporting {checkpoint.folder}: {described}{step}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
