"""Whether an exported folder is the trained model: every tensor, and the logits for fixed prompts.

The folder is loaded as anyone would load it. The trained model computes in float32, with the weights of the checkpoint;
the logits may differ by what rounding to the export's type explains.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rg_env.core.text import reason_of
from rg_env.errors import ExportError
from rg_env.publish.export.architecture import Architecture
from rg_env.publish.export.weights import Tensors

PROMPTS = (
    "How many legs are there in total if you have 3 cats and 2 ants?",
    "Think step by step, then give the final answer as <answer>your answer here</answer>.",
    "def f(x):\n    return [y ** 2 for y in x if y % 2 == 0]  # 0.5 + 17 = 17.5",
    "Übung macht den Meister; 練習は裏切らない.",
)
"""Cut to `PROMPT_TOKENS`."""
PROMPT_TOKENS = 8
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""RMS of the differences of logits, relative to the RMS of the logits about their mean."""


def prompt_ids(tokenizer: Any, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids `(B, L)` of the fixed prompts, padded on the right, and a mask `(B, L)` of those that count.

    Raises:
        ExportError: the tokenizer has ids that the model has no embedding for.
    """
    rows = [tokenizer(prompt, add_special_tokens=False)["input_ids"][:PROMPT_TOKENS] for prompt in PROMPTS]
    rows = [row for row in rows if row]
    highest = max((max(row) for row in rows), default=0)
    if not rows or max(highest, len(tokenizer) - 1) >= vocabulary:
        raise ExportError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model has embeddings for {vocabulary}: it "
            "may be another model's"
        )
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    counts = torch.zeros_like(ids, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        counts[index, : len(row)] = True
    return ids, counts


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Logits at the positions that count, `(N, vocabulary)` float32. Padding comes last, and no model looks ahead."""
    found: torch.Tensor = model(input_ids=ids, use_cache=False).logits[counts]
    return found.float()


def load(folder: Path, architecture: Architecture, dtype: torch.dtype) -> Any:
    """The exported model as `from_pretrained` loads it.

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


def check_tensors(exported: Any, trained: Tensors, dtype: torch.dtype) -> None:
    """Raise `ExportError` unless each tensor of the exported model is the trained one, rounded to `dtype`."""
    state = exported.state_dict()
    for name, value in trained.items():
        rounded = value.to(dtype) if value.is_floating_point() else value
        if not torch.equal(state[name], rounded.to(state[name].dtype)):
            raise ExportError(f"{name} was not exported as it is in the checkpoint")


def trained_logits(
    architecture: Architecture, trained: Tensors, ids: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """The logits of the trained model, in float32. Its weights leave memory with it."""
    model = architecture.build()
    weights = {name: value.float() if value.is_floating_point() else value for name, value in trained.items()}
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return logits(model, ids, counts)


def check_logits(trained: torch.Tensor, written: torch.Tensor, tolerance: float) -> float:
    """The difference of two sets of logits `(N, vocabulary)`. Raises `ExportError` if it exceeds `tolerance`."""
    one, other = (each - each.mean(dim=-1, keepdim=True) for each in (trained, written))  # a constant changes nothing
    difference = float(torch.dist(one, other) / one.norm().clamp(min=1e-30))
    if not difference <= tolerance:
        raise ExportError(
            f"on fixed prompts the export's logits differ from the trained model's by {difference:.2g} of their "
            f"size; rounding explains {tolerance:g}"
        )
    return difference
