"""Compute differentiable log-probabilities of completions under the model being trained.

Much of a GRPO batch is repeated text because each prompt occurs once per completion. With the arrangement "shared", the
completions of a prompt share one copy of the prompt in a single sequence: `[prompt | completion | completion | ...]`.
Each completion keeps the position IDs that it would have in a separate row, and a mask lets the completion attend only
to the prompt and to itself (Liu et al., 2025, "Prefix Grouper", arXiv:2506.05433). Prompts that start alike, such as
with few-shot examples, share one copy of that start if this saves time. Apart from rounding, the log-probabilities and
gradients equal those computed from separate rows, but the model processes far fewer tokens.

Logits account for most of a pass's memory: 600 KB per position with a vocabulary of 150,000 tokens. The LM head
therefore processes only the positions that are needed, `logits_per_chunk` logits at a time, and recomputes the
logits in the backward pass. The model is called as usual, through all its wrappers (DDP, DeepSpeed, PEFT), but the
head's `forward` is replaced during the call. The forward pass remains a single call to one module, so ZeRO-3 gathers
and frees weights in the same way on all ranks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rg_env.inference.embedded.engine import common_start
from rg_env.inference.embedded.kv_cache import attends_everything
from rg_env.training.algorithms import LOGITS_PER_CHUNK


def token_logps(
    model: torch.nn.Module,
    inputs: dict[str, Any],
    chosen: torch.Tensor,
    tokens: torch.Tensor,
    temperature: float = 1.0,
    logits_per_chunk: int = LOGITS_PER_CHUNK,
    *,
    entropy: bool = False,
) -> torch.Tensor:
    """Return the log-probabilities `(N,) float32` that `model` assigns to `tokens`, with gradients. With `entropy`, the
    result has the shape `(N, 2)`, and the second column contains the entropy of each token's distribution.

    Args:
        inputs: the model's inputs, including `logits_to_keep`.
        chosen: mask `(P, K) bool` that selects N of the positions kept by `logits_to_keep`.
        tokens: token IDs `(N,) int64`, one for each chosen position.
        temperature: the logits are divided by this value.
        logits_per_chunk: maximum number of logits in memory at once.
    """
    causal = _causal(model)
    vocabulary = 0 if causal is None else causal.config.get_text_config(decoder=True).vocab_size
    large = chosen.numel() * vocabulary > logits_per_chunk
    if causal is not None and large and head_is_replaceable(model, "logits_to_keep" in inputs):
        chunk = max(1, logits_per_chunk // vocabulary)
        with _head_replaced(causal, chosen, tokens, temperature, entropy, chunk) as outputs:
            model(**inputs)
        values = outputs[0][0]
        return values if entropy else values[:, 0]
    values = _log_softmax(model(**inputs).logits[chosen], tokens, temperature, entropy)
    return values if entropy else values[:, 0]


_REPLACEABLE: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
"""Results of `head_is_replaceable`."""
_PROBE_TOKENS = 4


@torch.no_grad()
def head_is_replaceable(model: torch.nn.Module, keeps: bool = True) -> bool:
    """Whether `model` processes its logits only in ways that `_processed` repeats, so that its head can be replaced.

    The result is computed once per model, in a short forward pass (with `logits_to_keep` if `keeps` is True). With
    several processes, all of them must make the first call together: whether a later pass is large enough for a
    replaced head differs between ranks, and must not change their number of forward passes.
    """
    causal = _causal(model)
    if causal is None:
        return False
    if causal not in _REPLACEABLE:
        ids = torch.arange(1, _PROBE_TOKENS + 1, device=causal.device)[None]
        inputs = {"input_ids": ids, "use_cache": False, **({"logits_to_keep": _PROBE_TOKENS} if keeps else {})}
        chosen = torch.ones_like(ids, dtype=torch.bool)
        with _head_replaced(causal, chosen, ids[0], 1.0, False, _PROBE_TOKENS) as outputs:
            shown = model(**inputs).logits.flatten().float()
        # The model has processed the log-probabilities as if they were logits.
        expected = _processed(causal, outputs[0]).flatten().float()
        same = shown.shape == expected.shape and torch.allclose(shown, expected, rtol=1e-2, atol=1e-2)
        _REPLACEABLE[causal] = same
    return _REPLACEABLE[causal]


def _causal(model: torch.nn.Module) -> PreTrainedModel | None:
    return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)


@contextmanager
def _head_replaced(
    causal: PreTrainedModel, chosen: torch.Tensor, tokens: torch.Tensor, temperature: float, entropy: bool, chunk: int
) -> Iterator[list[torch.Tensor]]:
    """Make the LM head of `causal` return log-probabilities and, with `entropy`, entropies `(1, N, 1 or 2)` instead of
    logits while this context is active. The head processes `chunk` positions at a time. Yield a list that will contain
    the head's output."""
    module = causal.get_output_embeddings()
    own, logits_of = vars(module).get("forward"), module.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden[chosen]
        size = chunk
        if any(module.children()) and any(hasattr(parameter, "ds_id") for parameter in module.parameters()):
            # ZeRO-3 gathers an adapter's weights in each call, so all ranks must make the same number of calls.
            size = len(hidden)
        device = hidden.device.type
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

        def part(rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            # With autocast's weight cache, the chunks' gradients would be accumulated in bf16.
            with torch.autocast(device, enabled=enabled, dtype=dtype, cache_enabled=False):
                logits = logits_of(rows)
            return _log_softmax(_processed(causal, logits), tokens, temperature, entropy)

        parts = zip(hidden.split(size), tokens.split(size), strict=True)
        return torch.cat([checkpoint(part, *each, use_reentrant=False) for each in parts])[None]

    outputs: list[torch.Tensor] = []
    module.forward = forward
    # This hook runs after DeepSpeed's hook, which wraps the output so that the weights are gathered in the backward
    # pass.
    hook = module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()
        del module.forward
        if own is not None:
            module.forward = own


def _log_softmax(logits: torch.Tensor, tokens: torch.Tensor, temperature: float, entropy: bool) -> torch.Tensor:
    """Return the log-probabilities `(N, 1) float32` of `tokens (N,)` for `logits (N, V)`. With `entropy`, a second
    column contains the entropy of each row's distribution."""
    # Convert the logits to float32 before the softmax. In bf16, logits have only about two significant digits, and the
    # loss depends on small differences.
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    if not entropy:
        return -torch.nn.functional.cross_entropy(logits, tokens, reduction="none")[:, None]
    logps = logits.log_softmax(-1)
    # Clamp the log-probabilities because 0 times minus infinity is NaN.
    entropies = -(logps.exp() * logps.clamp(min=torch.finfo(logps.dtype).min)).sum(-1)
    return torch.stack([logps.gather(1, tokens[:, None])[:, 0], entropies], dim=1)


def _processed(causal: PreTrainedModel, logits: torch.Tensor) -> torch.Tensor:
    """Apply the model's own scaling (Cohere, Granite, Falcon-H1) and soft-capping (Gemma) to `logits`."""
    config = causal.config.get_text_config(decoder=True)
    for name in ("logit_scale", "lm_head_multiplier"):
        if (scale := getattr(config, name, None)) is not None:
            logits = logits * scale
    if (scale := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / scale
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = torch.tanh(logits / cap) * cap
    return logits


Arrangement = Literal["shared", "by_length", "in_order"]
"""Arrangement of rows in forward passes. "shared" packs rows that share a prompt, "by_length" groups rows of similar
length, and "in_order" keeps the order so that all ranks make the same number of passes regardless of their data."""

_COMPLETION_PER_PROMPT = 4
"""Maximum number of completion tokens per prompt token in a pack of several completions. The cost of attention grows
with the square of a pack's length."""
_FIXED_COST_ROWS = 8
"""Minimum number of completions in a pass before a shorter pack starts a new pass, because each pass has a fixed
cost."""
_SIMILAR = 0.75
"""Once a pass has `_FIXED_COST_ROWS` completions, packs shorter than this fraction of its longest pack start a new
pass, because all packs in a pass are padded to the same length."""


@dataclass
class _Pack:
    """Completions (rows of the batch) that share a prefix of `prefix` tokens."""

    prefix: int
    rows: list[int]
    length: int
    """Number of tokens in the prefix and all completions."""


def completion_logps(
    model: torch.nn.Module,
    ids: torch.Tensor,
    loss_mask: torch.Tensor,
    *,
    temperature: float = 1.0,
    max_rows: int | None = None,
    arrangement: Arrangement = "by_length",
    entropy: bool = False,
    logits_per_chunk: int = LOGITS_PER_CHUNK,
) -> torch.Tensor:
    """Return the log-probability of each token that contributes to the loss, given the preceding tokens in its row.

    Args:
        ids: `(B, L) int64`, padded on the right.
        loss_mask: `(B, L - 1) bool`, where column `i` indicates whether `ids[:, i + 1]` contributes to the loss.
        temperature: the logits are divided by this value.
        max_rows: maximum number of rows in one forward pass. Default: all rows.
        arrangement: see `Arrangement`. `"shared"` requires `can_share_prompts(model)`.
        logits_per_chunk: maximum number of logits in memory at once.

    Returns:
        Log-probabilities `(B, L - 1) float32`, which are 0 where the mask is False. With `entropy`, the result has the
        shape `(2, B, L - 1)` and contains the log-probabilities and the entropy of each token's distribution, in nats.
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
    values, rows, columns = [], [], []
    for part in passes:
        common = _common_start(model, ids, part) if arrangement == "shared" else 0
        row, column, prompt, segment = _layout(part, spans, common, ids.device)
        start = part[0].prefix if common else min(pack.prefix for pack in part)
        keep = row.shape[1] - start
        inputs = {"input_ids": ids[row, column], "logits_to_keep": keep, "use_cache": False}
        if common or any(len(pack.rows) > 1 for pack in part):
            inputs |= {"attention_mask": _mask(prompt, segment), "position_ids": column}
        row, column, real = row[:, start:], column[:, start:], segment[:, start:] > 0
        row, column = row[real], column[real]
        tokens = ids[row, column + 1]
        values.append(token_logps(model, inputs, real, tokens, temperature, logits_per_chunk, entropy=entropy))
        rows.append(row)
        columns.append(column)
    places, nothing = (torch.cat(rows), torch.cat(columns)), torch.zeros(loss_mask.shape, device=ids.device)
    if not entropy:
        return nothing.index_put(places, torch.cat(values)) * loss_mask
    return torch.stack([nothing.index_put(places, column) * loss_mask for column in torch.cat(values).unbind(1)])


def can_share_prompts(model: Any) -> bool:
    """Whether `completion_logps` can share prompts between completions. The model must accept 4-D masks and must pass
    information between tokens only through attention.

    On GPUs, the result is always False because a custom mask prevents the use of fused attention kernels. Whether
    sharing would still save time on GPUs has not been measured.
    """
    peft = getattr(model, "active_peft_config", None)
    config = model.config.get_text_config(decoder=True)
    return bool(
        model.device.type == "cpu"
        and config._attn_implementation == "sdpa"
        and attends_everything(model)
        and not (peft and peft.is_prompt_learning)  # models with virtual tokens need a 2-D mask
    )


def _packs(ids: torch.Tensor, spans: list[tuple[int, int]], max_rows: int) -> list[_Pack]:
    """Group rows with the same prompt into packs, each small enough that sharing the prompt saves time."""
    packs: list[_Pack] = []
    open_packs: dict[tuple[int, ...], _Pack] = {}
    # The prompt's last token predicts a completion's first token, so each completion includes the prompt's last token,
    # and the prefix does not.
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
    """Combine packs of similar lengths into passes with at most `max_rows` completions each."""
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


def _common_start(model: torch.nn.Module, ids: torch.Tensor, packs: list[_Pack]) -> int:
    """Return the number of tokens that all packs start with, or 0 if computing them once would not save time.

    Packs that share their start form one sequence. The cost of attention grows with the square of its length.
    """
    prompts = [tuple(ids[pack.rows[0], : pack.prefix].tolist()) for pack in packs]
    common = common_start(prompts)
    causal = _causal(model)
    if common == 0 or len(packs) == 1 or causal is None:
        return 0
    # Per layer, a token costs about 24 h^2 operations in the linear layers and 4 h for each key that it attends to.
    linear = 6 * causal.config.get_text_config(decoder=True).hidden_size
    lengths = [max(pack.length for pack in packs)] * len(packs)
    together = common + sum(pack.length - common for pack in packs)
    return common if together * (linear + together) < sum(length * (linear + length) for length in lengths) else 0


def _layout(
    packs: list[_Pack], spans: list[tuple[int, int]], common: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the row, column, prompt and segment of each token in the packed sequences, each as a tensor `(P, S)
    int64`. There is one sequence per pack. If the packs share their first `common` tokens, there is only one sequence.

    Within a sequence, prompts are numbered from 1, and 0 means the common start. The segment is 0 for a prompt, 1, 2,
    ... for its completions. Both are -1 for padding.
    """
    sequences = []
    for number, pack in enumerate(packs, start=1):
        first = pack.rows[0]
        if number == 1 or not common:
            sequences.append([(first, column, 0, 0) for column in range(common)])
        tokens = sequences[-1]
        tokens += [(first, column, number, 0) for column in range(common, pack.prefix)]
        for segment, row in enumerate(pack.rows, start=1):
            tokens += [(row, column, number, segment) for column in range(*spans[row])]
    width = max(map(len, sequences))
    padded = [tokens + [(0, 0, -1, -1)] * (width - len(tokens)) for tokens in sequences]
    row, column, prompt, segment = torch.tensor(padded, device=device).unbind(-1)
    return row, column, prompt, segment


def _mask(prompt: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
    """Return a causal attention mask `(P, 1, S, S) bool` in which each token attends only to the common start, to its
    prompt and to its own segment."""
    same_prompt = prompt[:, None, :] == prompt[:, :, None]
    of_key, of_query = segment[:, None, :], segment[:, :, None]
    visible = (prompt == 0)[:, None, :] | same_prompt & ((of_key == 0) | (of_key == of_query))
    return visible.tril()[:, None]
