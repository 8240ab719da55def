"""Export a checkpoint as a model folder for `from_pretrained` and vLLM, and verify the result.

    folder = export(ExportRequest(Path("outputs/RUN/checkpoint-25"), dtype="bf16"))

Weights are read, rounded and written file by file to a temporary folder, which is renamed once the written model has
been compared with the trained one. If a check fails, the temporary folder is deleted. The comparison needs memory for
one copy of the model in float32, or for two if adapters are merged.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from safetensors.torch import save_file

from rg_env.core.run_folder import RunFolder, removed_on_error
from rg_env.core.text import counted
from rg_env.errors import ExportError, InputError, OutputFolderError, RGEnvError
from rg_env.publish import verify
from rg_env.publish.checkpoint import Checkpoint, find_checkpoint, has_weights
from rg_env.publish.model import Architecture, Companions, adapted, merged, trained_weights
from rg_env.publish.weights import Weights, in_memory, read_weights
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS

RUN = "run"
"""Folder with files of the run in an export or a published model."""
Say = Callable[[str], None]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SHARD_SIZE = "5GB"
_HEADROOM = 2**20
_REMEDIES = {
    torch.float16: "fp16: use bf16",
    torch.bfloat16: "bf16: use fp32",
    torch.float32: "fp32: check that training did not diverge",
}


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
        companions = Companions(checkpoint)
        described, weights = trained_weights(checkpoint)
        step = "" if checkpoint.step is None else f", step {checkpoint.step}"
        say(f"exporting {checkpoint.folder}: {described}{', merged' if request.merge_lora else ''}{step}")
        write(request, checkpoint, companions, weights, aside, say)
        _copy_run(checkpoint.run, aside / RUN)
    return out


def _copy_run(run: RunFolder | None, folder: Path) -> None:
    """Copy the files from which evaluations read the settings and the training questions, because the export may be
    moved away from its run. Published models contain the same files."""
    for file in (run.config_file, run.arguments_file, run.manifest_file) if run else ():
        if file.is_file():
            folder.mkdir(exist_ok=True)
            shutil.copyfile(file, folder / file.name)


def check_exportable(checkpoint: Checkpoint) -> None:
    """Check files, names and shapes, without reading all weights.

    Raises:
        InputError: a file is missing or damaged.
        ExportError: the weights do not match the configuration.
    """
    companions, (_, weights) = Companions(checkpoint), trained_weights(checkpoint)
    if checkpoint.kind != "adapter":
        Architecture(companions.config).match(weights)


def _export_model(
    request: ExportRequest, checkpoint: Checkpoint, companions: Companions, weights: Weights, aside: Path, say: Say
) -> None:
    architecture, reference = Architecture(companions.config), None
    prompts = verify.prompt_ids(companions.tokenizer, architecture.vocabulary)
    if request.merge_lora:
        reference, weights = _merged(checkpoint, weights, prompts)
    weights, left = architecture.match(weights)
    if left:
        more = f" and {len(left) - 1} more" if left[1:] else ""
        say(f"skipped weights that are not part of the model: {left[0]}{more}")
    dtype = _dtype(request, companions, weights)
    companions.write(aside, _name(dtype))
    _write(weights, dtype, aside, WEIGHTS, say)
    if not request.verify:
        return
    verify.load(aside, architecture, dtype)  # load the model as users do
    compared = verify.compared(weights, read_weights("plain", aside)[1], dtype)
    trained = verify.trained_model(architecture, compared)
    reference = verify.logits(trained, prompts) if reference is None else reference
    del trained  # free memory before the exported model is loaded
    whole = not request.merge_lora and _matches_whole(checkpoint, architecture, weights, say)
    rounded = any(weight.dtype != dtype for weight in weights.values() if weight.dtype.is_floating_point)
    tolerance = verify.TOLERANCE[dtype if rounded else torch.float32]
    written = verify.logits(verify.load(aside, architecture, torch.float32), prompts)
    difference = verify.check_logits(reference, written, tolerance)
    tensors = "every tensor equals the trained one" + (f" and the one in {WEIGHTS}" if whole else "")
    say(f"verified: {tensors}; the relative difference of logits on fixed prompts is {difference:.1g}")
    del weights  # free the memory of merged weights
    lossless = not request.merge_lora and not rounded
    load = partial(verify.load, aside, architecture, dtype)
    say(verify.check_answers(checkpoint, load, companions.tokenizer, lossless=lossless))


def _export_adapters(
    request: ExportRequest, checkpoint: Checkpoint, companions: Companions, weights: Weights, aside: Path, say: Say
) -> None:
    shutil.copyfile(checkpoint.weights / "adapter_config.json", aside / "adapter_config.json")
    companions.write(aside, None)
    tokenizer = companions.tokenizer
    dtype = DTYPES[request.dtype] if request.dtype else None
    _write(weights, dtype, aside, ADAPTER, say)
    say(f"the base model is {checkpoint.base.name}")
    if not request.verify:
        return
    model = adapted(checkpoint, aside)
    dict(verify.compared(weights, read_weights("adapter", aside)[1], dtype))
    prompts = verify.prompt_ids(tokenizer, model.get_input_embeddings().weight.shape[0])
    if not torch.isfinite(verify.logits(model, prompts)).all():
        raise ExportError("the base model with these adapters produces non-finite values")
    say("verified: every tensor equals the trained one, and PEFT loads the adapters into the base model")
    lossless = all(weight.dtype == (dtype or weight.dtype) for weight in weights.values())
    say(verify.check_answers(checkpoint, lambda: model, tokenizer, lossless=lossless))


def _merged(checkpoint: Checkpoint, weights: Weights, prompts: torch.Tensor) -> tuple[torch.Tensor, Weights]:
    """Return the logits of the base model with the adapters (computed by PEFT), and the merged weights."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(checkpoint.weights / "adapter_config.json", Path(folder) / "adapter_config.json")
        _write(weights, None, Path(folder), ADAPTER, lambda _: None)
        model = adapted(checkpoint, Path(folder))
    reference = verify.logits(model, prompts)  # computed first, because merging changes the model
    return reference, in_memory(merged(model))


def _matches_whole(checkpoint: Checkpoint, architecture: Architecture, weights: Weights, say: Say) -> bool:
    """Whether the checkpoint also has complete weights that the trainer gathered from the shards.

    Raises:
        ExportError: the gathered weights differ from the shards.
    """
    folder = checkpoint.parts.get("plain")
    if checkpoint.kind == "plain" or folder is None or not has_weights(folder, WEIGHTS):
        return False
    try:
        whole, _ = architecture.match(read_weights("plain", folder)[1])
    except ExportError as error:
        say(f"{WEIGHTS} next to the shards is ignored: {error}")
        return False
    for name, weight in weights.items():
        if not torch.equal(whole[name].read(), weight.read().to(whole[name].dtype)):
            raise ExportError(
                f"{name} differs between the shards and {folder}: one of them is damaged or from another step; "
                "keep only the correct one"
            )
    return True


def _dtype(request: ExportRequest, companions: Companions, weights: Weights) -> torch.dtype:
    if request.dtype:
        return DTYPES[request.dtype]
    names = {_name(dtype): dtype for dtype in DTYPES.values()}
    first = next(iter(weights.values())).dtype
    return names.get(companions.dtype or "") or (first if first in names.values() else torch.float32)


def _write(weights: Weights, dtype: torch.dtype | None, folder: Path, name: str, say: Say) -> None:
    """Write the weights as safetensors, file by file. If `dtype` is None, all weights keep their dtypes; integer and
    boolean tensors always do."""
    kinds = {key: dtype if dtype and each.dtype.is_floating_point else each.dtype for key, each in weights.items()}
    described = {key: torch.empty(each.shape, dtype=kinds[key], device="meta") for key, each in weights.items()}
    size = sum(each.nbytes for each in described.values())
    free = shutil.disk_usage(folder).free
    if free < size + _HEADROOM:
        raise OutputFolderError(
            f"the export needs {size / 1e6:,.0f} MB in {folder.parent}, but only {free / 1e6:,.0f} MB is available: "
            "free some space, or choose another folder with --output-dir"
        )
    pattern = name.replace(".safetensors", "{suffix}.safetensors")
    plan = split_torch_state_dict_into_shards(described, filename_pattern=pattern, max_shard_size=SHARD_SIZE)
    for file, names in plan.filename_to_tensors.items():
        tensors = {key: _finite(key, weights[key].read(), kinds[key]) for key in names}
        try:
            save_file(tensors, folder / file, metadata={"format": "pt"})
        except SafetensorError as error:  # raised if the disk is full
            if number := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
            raise
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / f"{name}.index.json").write_text(json.dumps(index, indent=2))
    count, files = sum(each.numel() for each in described.values()), len(plan.filename_to_tensors)
    types = ", ".join(sorted({_name(each) for each in kinds.values()}))
    say(
        f"{counted(len(described), 'tensor')}, {count / 1e6:,.2f} M parameters in {types}: {size / 1e6:,.1f} MB in "
        f"{counted(files, 'file')}"
    )


def _finite(name: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert `value` to `dtype`. Raises `ExportError` if any value is not finite, before or after the conversion."""
    if value.is_floating_point() and value.numel():
        low, high = torch.aminmax(value)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise ExportError(f"{name} has non-finite values (NaN or infinity) in the checkpoint")
        largest = max(-low.item(), high.item())
        if largest > torch.finfo(dtype).max:
            raise ExportError(f"{name} has values up to {largest:.3g}, too large for {_REMEDIES[dtype]}")
    value = value.detach().to(dtype).contiguous()
    is_view = value.untyped_storage().nbytes() != value.nbytes  # save_file would write the whole storage
    return value.clone() if is_view else value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
            aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
            try:
                yield aside
                mask = os.umask(0)
                os.umask(mask)
                aside.chmod(0o777 & ~mask)  # like mkdir
                aside.rename(out)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
    except RGEnvError:
        raise
    except OSError as error:
        raise OutputFolderError(f"cannot write {out}: {error.strerror}; partial files were removed") from error
