"""Export a checkpoint as a model folder for `from_pretrained` and vLLM, and verify the result.

    folder = export(ExportRequest(Path("outputs/RUN/checkpoint-25"), dtype="bf16"))

The weights are converted to the export's dtype and written to a temporary folder. This folder is renamed once the
written model has been verified against the trained model. If a check fails, the temporary folder is deleted. An export
needs memory for two copies of the model: one in float32 and one in the export's dtype, or both in float32 if adapters
are merged.

To verify an export, the folder is loaded with `from_pretrained`, as users would load it. The trained model is built in
float32 from the checkpoint's weights. All tensors must be equal, apart from rounding. On fixed prompts, the logits of
the two models may differ by at most the rounding error of the export's dtype.

If evaluations include greedy answers, a run's `eval_results/eval_step_N.json` records, for each frozen question,
whether the greedy answer after step N was correct. The frozen questions from the training tasks are rebuilt from the
run's files and checked against the recorded hash. The exported model answers the first 20 of them, and the numbers of
correct answers are compared. Code imported by a run's config is not executed, so the answers of a run with such imports
are not compared.
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
from transformers import AutoModelForCausalLM

from rg_env.core.data.manifest import hash_of_rows
from rg_env.core.environment import ReasoningGym
from rg_env.core.run_folder import RunFolder, removed_on_error
from rg_env.core.text import counted, listed, reason_of
from rg_env.errors import ExportError, InputError, OutputFolderError, RGEnvError
from rg_env.evaluation.results import Environment, read_results
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.models import best_device
from rg_env.inference.protocol import PromptEncoder, Sampling
from rg_env.publish.checkpoint import Checkpoint, find_checkpoint
from rg_env.publish.model import Companions, adapted, build, match, trained_weights
from rg_env.publish.weights import Weights, read_weights
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS, weight_files
from rg_env.training.rollouts import RolloutSampler
from rg_env.training.weight_sync import unmergeable

Say = Callable[[str], None]
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
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Maximum difference between logits for each dtype: the RMS of the differences relative to the RMS of the centered
logits."""
PROBLEMS = 20
SLACK = 2
"""Maximum difference between the numbers of correct answers if adapters were merged, weights were rounded, or the
answers are not exactly reproducible."""


@dataclass(frozen=True)
class ExportRequest:
    """Options for an export."""

    path: Path
    """Folder of a checkpoint, or of a run with checkpoints."""
    out: Path | None = None
    """New output folder. Default: a folder next to the checkpoint, with the same name plus "-export"."""
    dtype: str | None = None
    """Dtype of the weights: "bf16", "fp16" or "fp32". Default: the run's dtype or, if it is unknown, the dtype in
    config.json. By default, adapters that are not merged keep their dtypes."""
    merge_lora: bool = False
    """Whether to merge adapters into the base model instead of exporting only the adapters."""
    verify: bool = True
    best: bool = False
    """Whether to export the run's checkpoint with the best recorded accuracy instead of the last checkpoint."""
    base: str | None = None
    """Base model (folder or name on the Hub). Default: the base model recorded by the checkpoint or its run."""


def export(request: ExportRequest, say: Say = print) -> Path:
    """Export the model, report progress with `say`, and return the new folder.

    Raises:
        InputError: the checkpoint cannot be read or is incomplete, or the output folder is not empty or not writable.
        ExportError: a check failed, so nothing was written to the output folder.
    """
    checkpoint = find_checkpoint(request.path, best=request.best, base=request.base)
    if request.merge_lora and checkpoint.kind != "adapter":
        raise InputError(f"{checkpoint.folder} has no adapters to merge: omit --merge-lora")
    if checkpoint.note:
        say(checkpoint.note)
    folder = Path(os.path.abspath(checkpoint.folder))  # resolves "." and "..", which are not usable as names
    out = request.out or folder.with_name(f"{folder.name}-export")
    write = _export_adapters if checkpoint.kind == "adapter" and not request.merge_lora else _export_model
    with _new_folder(out) as aside:
        write(request, checkpoint, aside, say)
        # With these files, evaluations find the settings and training questions even after the export is moved.
        run = checkpoint.run
        for file in (run.config_file, run.arguments_file, run.manifest_file) if run else ():
            if file.is_file():
                (aside / "run").mkdir(exist_ok=True)
                shutil.copyfile(file, aside / "run" / file.name)
    return out


def check_exportable(checkpoint: Checkpoint) -> None:
    """Check the checkpoint's files, and the names and shapes of its weights.

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
    prompts = prompt_ids(companions.tokenizer, model.get_input_embeddings().weight.shape[0])
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
    check_tensors(weights, read_weights("plain", aside)[1], "the export differs from the checkpoint")
    tensors = "every tensor equals the trained tensor"
    if not request.merge_lora and _matches_whole(checkpoint, model, weights, say):
        tensors += f" and the gathered copy in {WEIGHTS}"
    rounded = any(weight.dtype != dtype for weight in weights.values() if weight.is_floating_point())
    if reference is None:
        reference = logits(trained_model(model, weights), prompts)
    del model, weights  # frees memory before the exported model is loaded
    written = logits(load(aside, torch.float32), prompts)
    difference = check_logits(reference, written, TOLERANCE[dtype if rounded else torch.float32])
    say(f"verified: {tensors}; the relative difference between the logits on fixed prompts is {difference:.1g}")
    lossless = not request.merge_lora and not rounded
    say(check_answers(checkpoint, partial(load, aside, dtype), companions.tokenizer, lossless=lossless))


def _export_adapters(request: ExportRequest, checkpoint: Checkpoint, aside: Path, say: Say) -> None:
    companions, weights = Companions(checkpoint), _read(request, checkpoint, say)
    companions.write(aside, None)
    dtype = DTYPES[request.dtype] if request.dtype else None
    _write_adapters(checkpoint, weights, dtype, aside, say)
    say(f"the base model is {checkpoint.base.name}")
    if not request.verify:
        return
    model, tokenizer = adapted(checkpoint, aside), companions.tokenizer
    check_tensors(weights, read_weights("adapter", aside)[1], "the export differs from the checkpoint")
    prompts = prompt_ids(tokenizer, model.get_input_embeddings().weight.shape[0])
    if not torch.isfinite(logits(model, prompts)).all():
        raise ExportError("the base model with these adapters produces non-finite values")
    say("verified: every tensor equals the trained tensor, and PEFT loads the adapters into the base model")
    lossless = all(weight.dtype == (dtype or weight.dtype) for weight in weights.values())
    say(check_answers(checkpoint, lambda: model, tokenizer, lossless=lossless))


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
    reference = logits(model, prompts)  # the logits are computed first, because merging changes the model
    return reference, model.merge_and_unload().state_dict()


def _matches_whole(checkpoint: Checkpoint, model: Any, weights: Weights, say: Say) -> bool:
    """Whether the checkpoint also has complete weights that the trainer gathered from the shards. Gathered weights that
    do not match the model, such as empty ones, are ignored.

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
    check_tensors(weights, whole, f"{WEIGHTS} and the shards in {folder} are from different steps, or damaged")
    return True


def _write_adapters(
    checkpoint: Checkpoint, weights: Weights, dtype: torch.dtype | None, folder: Path, say: Say
) -> None:
    shutil.copyfile(checkpoint.weights / "adapter_config.json", folder / "adapter_config.json")
    _write(weights, dtype, folder, ADAPTER, say)


def _write(weights: Weights, dtype: torch.dtype | None, folder: Path, name: str, say: Say) -> None:
    """Write the weights as safetensors. If `dtype` is None, all weights keep their dtypes. Integer and boolean tensors
    always keep their dtypes."""
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
    # Without a copy, a file would contain the tensor's entire storage.
    is_view = value.untyped_storage().nbytes() != value.nbytes
    return value.clone() if is_view else value


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


def load(folder: Path, dtype: torch.dtype) -> Any:
    """Load the exported model with `from_pretrained`.

    Raises:
        ExportError: the model cannot be loaded, or a weight is missing or unexpected, or has the wrong shape.
    """
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "output_loading_info": True}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options)
    except Exception as error:
        raise ExportError(f"the exported model cannot be loaded: {reason_of(error)}") from error
    missing = [name for name in info["missing_keys"] if name not in model.all_tied_weights_keys]
    if wrong := sorted(map(str, (*missing, *info["unexpected_keys"], *info["mismatched_keys"]))):
        raise ExportError(f"in the exported model, {wrong[0]} is missing or unexpected, or has the wrong shape")
    return model.eval()


def check_tensors(trained: Weights, other: Weights, what: str) -> None:
    """Raise an `ExportError` that starts with `what` unless each trained weight, after rounding, equals the weight with
    the same name in `other`. Weights are rounded to the dtype used in `other`."""
    for name, weight in trained.items():
        if not torch.equal(other[name], weight.to(other[name].dtype)):
            raise ExportError(f"{what}: {name} differs")


def trained_model(model: Any, weights: Weights) -> Any:
    """Load the weights, in float32, into a model that was built without weights."""
    tensors = {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    return model


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


def check_answers(checkpoint: Checkpoint, load: Callable[[], Any], tokenizer: Any, *, lossless: bool) -> str:
    """With the exported model, repeat part of the run's evaluation at the checkpoint's step. Returns a description of
    the result, or the reason why the answers cannot be compared.

    Args:
        load: function that loads the model, called only if the model is needed.
        lossless: whether the export merged no adapters and rounded no weights.

    Raises:
        ExportError: the number of correct answers differs from the recorded number by more than the tolerance.
        InputError: a file in the run's folder is damaged.
    """
    run, step, skipped = checkpoint.run, checkpoint.step, "not compared with the run's accuracy"
    if run is None or step not in run.evaluation_steps():
        return f"{skipped}: no known run evaluated these weights"
    results = read_results(run.evaluation_file(step))
    greedy = [each for each in results.rollouts if (each["part"], each["draw"]) == ("training", "greedy")]
    recorded = sorted(greedy, key=lambda each: each["problem"])[:PROBLEMS]
    if not recorded or any(each["correct"] is None for each in recorded):
        return f"{skipped}: the run recorded no greedy answers at step {step}"
    env = _environment(run, next(each for each in results.environments if each.part == "training"))
    if isinstance(env, str):
        return f"{skipped}: {env}"
    device, n = best_device(), len(recorded)
    engine = EmbeddedEngine(load().to(device), tokenizer, seed=0)
    names = ("max_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty")
    sampling = Sampling(temperature=0.0, **{name: getattr(results.sampling, name) for name in names})
    answers = RolloutSampler(env, engine, PromptEncoder(tokenizer)).sample(env.eval_rows[:n], sampling)
    right, before = (sum(bool(each["correct"]) for each in records) for records in (answers.records(), recorded))
    slack = 0 if lossless and device == "cpu" and _is_exact(run) else SLACK
    if abs(right - before) > slack:
        rounding = f" (rounding may change up to {slack} answers; use --dtype fp32 to avoid rounding)" if slack else ""
        raise ExportError(
            f"the export solves {right} of {n} frozen questions, but the run recorded {before} at step {step}{rounding}"
        )
    return f"verified: {right} of {n} greedy answers to frozen questions are correct; the run recorded {before}"


def _environment(run: RunFolder, recorded: Environment) -> ReasoningGym | str:
    """Rebuild the environment with the run's evaluation rows, or return the reason why it cannot be rebuilt."""
    if run.config().get("imports"):
        return "the run's problems need custom code (imports), which is not executed here"
    settings, rows = run.arguments()["environment"], run.manifest().get("rows")
    if rows is None or "gym" not in settings:
        return "the run's problems are not from rg_env, or no manifest describes them"
    try:
        env = ReasoningGym(
            gym=settings["gym"],
            num_train_examples=0,
            num_eval_examples=recorded.n,
            eval_seed=rows["splits"]["eval"]["seed"],
            split_by=rows["split_by"],
            system_prompt=settings["system_prompt"],
            prompt_placement=settings["placement"],
            preamble=settings["preamble"],
            grading="upstream" if settings["grading"] == "upstream" else "hardened",  # same accuracy
        )
    except RGEnvError as error:
        return f"the run's problems cannot be rebuilt: {reason_of(error)}"
    if hash_of_rows(env.eval_rows) != recorded.prompts_sha256:
        return "the run's problems cannot be rebuilt, because their hash differs from the recorded hash"
    return env


def _is_exact(run: RunFolder) -> bool:
    """Whether the embedded engine generated the run's answers on a CPU in float32, which makes them reproducible on a
    CPU."""
    training, outcome = run.arguments()["training"], run.results() or {}
    on_cpu = outcome.get("engine") == "embedded" and training.get("use_cpu")
    return bool(on_cpu and not (training.get("bf16") or training.get("fp16")))
