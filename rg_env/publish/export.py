"""Export a checkpoint as a model folder for `from_pretrained` and vLLM, and verify the result.

    folder = export(ExportRequest(Path("outputs/RUN/checkpoint-25"), dtype="bf16"))

The weights are converted to the export's dtype and written to a temporary folder. This folder is renamed once the
written model has been verified against the trained model. If a check fails, the temporary folder is deleted. An export
needs memory for two copies of the model: one in float32 and one in the export's dtype, or both in float32 if adapters
are merged. LoRA adapters are always merged into their base model, because the checkpoint's folder already is what an
export of the adapters alone would be.

To verify an export, the folder is loaded with `from_pretrained`, as users would load it. The trained model is built in
float32 from the checkpoint's weights. All tensors must be equal, apart from rounding. On fixed prompts, the logits of
the two models may differ by at most the rounding error of the export's dtype.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from rg_env.core.run_folder import removed_on_error
from rg_env.core.text import counted, reason_of
from rg_env.errors import ExportError, InputError, OutputFolderError, RGEnvError
from rg_env.publish.checkpoint import Checkpoint, check_links, find_checkpoint
from rg_env.publish.model import ModelFiles, adapted, build, match
from rg_env.publish.weights import StateDict, read_weights
from rg_env.training.checkpointing.files import WEIGHTS, weight_files
from rg_env.training.weight_sync import unmergeable

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SHARD_SIZE = "5GB"
PROMPTS = (
    "How many legs are there in total if you have 3 cats and 2 ants?",
    "Think step by step, then give the final answer as <answer>your answer here</answer>.",
    "def f(x):\n    return [y ** 2 for y in x if y % 2 == 0]  # 0.5 + 17 = 17.5",
    "Übung macht den Meister; 練習は裏切らない.",
)
"""Fixed prompts, each of which is truncated to `PROMPT_TOKENS` tokens."""
PROMPT_TOKENS = 8
LOGITS_TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Maximum difference between logits for each dtype: the RMS of the differences relative to the RMS of the centered
logits."""


@dataclass(frozen=True)
class ExportRequest:
    """Options for an export."""

    path: Path
    """Folder of a checkpoint, or of a run with checkpoints."""
    out: Path | None = None
    """New output folder. Default: a folder next to the checkpoint, with the same name plus "-export"."""
    dtype: str | None = None
    """Dtype of the weights: "bf16", "fp16" or "fp32". Default: the run's dtype or, if it is unknown, the dtype in
    config.json."""
    verify: bool = True
    best: bool = False
    """Whether to export the run's checkpoint with the best recorded accuracy instead of the last checkpoint."""
    base: str | None = None
    """Base model (folder or name on the Hub). Default: the base model recorded by the checkpoint or its run."""


def export(request: ExportRequest, say: Callable[[str], None] = print) -> Path:
    """Export the model, report progress with `say`, and return the new folder.

    Raises:
        InputError: the checkpoint cannot be read or is incomplete, or the output folder is not empty or not writable.
        ExportError: a check failed, so nothing was written to the output folder.
    """
    checkpoint = find_checkpoint(request.path, best=request.best, base=request.base)
    folder = Path(os.path.abspath(checkpoint.folder))  # resolves "." and "..", which are not usable as names
    run = checkpoint.run
    files = [run.config_file, run.arguments_file, run.manifest_file] if run else []
    files = [file for file in files if file.is_file()]
    folders = {checkpoint.folder, checkpoint.weights}
    check_links(
        [*files, *(file for each in folders for file in each.iterdir())], *folders, *([run.path] if run else [])
    )
    out = request.out or folder.with_name(f"{folder.name}-export")
    with _new_folder(out) as aside:
        _export(request, checkpoint, aside, say)
        # With these files, evaluations find the settings and training questions even after the export is moved.
        for file in files:
            (aside / "run").mkdir(exist_ok=True)
            shutil.copyfile(file, aside / "run" / file.name)
    return out


def _export(request: ExportRequest, checkpoint: Checkpoint, aside: Path, say: Callable[[str], None]) -> None:
    files = ModelFiles(checkpoint)
    model, reference = build(files.config), None
    prompts = prompt_ids(files.tokenizer, model.get_input_embeddings().weight.shape[0])
    if checkpoint.kind == "adapter":
        described, (reference, weights) = "LoRA adapters, merged", _merged(checkpoint, prompts)
    else:
        described, weights = read_weights(checkpoint.kind, checkpoint.weights)
    say(f"exporting {checkpoint.folder}: {described}{'' if checkpoint.step is None else f', step {checkpoint.step}'}")
    weights = match(model, weights)
    possible = (DTYPES.get(request.dtype or ""), files.dtype, next(iter(weights.values())).dtype, torch.float32)
    dtype = next(each for each in possible if each in LOGITS_TOLERANCE)
    assert dtype is not None
    files.write(aside, dtype)
    _write(weights, dtype, aside, say)
    if not request.verify:
        return
    check_tensors(weights, read_weights("plain", aside)[1], "the export differs from the checkpoint")
    rounded = any(weight.dtype != dtype for weight in weights.values() if weight.is_floating_point())
    if reference is None:
        reference = logits(trained_model(model, weights), prompts)
    del model, weights  # frees memory before the exported model is loaded
    difference = check_logits(
        reference, logits(load(aside), prompts), LOGITS_TOLERANCE[dtype if rounded else torch.float32]
    )
    say(
        "verified: every tensor equals the trained tensor; the relative difference between the logits on fixed prompts "
        f"is {difference:.1g}"
    )


def _merged(checkpoint: Checkpoint, prompts: torch.Tensor) -> tuple[torch.Tensor, StateDict]:
    """Return the logits of the base model with the adapters (computed by PEFT), and the merged weights."""
    model = adapted(checkpoint)
    if reason := unmergeable(model):
        raise InputError(f"the adapters cannot be merged: {reason}, or use {checkpoint.folder} with PEFT as it is")
    reference = logits(model, prompts)  # the logits are computed first, because merging changes the model
    return reference, model.merge_and_unload().state_dict()


def _write(weights: StateDict, dtype: torch.dtype, folder: Path, say: Callable[[str], None]) -> None:
    """Write the weights as safetensors. Integer and boolean tensors keep their dtypes."""
    tensors: StateDict = {}
    places: set[int] = set()
    for key, weight in weights.items():
        value = _rounded(key, weight, dtype)
        # Without a copy, a file would contain the entire storage of a view, and only one of several tensors that share
        # memory.
        is_view = value.untyped_storage().nbytes() != value.nbytes
        tensors[key] = value.clone() if is_view or value.data_ptr() in places else value
        places.add(value.data_ptr())
    pattern = WEIGHTS.replace(".safetensors", "{suffix}.safetensors")
    save_torch_state_dict(tensors, folder, filename_pattern=pattern, max_shard_size=SHARD_SIZE)
    size, files = sum(each.nbytes for each in tensors.values()), len(weight_files(folder, WEIGHTS))
    say(f"{counted(len(tensors), 'tensor')} in {dtype}: {size / 1e6:,.1f} MB in {counted(files, 'file')}")


def _rounded(name: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert floating-point values to `dtype`. Raises `ExportError` if any value is not finite, before or after the
    conversion."""
    if value.is_floating_point():
        low, high = map(float, torch.aminmax(value)) if value.numel() else (0.0, 0.0)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ExportError(f"{name} has non-finite values (NaN or infinity) in the checkpoint")
        if max(-low, high) > torch.finfo(dtype).max:
            raise ExportError(f"{name} has values that are too large for {dtype}: choose another --dtype")
        value = value.to(dtype)
    return value.contiguous()


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `out` that is renamed to `out` at the end, or removed if an error occurs.

    Raises:
        OutputFolderError: `out` is a file, a link or a folder with files, or cannot be written.
    """
    try:
        if out.is_symlink() or out.is_file() or (out.is_dir() and any(out.iterdir())):
            raise OutputFolderError(f"{out} already exists: choose another folder with --output-dir")
        with removed_on_error(out.parent):
            out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".part", dir=out.parent) as parent:
                aside = Path(parent) / out.name
                aside.mkdir()  # created with default permissions, unlike the temporary folder
                yield aside
                aside.rename(out)
    except RGEnvError:
        raise
    except (OSError, SafetensorError) as error:  # a full disk causes a SafetensorError
        raise OutputFolderError(f"cannot write {out}: {reason_of(error)}; partial files were removed") from error


# Verification


def prompt_ids(tokenizer: Any, vocabulary: int) -> torch.Tensor:
    """Return the concatenated token ids of the fixed prompts, `(1, L) int64`.

    Raises:
        ExportError: the tokenizer has token ids without an embedding in the model.
    """
    rows = [tokenizer(prompt, add_special_tokens=False)["input_ids"][:PROMPT_TOKENS] for prompt in PROMPTS]
    ids = torch.tensor([[token for row in rows for token in row]], dtype=torch.long)
    if not ids.numel() or max(int(ids.max()), len(tokenizer) - 1) >= vocabulary:
        raise ExportError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model has embeddings for {vocabulary}: the "
            "tokenizer may belong to another model"
        )
    return ids


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Compute the logits, `(L, vocabulary) float32`."""
    found: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return found.float()


def load(folder: Path) -> Any:
    """Load the exported model in float32 with `from_pretrained`. Raises `ExportError` if this fails."""
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        ).eval()
    except Exception as error:
        raise ExportError(f"the exported model cannot be loaded: {reason_of(error)}") from error


def check_tensors(trained: StateDict, other: StateDict, what: str) -> None:
    """Raise an `ExportError` that starts with `what` unless each trained weight, after rounding, equals the weight with
    the same name in `other`. Weights are rounded to the dtype used in `other`."""
    for name, weight in trained.items():
        if not torch.equal(other[name], weight.to(other[name].dtype)):
            raise ExportError(f"{what}: {name} differs")


def trained_model(model: Any, weights: StateDict) -> Any:
    """Load the weights, in float32, into a model like `model`, which was built without weights."""
    tensors = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    return type(model).from_pretrained(None, config=model.config, state_dict=tensors, dtype=torch.float32).eval()


def check_logits(trained: torch.Tensor, written: torch.Tensor, tolerance: float) -> float:
    """Return the relative difference between two sets of logits, `(L, vocabulary)`. Raises `ExportError` if the
    difference exceeds `tolerance`."""
    # Logits are defined only up to an additive constant.
    one, other = (each - each.mean(dim=-1, keepdim=True) for each in (trained, written))
    difference = float(torch.dist(one, other) / one.norm().clamp(min=1e-30))
    if not difference <= tolerance:
        raise ExportError(
            f"on fixed prompts, the export's logits differ from the trained model's by {difference:.2g} of their "
            f"norm, but rounding explains at most {tolerance:g}"
        )
    return difference
