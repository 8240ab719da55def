"""Whether an exported folder is the trained model: every tensor, and what the model computes of fixed prompts.

The exported folder is loaded as anyone would load it. The trained model is put together once more from the checkpoint,
one layer at a time: it computes in float32, with weights that are lent to each module while it computes, so that
neither of the two is ever whole in memory. The logits may differ by what the rounding to the export's type does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from rg_env.core.text import reason_of
from rg_env.errors import ExportError
from rg_env.publish.export.architecture import Architecture, Matched
from rg_env.training.checkpointing.readers import Reader, SafetensorsReader

PROMPTS = (
    "How many legs are there in total if you have 3 cats and 2 ants?",
    "Think step by step, then give the final answer as <answer>your answer here</answer>.",
    "def f(x):\n    return [y ** 2 for y in x if y % 2 == 0]  # 0.5 + 17 = 17.5",
    "Übung macht den Meister; 練習は裏切らない.",
)
"""Cut to `PROMPT_TOKENS`."""
PROMPT_TOKENS = 8
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Of the logits, relative to how far they are apart: RMS of the differences by RMS of the logits about their mean."""


def prompt_ids(tokenizer: Any, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids `(B, L)` of the fixed prompts, padded on the right, and which of them count `(B, L)` bool.

    Raises:
        ExportError: the tokenizer has ids that the model has no embedding for.
    """
    rows = [tokenizer(prompt, add_special_tokens=False)["input_ids"][:PROMPT_TOKENS] for prompt in PROMPTS]
    rows = [row for row in rows if row]
    highest = max((max(row) for row in rows), default=0)
    if not rows or max(highest, len(tokenizer) - 1) >= vocabulary:
        raise ExportError(
            f"the tokenizer has {len(tokenizer)} tokens, and the model embeddings for {vocabulary}: is it another "
            "model's?"
        )
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    counts = torch.zeros_like(ids, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        counts[index, : len(row)] = True
    return ids, counts


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Those of the positions that count, `(N, vocabulary)` float32. Padding comes last, and no model looks ahead."""
    found: torch.Tensor = model(input_ids=ids, use_cache=False).logits[counts]
    return found.float()


@contextmanager
def lent(model: nn.Module, weight: Callable[[str], torch.Tensor]) -> Iterator[None]:
    """Within: each module of `model` has `weight(name)` for its parameters while it computes, and its own otherwise."""
    handles = []

    def attach(path: str, module: nn.Module) -> None:
        own = {name: value for name, value in module._parameters.items() if value is not None}
        names = {name: f"{path}.{name}" if path else name for name in own}

        def before(*_: Any) -> None:
            for name, full in names.items():
                module._parameters[name] = nn.Parameter(weight(full), requires_grad=False)

        def after(*_: Any) -> None:
            module._parameters.update(own)

        handles.append(module.register_forward_pre_hook(before))
        handles.append(module.register_forward_hook(after, always_call=True))

    for path, module in model.named_modules():
        if any(value is not None for value in module._parameters.values()):
            attach(path, module)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def load(folder: Path, architecture: Architecture, dtype: torch.dtype) -> Any:
    """The exported model, as `from_pretrained` gives it: mapped, so that only what is used takes memory.

    Raises:
        ExportError: it cannot be loaded, or not all of it comes from the files.
    """
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "output_loading_info": True}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options)
    except Exception as error:
        raise ExportError(f"what was exported cannot be loaded: {reason_of(error)}") from error
    missing = [name for name in info["missing_keys"] if name not in architecture.aliases]
    for names, what in (
        (missing, "missing"),
        (info["unexpected_keys"], "not the model's"),
        (info["mismatched_keys"], "of another shape"),
    ):
        if names:
            raise ExportError(f"{sorted(map(str, names))[0]} is {what} in what was exported")
    return model.eval()


class Comparison:
    """An exported folder beside the checkpoint that it was made of.

    Args:
        whole: a folder with the same weights in one piece, as trainers gather them beside their shards; None: there
            is none. They must be what the shards make.
    """

    def __init__(
        self, folder: Path, architecture: Architecture, reader: Reader, matched: Matched, whole: Path | None = None
    ):
        self._architecture, self._reader, self._matched = architecture, reader, matched
        self._gathered = None if whole is None else SafetensorsReader(whole)
        self._names = {} if self._gathered is None else architecture.match(self._gathered.stored()).names
        self._whole = whole
        self._written = SafetensorsReader(folder)
        self._checked: set[str] = set()
        self._tolerance = TOLERANCE[torch.float32]

    def run(self, tokenizer: Any, reference: Any = None) -> float:
        """By how much the logits differ (see `TOLERANCE`).

        Args:
            reference: the trained model, where it is at hand as a whole (with adapters); default: it is put together.

        Raises:
            ExportError: a tensor is not the checkpoint's, rounded; the logits differ too much.
        """
        model = self._architecture.model
        ids, counts = prompt_ids(tokenizer, model.get_input_embeddings().weight.shape[0])
        if reference is None:
            with lent(model, self._once_if_tied(self._trained)):
                trained = logits(model, ids, counts)
        else:
            trained = logits(reference, ids, counts)
        for name in self._architecture.wanted:
            if name not in self._checked:  # experts that no token was sent to
                self._trained(name)
        with lent(model, self._once_if_tied(lambda name: _computing(self._written.read(self._kept(name))))):
            written = logits(model, ids, counts)
        return check_logits(trained, written, self._tolerance)

    def _kept(self, name: str) -> str:
        return self._architecture.aliases.get(name, name)

    def _once_if_tied(self, read: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
        """`read`, which keeps the weights that several modules have: embeddings, by far the largest, come once."""
        tied, held = set(self._architecture.aliases.values()), dict[str, torch.Tensor]()

        def weight(name: str) -> torch.Tensor:
            kept = self._kept(name)
            value = held[kept] if kept in held else read(kept)
            if kept in tied:
                held[kept] = value
            return value

        return weight

    def _trained(self, name: str) -> torch.Tensor:
        """A weight of the checkpoint, as it is computed with; compared with the exported one when it is first read."""
        kept = self._kept(name)
        value = self._reader.read(self._matched.names[kept])
        if kept not in self._checked:
            if not self._written.holds(kept, value):
                raise ExportError(f"{kept} was not exported as it is in the checkpoint")
            if self._gathered and not self._gathered.holds(self._names[kept], value):
                raise ExportError(
                    f"{kept} is not the same in the shards and in {self._whole}, of which one is of another step or "
                    "damaged: leave the right one there alone"
                )
            if (dtype := self._written.stored()[kept].dtype) != value.dtype:
                self._tolerance = max(self._tolerance, TOLERANCE[dtype])
            self._checked.add(kept)
        return _computing(value)


def _computing(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.is_floating_point() else value


def check_logits(trained: torch.Tensor, written: torch.Tensor, tolerance: float) -> float:
    """By how much two sets of logits `(N, vocabulary)` differ. Raises `ExportError`: by more than `tolerance`."""
    one, other = (each - each.mean(dim=-1, keepdim=True) for each in (trained, written))  # a constant changes nothing
    difference = float(torch.dist(one, other) / one.norm().clamp(min=1e-30))
    if not difference <= tolerance:
        raise ExportError(
            f"on fixed prompts the export's logits differ from the trained model's by {difference:.2g} of their "
            f"size, and {tolerance:g} is what rounding explains"
        )
    return difference
