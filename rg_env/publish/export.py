"""Export a checkpoint as a model folder for `from_pretrained` and vLLM, and verify the result.

    folder = export(ExportRequest(Path("outputs/RUN/checkpoint-25"), dtype="bf16"))

The rounded weights are written to a temporary folder, which is renamed once the written model has been compared with
the trained one. If a check fails, the temporary folder is deleted. An export needs memory for one copy of the model in
float32 and one in the dtype of the export, or for two in float32 if adapters are merged.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError

from rg_env.core.run_folder import removed_on_error
from rg_env.core.text import counted, listed, reason_of
from rg_env.errors import ExportError, InputError, OutputFolderError, RGEnvError
from rg_env.publish import verify
from rg_env.publish.checkpoint import Checkpoint, find_checkpoint
from rg_env.publish.model import Companions, adapted, build, match, trained_weights
from rg_env.publish.weights import Weights, read_weights
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, weight_files
from rg_env.training.weight_sync import unmergeable

RUN = "run"
"""Folder with files of the run in an export or a published model."""
Say = Callable[[str], None]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SHARD_SIZE = "5GB"


@dataclass(frozen=True)
class ExportRequest:
    """Options of an export."""

    path: Path
    """Folder of a checkpoint, or of a run with checkpoints."""
    out: Path | None = None
    """New output folder; default: a folder next to the checkpoint, with the same name plus "-export"."""
    dtype: str | None = None
    """Dtype of the weights: "bf16", "fp16" or "fp32"; default: the run's dtype, or the one in config.json."""
    merge_lora: bool = False
    """Whether to merge adapters into the base model instead of exporting only the adapters."""
    verify: bool = True
    best: bool = False
    """Whether to export a run's checkpoint with the best recorded accuracy instead of the last one."""
    base: str | None = None
    """Base model (folder or name on the Hub), if the checkpoint does not name it."""


def export(request: ExportRequest, say: Say = print) -> Path:
    """Export the model, report progress with `say`, and return the new folder.

    Raises:
        InputError: the checkpoint cannot be read or is incomplete, or the output folder exists or is not writable.
        ExportError: a check failed, and nothing was written to the output folder.
    """
    checkpoint = find_checkpoint(request.path, best=request.best, base=request.base)
    if request.merge_lora and checkpoint.kind != "adapter":
        raise InputError(f"{checkpoint.folder} has no adapters to merge: omit --merge-lora")
    if checkpoint.note:
        say(checkpoint.note)
    folder = Path(os.path.abspath(checkpoint.folder))  # resolves "." and "..", which are not names
    out = request.out or folder.with_name(f"{folder.name}-export")
    write = _export_adapters if checkpoint.kind == "adapter" and not request.merge_lora else _export_model
    with _new_folder(out) as aside:
        write(request, checkpoint, aside, say)
        # Evaluations read settings and training questions from these files, and the export may be moved from its run.
        run = checkpoint.run
        for file in (run.config_file, run.arguments_file, run.manifest_file) if run else ():
            if file.is_file():
                (aside / RUN).mkdir(exist_ok=True)
                shutil.copyfile(file, aside / RUN / file.name)
    return out


def check_exportable(checkpoint: Checkpoint) -> None:
    """Check files, names and shapes.

    Raises:
        InputError: a file is missing or damaged.
        ExportError: the weights do not match the configuration.
    """
    companions, (_, weights) = Companions(checkpoint), trained_weights(checkpoint)
    if checkpoint.kind != "adapter":
        match(build(companions.config), weights)


def _export_model(request: ExportRequest, checkpoint: Checkpoint, aside: Path, say: Say) -> None:
    companions, weights = Companions(checkpoint), _read(request, checkpoint, say)
    model, reference = build(companions.config), None
    prompts = verify.prompt_ids(companions.tokenizer, model.get_input_embeddings().weight.shape[0])
    if request.merge_lora:
        reference, weights = _merged(checkpoint, weights, prompts)
    weights, left = match(model, weights)
    if left:
        say(f"skipped weights that are not part of the model: {listed(left, 1)}")
    names = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}
    first = next(iter(weights.values())).dtype
    default = names.get(companions.dtype) or (first if first in names.values() else torch.float32)
    dtype = DTYPES[request.dtype] if request.dtype else default
    companions.write(aside, str(dtype).removeprefix("torch."))
    _write(weights, dtype, aside, WEIGHTS, say)
    if not request.verify:
        return
    verify.check_tensors(weights, read_weights("plain", aside)[1], "the export differs from the checkpoint")
    tensors = "every tensor equals the trained one"
    if not request.merge_lora and _matches_whole(checkpoint, model, weights, say):
        tensors += f" and the one in {WEIGHTS}"
    rounded = any(weight.dtype != dtype for weight in weights.values() if weight.is_floating_point())
    if reference is None:
        reference = verify.logits(verify.trained_model(model, weights), prompts)
    del model, weights  # free memory before the exported model is loaded
    written = verify.logits(verify.load(aside, torch.float32), prompts)
    difference = verify.check_logits(reference, written, verify.TOLERANCE[dtype if rounded else torch.float32])
    say(f"verified: {tensors}; the relative difference of logits on fixed prompts is {difference:.1g}")
    lossless = not request.merge_lora and not rounded
    load = partial(verify.load, aside, dtype)
    say(verify.check_answers(checkpoint, load, companions.tokenizer, lossless=lossless))


def _export_adapters(request: ExportRequest, checkpoint: Checkpoint, aside: Path, say: Say) -> None:
    companions, weights = Companions(checkpoint), _read(request, checkpoint, say)
    companions.write(aside, None)
    dtype = DTYPES[request.dtype] if request.dtype else None
    _write_adapters(checkpoint, weights, dtype, aside, say)
    say(f"the base model is {checkpoint.base.name}")
    if not request.verify:
        return
    model, tokenizer = adapted(checkpoint, aside), companions.tokenizer
    verify.check_tensors(weights, read_weights("adapter", aside)[1], "the export differs from the checkpoint")
    prompts = verify.prompt_ids(tokenizer, model.get_input_embeddings().weight.shape[0])
    if not torch.isfinite(verify.logits(model, prompts)).all():
        raise ExportError("the base model with these adapters produces non-finite values")
    say("verified: every tensor equals the trained one, and PEFT loads the adapters into the base model")
    lossless = all(weight.dtype == (dtype or weight.dtype) for weight in weights.values())
    say(verify.check_answers(checkpoint, lambda: model, tokenizer, lossless=lossless))


def _read(request: ExportRequest, checkpoint: Checkpoint, say: Say) -> Weights:
    described, weights = trained_weights(checkpoint)
    step = "" if checkpoint.step is None else f", step {checkpoint.step}"
    say(f"exporting {checkpoint.folder}: {described}{', merged' if request.merge_lora else ''}{step}")
    return weights


def _merged(checkpoint: Checkpoint, weights: Weights, prompts: torch.Tensor) -> tuple[torch.Tensor, Weights]:
    """Return the logits of the base model with the adapters (computed by PEFT), and the merged weights."""
    with tempfile.TemporaryDirectory() as folder:
        _write_adapters(checkpoint, weights, None, Path(folder), lambda _: None)
        model = adapted(checkpoint, Path(folder))
    if reason := unmergeable(model):
        raise InputError(f"the adapters cannot be merged: {reason}, or export without --merge-lora")
    reference = verify.logits(model, prompts)  # computed first, because merging changes the model
    return reference, model.merge_and_unload().state_dict()


def _matches_whole(checkpoint: Checkpoint, model: Any, weights: Weights, say: Say) -> bool:
    """Whether the checkpoint also has complete weights that the trainer gathered from the shards.

    Raises:
        ExportError: the gathered weights differ from the shards.
    """
    folder = checkpoint.parts.get("plain")
    if checkpoint.kind == "plain" or folder is None or not weight_files(folder, WEIGHTS):
        return False
    try:
        whole, _ = match(model, read_weights("plain", folder)[1])
    except ExportError as error:
        say(f"{WEIGHTS} next to the shards is ignored: {error}")
        return False
    verify.check_tensors(weights, whole, f"{WEIGHTS} and the shards in {folder} are from different steps, or damaged")
    return True


def _write_adapters(
    checkpoint: Checkpoint, weights: Weights, dtype: torch.dtype | None, folder: Path, say: Say
) -> None:
    shutil.copyfile(checkpoint.weights / "adapter_config.json", folder / "adapter_config.json")
    _write(weights, dtype, folder, ADAPTER, say)


def _write(weights: Weights, dtype: torch.dtype | None, folder: Path, name: str, say: Say) -> None:
    """Write the weights as safetensors. If `dtype` is None, all weights keep their dtypes; integer and boolean tensors
    always do."""
    tensors: Weights = {}
    places: set[int] = set()
    for key, weight in weights.items():
        value = _rounded(key, weight, dtype)
        # Without a copy, only one of the tensors that share memory would be written.
        tensors[key] = value.clone() if value.data_ptr() in places else value
        places.add(value.data_ptr())
    pattern = name.replace(".safetensors", "{suffix}.safetensors")
    save_torch_state_dict(tensors, folder, filename_pattern=pattern, max_shard_size=SHARD_SIZE)
    size, count = sum(each.nbytes for each in tensors.values()), sum(each.numel() for each in tensors.values())
    types = ", ".join(sorted({str(each.dtype).removeprefix("torch.") for each in tensors.values()}))
    say(
        f"{counted(len(tensors), 'tensor')}, {count / 1e6:,.2f} M parameters in {types}: {size / 1e6:,.1f} MB in "
        f"{counted(len(weight_files(folder, name)), 'file')}"
    )


def _rounded(name: str, value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Convert floating-point values to `dtype`, if given. Raises `ExportError` if any value is not finite, before or
    after the conversion."""
    if value.is_floating_point():
        dtype = dtype or value.dtype
        low, high = map(float, torch.aminmax(value)) if value.numel() else (0.0, 0.0)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ExportError(f"{name} has non-finite values (NaN or infinity) in the checkpoint")
        if max(-low, high) > torch.finfo(dtype).max:
            raise ExportError(f"{name} has values that are too large for {dtype}: choose another --dtype")
        value = value.to(dtype)
    value = value.contiguous()
    is_view = value.untyped_storage().nbytes() != value.nbytes  # a file would contain its whole storage
    return value.clone() if is_view else value


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `out`. It is renamed to `out` at the end, or removed if an error occurs.

    Raises:
        OutputFolderError: `out` exists or cannot be written.
    """
    try:
        if out.is_symlink() or out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise OutputFolderError(f"{out} already exists: choose another folder with --output-dir")
        with removed_on_error(out.parent):
            out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".part", dir=out.parent) as parent:
                aside = Path(parent) / out.name
                aside.mkdir()  # with the user's permissions, unlike the temporary folder
                yield aside
                aside.rename(out)
    except RGEnvError:
        raise
    except (OSError, SafetensorError) as error:  # the latter if the disk is full
        raise OutputFolderError(f"cannot write {out}: {reason_of(error)}; partial files were removed") from error
