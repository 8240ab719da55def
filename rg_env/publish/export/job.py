"""An export, from beginning to end: found, read, written aside, compared with the checkpoint, renamed."""

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rg_env.errors import ExportError, InputError
from rg_env.publish.export import adapters, verify, writer
from rg_env.publish.export.architecture import Architecture, Matched
from rg_env.publish.export.companions import Companions
from rg_env.publish.export.destination import check_space, written_aside
from rg_env.publish.export.formats import Checkpoint, adapter_reader, locate, reader_of
from rg_env.training.checkpointing.files import ADAPTER, WEIGHTS
from rg_env.training.checkpointing.readers import Reader, SafetensorsReader, Stored, check_type, has_weights

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_TOO_SMALL = {
    torch.float16: "fp16: take bf16",
    torch.bfloat16: "bf16: take fp32",
    torch.float32: "fp32: is that what was trained?",
}


@dataclass(frozen=True)
class Asked:
    """What is to be exported, and how."""

    path: Path
    """A checkpoint, or a run that has some."""
    out: Path | None = None
    """A new folder; default: beside the checkpoint, its name with "-export"."""
    dtype: str | None = None
    """"bf16", "fp16" or "fp32"; default: what the run or the configuration says the weights were loaded in."""
    merge_lora: bool = False
    """Adapters: the whole model, instead of the adapters alone."""
    verify: bool = True
    best: bool = False
    """Of a run the checkpoint with the best recorded accuracy, instead of the last one."""
    base: str | None = None
    """The model that was trained from, where the checkpoint does not say: a folder, or a name on the hub."""


def export(asked: Asked, say: Callable[[str], None] = print) -> Path:
    """Make the folder, tell what was done by `say`, and return where it is.

    Raises:
        InputError: there is no checkpoint that can be read, or it lacks something; the folder is taken, or cannot be
            written.
        ExportError: a check failed. Nothing is left of the folder.
    """
    checkpoint = locate(asked.path, best=asked.best)
    if asked.merge_lora and checkpoint.kind != "adapter":
        raise InputError(f"{checkpoint.folder} has no adapters to merge: leave out --merge-lora")
    folder = Path(os.path.abspath(checkpoint.folder))  # also of "." and "..", which have no names
    out = asked.out or folder.with_name(f"{folder.name}-export")
    with written_aside(out) as aside:
        if checkpoint.kind == "adapter" and not asked.merge_lora:
            _export_adapters(asked, checkpoint, aside, say)
        else:
            _export_model(asked, checkpoint, aside, say)
    return out


@dataclass(frozen=True)
class _Trained:
    """The weights to be exported, and what they become."""

    reader: Reader
    model: Any
    """Of merged adapters, as PEFT has it; else None: it is never whole in memory."""
    stored: dict[str, Stored]
    matched: Matched
    dtype: torch.dtype

    def type_of(self, name: str) -> torch.dtype:
        """Of that parameter of the export: masks and counts stay what they are."""
        kind = self.stored[self.matched.names[name]].dtype
        return self.dtype if kind.is_floating_point else kind

    @property
    def lossless(self) -> bool:
        """Whether nothing is rounded; merging rounds, too."""
        kinds = [self.stored[name].dtype for name in self.matched.names.values()]
        return self.model is None and all(kind == self.dtype for kind in kinds if kind.is_floating_point)


def _export_model(asked: Asked, checkpoint: Checkpoint, aside: Path, say: Callable[[str], None]) -> None:
    companions = Companions(checkpoint, asked.base)
    architecture = Architecture(companions.config())
    trained = _trained(asked, checkpoint, companions, architecture, aside, say)
    dtype, lossless = trained.dtype, trained.lossless
    tokenizer = companions.write(aside, _name(dtype))
    verify.prompt_ids(tokenizer, architecture.model.get_input_embeddings().weight.shape[0])
    _write_weights(trained, architecture, aside, say)
    if asked.verify:
        _compare_weights(trained, checkpoint, architecture, tokenizer, aside, say)
        del trained  # then the model that answers is the only one in memory
        say(_answers(checkpoint, lambda: verify.load(aside, architecture, dtype), tokenizer, lossless))


def _trained(
    asked: Asked,
    checkpoint: Checkpoint,
    companions: Companions,
    architecture: Architecture,
    aside: Path,
    say: Callable[[str], None],
) -> _Trained:
    model = None
    if checkpoint.kind == "adapter":
        model, reader = _merged(checkpoint, companions, aside)
    else:
        reader = reader_of(checkpoint.kind, checkpoint.weights)
    say(f"exporting {checkpoint.folder}: {reader.described}{_step(checkpoint)}")
    stored = reader.stored()
    matched = architecture.match(stored)
    if left := matched.left_out:
        say(f"left out, as no part of the model: {left[0]}" + (f" and {len(left) - 1} more" if left[1:] else ""))
    for kept, twin in matched.twins:
        if not torch.equal(reader.read(matched.names[kept]), reader.read(twin)):
            raise ExportError(f"config.json ties {kept} and {twin}, and the checkpoint has different values for them")
    return _Trained(reader, model, stored, matched, _dtype(asked, companions, stored, matched))


def _write_weights(trained: _Trained, architecture: Architecture, aside: Path, say: Callable[[str], None]) -> None:
    layout: writer.Layout = {name: (shape, trained.type_of(name)) for name, shape in architecture.wanted.items()}
    check_space(writer.size(layout), aside)
    names, read = trained.matched.names, trained.reader.read
    files = writer.write(aside, layout, lambda name: _finite(name, read(names[name]), trained.type_of(name)))
    count = sum(math.prod(shape) for shape in architecture.wanted.values())
    written = f"{writer.size(layout) / 1e6:,.1f} MB in {len(files)} file{'' if len(files) == 1 else 's'}"
    say(f"{len(layout)} tensors, {count / 1e6:,.2f} M parameters of {_name(trained.dtype)}: {written}")


def _compare_weights(
    trained: _Trained,
    checkpoint: Checkpoint,
    architecture: Architecture,
    tokenizer: Any,
    aside: Path,
    say: Callable[[str], None],
) -> None:
    verify.load(aside, architecture, trained.dtype)  # raises where `from_pretrained` gives another model
    whole = _whole_beside(checkpoint, architecture, say)
    comparison = verify.Comparison(aside, architecture, trained.reader, trained.matched, whole)
    difference = comparison.run(tokenizer, trained.model)
    told = "each tensor is the trained one" + (f", and that of {WEIGHTS} beside the shards" if whole else "")
    say(f"verified: {told}; logits on fixed prompts differ by {difference:.1g} of their size")


def _whole_beside(checkpoint: Checkpoint, architecture: Architecture, say: Callable[[str], None]) -> Path | None:
    """The folder with the weights that the processes gathered when they saved their shards, if they are all there."""
    folder = dict(checkpoint.also).get("plain")
    if checkpoint.kind == "adapter" or folder is None or not has_weights(folder, WEIGHTS):
        return None
    try:
        architecture.match(SafetensorsReader(folder).stored())
    except ExportError as error:
        say(f"{WEIGHTS} beside the shards is of no use: {error}")
        return None
    return folder


def _export_adapters(asked: Asked, checkpoint: Checkpoint, aside: Path, say: Callable[[str], None]) -> None:
    companions = Companions(checkpoint, asked.base)
    reader = adapter_reader(checkpoint)
    stored = reader.stored()
    say(f"exporting {checkpoint.folder}: {reader.described}{_step(checkpoint)}")
    dtype = DTYPES[asked.dtype] if asked.dtype else None
    layout: writer.Layout = {
        name: (entry.shape, dtype if dtype and entry.dtype.is_floating_point else entry.dtype)
        for name, entry in sorted(stored.items())
    }
    for name, entry in stored.items():
        check_type(name, entry)
    if empty := [name for name, entry in stored.items() if entry.empty]:
        raise ExportError(f"{empty[0]} is empty in the checkpoint, and there are no shards beside it to take it from")
    adapters.copy_config(checkpoint.weights, aside)
    tokenizer = companions.write(aside, None)
    check_space(writer.size(layout), aside)
    writer.write(aside, layout, lambda key: _finite(key, reader.read(key), layout[key][1]), name=ADAPTER)
    say(f"{len(layout)} tensors of adapters: {writer.size(layout) / 1e6:,.1f} MB; the base model is {companions.base}")
    if not asked.verify:
        return
    base = adapters.base_model(companions.base_name)
    model = adapters.adapted(base, aside)
    written = SafetensorsReader(aside, ADAPTER)
    for name in stored:
        if not written.holds(name, reader.read(name)):
            raise ExportError(f"{name} was not exported as it is in the checkpoint")
    with torch.no_grad():
        ids, counts = verify.prompt_ids(tokenizer, base.get_input_embeddings().weight.shape[0])
        found = verify.logits(model, ids, counts)
    if not torch.isfinite(found).all():
        raise ExportError("the base model with these adapters computes values that are not finite")
    say("verified: each tensor is the trained one, and PEFT puts them on the base model")
    lossless = dtype is None or all(entry.dtype == dtype for entry in stored.values())
    say(_answers(checkpoint, lambda: model, tokenizer, lossless))


def _merged(checkpoint: Checkpoint, companions: Companions, aside: Path) -> tuple[Any, Reader]:
    """The trained model as PEFT has it, and its weights, merged."""
    base = adapters.base_model(companions.base_name)
    reader = adapter_reader(checkpoint)
    source = checkpoint.weights
    if not isinstance(reader, SafetensorsReader):
        source = aside / "adapters"
        source.mkdir()
        adapters.copy_config(checkpoint.weights, source)
        stored = reader.stored()
        writer.write(source, {key: (e.shape, e.dtype) for key, e in stored.items()}, reader.read, name=ADAPTER)
    model = adapters.adapted(base, source)
    if source != checkpoint.weights:
        shutil.rmtree(source)
    return model, adapters.MergedReader(model, reader.described)


def _dtype(asked: Asked, companions: Companions, stored: dict[str, Stored], matched: Matched) -> torch.dtype:
    if asked.dtype:
        return DTYPES[asked.dtype]
    names = {_name(dtype): dtype for dtype in DTYPES.values()}
    first = stored[next(iter(matched.names.values()))].dtype
    return names.get(companions.dtype_name() or "") or (first if first in names.values() else torch.float32)


def _answers(checkpoint: Checkpoint, load: Callable[[], Any], tokenizer: Any, lossless: bool) -> str:
    """How the export's answers compare with what the run recorded, or why they are not compared."""
    if checkpoint.run is None:
        return "not compared with the run's accuracy: it lies in no run with evaluations"
    from rg_env.publish.export.recorded import compared  # with verifiers, which takes a second

    return compared(checkpoint.run, checkpoint.step, load, tokenizer, lossless=lossless)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _step(checkpoint: Checkpoint) -> str:
    return "" if checkpoint.step is None else f", step {checkpoint.step}"


def _finite(name: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`value` as `dtype`. Raises `ExportError` where it has, or gets, values that are not finite."""
    if not value.is_floating_point() or not value.numel():
        return value.to(dtype)
    low, high = torch.aminmax(value)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise ExportError(f"{name} has values in the checkpoint that are not finite (NaN, or infinite)")
    largest = max(-low.item(), high.item())
    if largest > torch.finfo(dtype).max:
        raise ExportError(f"{name} has values up to {largest:.3g}, too large for {_TOO_SMALL[dtype]}")
    return value.to(dtype)
