"""Log-probabilities of completions under the model being trained: the forward pass whose gradient is taken.

Most of a GRPO batch is repetition: each prompt stands there once for each of its completions. Here the completions of
one prompt share it. They stand behind one another in one sequence, `[prompt | completion | completion | ...]`, at the
positions that each would have alone, under a mask that lets each see the prompt and itself (Liu et al., 2025, "Prefix
Grouper", arXiv:2506.05433). Log-probabilities and gradients are those of separate rows, for a fraction of the tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from rg_env.inference.embedded.kv_cache import attends_everything
from rg_env.training.algorithms.lm_head import chosen_logps

Arrangement = Literal["shared", "by_length", "in_order"]
"""How rows go through the model: with shared prompts; those of similar length together; or one after the other, for
ranks that must run the model equally often whatever their data."""

_COMPLETION_PER_PROMPT = 4
"""Most completion tokens in a pack per prompt token: attention costs the square of a pack's length, all else its
length."""
_FIXED_COST_ROWS = 8
"""A forward pass costs some fixed time: it has this many completions before shorter ones start another."""
_SIMILAR = 0.75
"""How short a pack may be, compared with the longest of its pass: it is padded to that."""


@dataclass
class _Pack:
    """Completions (rows of the batch) behind one `prefix` of tokens that they have in common."""

    prefix: int
    rows: list[int]
    length: int
    """Tokens of the prefix and all completions."""


def completion_logps(
    model: torch.nn.Module,
    ids: torch.Tensor,
    loss_mask: torch.Tensor,
    *,
    temperature: float = 1.0,
    max_rows: int | None = None,
    arrangement: Arrangement = "by_length",
) -> torch.Tensor:
    """Log-probability of each token that carries loss, given those before it in its row.

    Args:
        ids: `(B, L) int64`, padded on the right.
        loss_mask: `(B, L - 1) bool`; at `i`: whether `ids[:, i + 1]` carries loss.
        temperature: that the logits are divided by.
        max_rows: most rows in one forward pass; all by default.
        arrangement: `"shared"` is for models that `can_share_prompts` allows.

    Returns:
        `(B, L - 1) float32`, 0 where the mask is 0.
    """
    positions = torch.arange(loss_mask.shape[1], device=ids.device)
    starts = torch.where(loss_mask, positions, loss_mask.shape[1] - 1).amin(dim=1).tolist()
    ends = torch.where(loss_mask, positions, 0).amax(dim=1).tolist()
    spans = [(min(start, end), end + 1) for start, end in zip(starts, ends, strict=True)]
    max_rows = max_rows or len(ids)
    separate = [_Pack(start, [row], end) for row, (start, end) in enumerate(spans)]
    if arrangement == "in_order":
        passes = iter([separate[first : first + max_rows] for first in range(0, len(separate), max_rows)])
    else:
        passes = _by_length(_packs(ids, spans, max_rows) if arrangement == "shared" else separate, max_rows)
    logps, rows, columns = [], [], []
    for part in passes:
        row, column, segment = _layout(part, spans, ids.device)
        start = min(pack.prefix for pack in part)
        keep = row.shape[1] - start
        inputs = {"input_ids": ids[row, column], "logits_to_keep": keep, "use_cache": False}
        if any(len(pack.rows) > 1 for pack in part):
            inputs |= {"attention_mask": _mask(segment), "position_ids": column}
        row, column, real = row[:, start:], column[:, start:], segment[:, start:] > 0
        row, column = row[real], column[real]
        logps.append(chosen_logps(model, inputs, real, ids[row, column + 1], temperature))
        rows.append(row)
        columns.append(column)
    result = torch.zeros(loss_mask.shape, dtype=torch.float32, device=ids.device)
    return result.index_put((torch.cat(rows), torch.cat(columns)), torch.cat(logps)) * loss_mask


def can_share_prompts(model: Any) -> bool:
    """Whether `completion_logps` may share prompts: the model takes 4-D masks, and nothing but attention mixes tokens.

    On CPUs only: elsewhere a mask of its own keeps attention from its fused kernels, and what remains of the gain has
    not been measured.
    """
    peft = getattr(model, "active_peft_config", None)
    config = model.config.get_text_config(decoder=True)
    return bool(
        model.device.type == "cpu"
        and config._attn_implementation == "sdpa"
        and attends_everything(config)
        and not (peft and peft.is_prompt_learning)  # its virtual tokens want a 2-D mask
    )


def _packs(ids: torch.Tensor, spans: list[tuple[int, int]], max_rows: int) -> list[_Pack]:
    """Rows of equal prompts together, as many as share it at a gain."""
    packs: list[_Pack] = []
    open_packs: dict[tuple[int, ...], _Pack] = {}
    # A completion's first token is predicted from the prompt's last: that one belongs to each completion's own part.
    for row, (tokens, (start, end)) in enumerate(zip(ids.tolist(), spans, strict=True)):
        prompt = tuple(tokens[: start + 1])
        pack = open_packs.get(prompt)
        if pack and len(pack.rows) < max_rows and pack.length + end - 2 * start <= _COMPLETION_PER_PROMPT * start:
            pack.rows.append(row)
            pack.length += end - start
            continue
        open_packs[prompt] = _Pack(start, [row], end)
        packs.append(open_packs[prompt])
    return packs


def _by_length(packs: list[_Pack], max_rows: int) -> Iterator[list[_Pack]]:
    """Packs in parts of at most `max_rows` completions and similar lengths."""
    part: list[_Pack] = []
    rows = 0
    for pack in sorted(packs, key=lambda pack: -pack.length):
        full = rows + len(pack.rows) > max_rows
        shorter = rows >= _FIXED_COST_ROWS and pack.length < _SIMILAR * part[0].length
        if part and (full or shorter):
            yield part
            part, rows = [], 0
        part.append(pack)
        rows += len(pack.rows)
    yield part


def _layout(
    packs: list[_Pack], spans: list[tuple[int, int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where each token of the packed sequences comes from: its row, its column, and its segment, each `(P, S) int64`.

    Segments are 0 for the shared prefix, 1 ... for the completions, -1 for padding.
    """
    width = max(pack.length for pack in packs)
    rows, columns, segments = [], [], []
    for pack in packs:
        row, column, segment = [pack.rows[0]] * pack.prefix, list(range(pack.prefix)), [0] * pack.prefix
        for number, member in enumerate(pack.rows, start=1):
            start, end = spans[member]
            row += [member] * (end - start)
            column += range(start, end)
            segment += [number] * (end - start)
        padding = width - len(row)
        rows.append(row + [0] * padding)
        columns.append(column + [0] * padding)
        segments.append(segment + [-1] * padding)
    return tuple(torch.tensor(values, device=device) for values in (rows, columns, segments))


def _mask(segment: torch.Tensor) -> torch.Tensor:
    """What each token sees, `(P, 1, S, S) bool`: the prefix and its own segment, up to itself."""
    of_key, of_query = segment[:, None, :], segment[:, :, None]
    return ((of_key == 0) | (of_key == of_query)).tril()[:, None]
