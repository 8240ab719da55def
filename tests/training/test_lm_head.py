"""The LM head in chunks: the same numbers as without chunks, with the memory of one chunk."""

import copy
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from model_families import FAMILIES, SMALL, random_model
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CohereConfig, GraniteConfig, LlamaConfig, LlamaForCausalLM

from rg_env.training.algorithms.logprobs import Arrangement, _log_softmax, completion_logps, head_is_replaceable

FIVE = 5 * SMALL["vocab_size"]
"""The number of logits of five positions."""
WHOLE = 10**9
OTHERS = {
    "cohere, scaled": CohereConfig(**SMALL, logit_scale=0.25),
    "granite, scaled": GraniteConfig(**SMALL, logits_scaling=4.0),
    "gemma2, capped hard": type(FAMILIES["gemma2 with soft caps"])(**SMALL, head_dim=16, final_logit_softcapping=2.0),
    "llama, tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
}
ADAPTED = {
    "LoRA": {"target_modules": ["q_proj"]},
    "LoRA on the head": {"target_modules": ["q_proj", "lm_head"]},
    "a head of its own": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "DoRA on the head": {"target_modules": ["lm_head"], "use_dora": True},
}


def build(name: str) -> Any:
    model = random_model((FAMILIES | OTHERS).get(name, FAMILIES["llama"]))
    if name in ADAPTED:
        model = get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **ADAPTED[name]))
    return model


def batch(rows: int = 6, prompt: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids `(B, L)` and loss mask `(B, L - 1)`: each pair of rows has the same prompt, and completions have 2, 4,
    6, … 12 tokens."""
    torch.manual_seed(1)
    ids = torch.randint(3, 700, (rows, prompt + 12))
    ids[1::2, :prompt] = ids[::2, :prompt]
    lengths = 2 + 2 * (torch.arange(rows) % 6)
    columns = torch.arange(prompt + 11)
    return ids, (columns >= prompt - 1) & (columns < prompt - 1 + lengths[:, None])


def outcome(
    model: Any, chunk: int, arrangement: Arrangement = "by_length", sizes: Any = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities, and gradients of a function of them, with `chunk` logits at a time."""
    ids, mask = batch(*sizes)
    model.zero_grad()
    logps = completion_logps(model, ids, mask, temperature=0.7, arrangement=arrangement, logits_per_chunk=chunk)
    (logps * torch.linspace(-1, 1, logps.numel()).view(logps.shape)).sum().backward()
    return logps.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def same(ours: Any, whole: Any) -> None:
    torch.testing.assert_close(ours[0], whole[0], atol=2e-5, rtol=1e-4)
    assert (ours[1] - whole[1]).norm() <= 1e-4 * whole[1].norm() + 1e-5


def rows_of_head(model: Any) -> list[int]:
    """Record the number of rows in each call of the LM head from now on."""
    head, rows = model.get_output_embeddings(), list[int]()
    logits_of = head.forward

    def counting(hidden: torch.Tensor) -> Any:
        rows.append(hidden.numel() // hidden.shape[-1])
        return logits_of(hidden)

    head.forward = counting
    return rows


@pytest.mark.parametrize("arrangement", get_args(Arrangement))
@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS, *ADAPTED])
def test_chunks_change_nothing(name: str, arrangement: Arrangement) -> None:
    """Log-probabilities and gradients stay the same, whatever a family does to its logits and PEFT to its head."""
    if arrangement == "shared" and "window" in name:
        pytest.skip("its layers have different masks")
    model = build(name)
    whole = outcome(model, WHOLE, arrangement)
    rows = rows_of_head(model)
    same(outcome(model, FIVE, arrangement), whole)
    assert max(rows) <= 5
    assert len(rows) > 10
    same(outcome(model, WHOLE, arrangement), whole)
    assert max(rows) > 5


def test_the_head_is_restored_after_an_error() -> None:
    """After an error, a forward pass returns logits again."""
    model = build("llama")
    ids, mask = batch()
    expected = model(ids).logits.detach()

    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    hook = model.lm_head.register_forward_hook(fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        completion_logps(model, ids, mask, logits_per_chunk=FIVE)
    hook.remove()
    torch.testing.assert_close(model(ids).logits, expected)
    assert "forward" not in vars(model.lm_head)


def test_hooks_of_the_head_see_all_hidden_states() -> None:
    """Hooks run once per pass, as without chunks; examples/train_actor_critic.py relies on this."""
    model = build("llama")
    ids, mask = batch()
    assert head_is_replaceable(model)  # as a trainer finds out first
    hidden_states: dict[int, list[torch.Tensor]] = {FIVE: [], WHOLE: []}
    for chunk, seen in hidden_states.items():
        with model.lm_head.register_forward_pre_hook(lambda head, inputs, seen=seen: seen.append(inputs[0])):
            completion_logps(model, ids, mask, arrangement="in_order", logits_per_chunk=chunk)
    assert len(hidden_states[FIVE]) == 1
    torch.testing.assert_close(hidden_states[FIVE][0], hidden_states[WHOLE][0])


@pytest.mark.parametrize("chunk", [FIVE, WHOLE])
@pytest.mark.parametrize("arrangement", get_args(Arrangement))
def test_entropies_match_the_plain_formula(arrangement: Arrangement, chunk: int) -> None:
    """The entropy at each position and its gradient match the formula, also with gradient checkpointing."""
    model = build("gemma2, capped hard" if arrangement != "shared" else "llama")
    ids, mask = batch()
    plain = (model(ids).logits[:, :-1] / 0.7).log_softmax(-1)
    entropies = -(plain.exp() * plain).sum(-1) * mask
    expected = torch.stack([plain.gather(2, ids[:, 1:, None])[..., 0] * mask, entropies])
    weights = torch.linspace(-1, 1, expected.numel()).view(expected.shape)

    def gradient(result: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        (result * weights).sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    expected_gradient = gradient(expected)
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.train()
    result = completion_logps(
        model, ids, mask, temperature=0.7, arrangement=arrangement, entropy=True, logits_per_chunk=chunk
    )
    torch.testing.assert_close(result, expected, atol=2e-5, rtol=1e-4)
    assert (gradient(result) - expected_gradient).norm() <= 1e-4 * expected_gradient.norm()


def test_a_token_with_zero_probability_adds_no_entropy() -> None:
    """Some models set the logits of padding in their vocabulary to minus infinity."""
    logits = torch.tensor([[1.0, 0.0, -torch.inf]], requires_grad=True)
    result = _log_softmax(logits, torch.tensor([0]), 1.0, True)
    p = torch.tensor([1.0, 0.0]).softmax(0)
    assert result[0, 1].item() == pytest.approx(-(p * p.log()).sum().item())
    result[0, 1].backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


class Unknown(LlamaForCausalLM):
    """A model whose logits are three times those of its head, which its configuration does not show."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = 3 * output.logits
        return output


def test_unknown_changes_to_logits_are_computed_without_chunks() -> None:
    """A model that changes its logits in an unknown way gets correct numbers, at the cost of memory."""
    model = Unknown(copy.deepcopy(FAMILIES["llama"]))
    same(outcome(model, FIVE), outcome(model, WHOLE))


@pytest.mark.parametrize("kind", ["known", "unknown"])
def test_the_number_of_forward_passes_does_not_depend_on_the_number_of_logits(kind: str) -> None:
    """Ranks whose passes are below and above the limit on logits make the same number of passes, which ZeRO-3 and FSDP2
    need. Whether a model changes its logits in an unknown way is found out once."""
    model = Unknown(copy.deepcopy(FAMILIES["llama"])) if kind == "unknown" else build("llama")
    assert head_is_replaceable(model) is (kind == "known")
    passes = list[int]()
    model.register_forward_hook(lambda *_: passes.append(1))
    outcome(model, WHOLE)
    whole = len(passes)
    outcome(model, FIVE)
    assert len(passes) == 2 * whole > 0


def test_a_trainer_finds_out_before_its_first_step(make_trainer: Any) -> None:
    """In the constructor, all ranks make the forward pass that finds this out together."""
    model = make_trainer().model
    passes = list[int]()
    model.register_forward_hook(lambda *_: passes.append(1))
    assert head_is_replaceable(model)
    assert not passes


def test_gradients_under_bf16_autocast_are_added_up_in_float32() -> None:
    """Sixty rows in chunks have the error of rounding each chunk once; a sum in bf16 would have more than twice that
    error."""
    model = build("llama")

    def of_head(chunk: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outcome(model, chunk, sizes=(60,))
        return model.lm_head.weight.grad.clone()

    ours, whole = of_head(FIVE), of_head(WHOLE)
    assert (ours - whole).norm() < 0.004 * whole.norm()


@pytest.mark.parametrize("find_unused", [False, True])
def test_chunks_work_under_ddp(find_unused: bool, tmp_path: Path) -> None:
    """Log-probabilities and gradients equal those without the wrapper."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = build("llama, tied")
        plain = outcome(copy.deepcopy(model), FIVE)
        wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=find_unused)
        same(outcome(wrapped, FIVE), plain)
    finally:
        torch.distributed.destroy_process_group()


class Largest(TorchDispatchMode):
    """Records the largest number of elements of any tensor created in this context."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return made


@pytest.mark.parametrize("arrangement", get_args(Arrangement))
def test_the_largest_tensor_is_a_chunk_of_logits(arrangement: Arrangement) -> None:
    """In both passes, the largest tensor is a chunk of logits, however long the prompt is and however many rows there
    are."""
    vocabulary, chunk = 20_000, 400_000
    model = random_model(LlamaConfig(**SMALL | {"vocab_size": vocabulary, "hidden_size": 16, "num_attention_heads": 2}))

    def largest(*sizes: int, chunk: int = chunk) -> int:
        ids, mask = batch(*sizes)
        with Largest() as seen:
            completion_logps(model, ids, mask, arrangement=arrangement, logits_per_chunk=chunk).sum().backward()
        return seen.numel

    whole = [largest(*sizes, chunk=WHOLE) for sizes in ((6, 10), (24, 10))]
    assert whole[0] > 2 * chunk
    assert whole[1] > whole[0]
    assert [largest(*sizes) for sizes in ((6, 10), (24, 10), (6, 80), (24, 80))] == [chunk] * 4
