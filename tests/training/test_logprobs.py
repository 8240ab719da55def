"""Log-probabilities with shared prompts, compared with each row alone."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_families import FAMILIES, SMALL, random_model, supports_sdpa
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import BambaConfig

from rg_env.training.algorithms.logprobs import Arrangement, can_share_prompts, completion_logps, head_is_replaceable
from rg_env.training.algorithms.policy import prepare_policy

Rows = list[tuple[list[int], list[int]]]
tokens = st.lists(st.integers(3, 700), min_size=1, max_size=12)


def as_batch(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids `(B, L)` and loss mask `(B, L - 1)` of prompts and completions."""
    width = max(len(prompt) + len(completion) for prompt, completion in rows)
    ids = torch.tensor([p + c + [0] * (width - len(p) - len(c)) for p, c in rows])
    mask = torch.tensor([[0] * len(p) + [1] * len(c) + [0] * (width - len(p) - len(c)) for p, c in rows])
    return ids, mask[:, 1:].bool()


def alone(model: Any, ids: torch.Tensor, mask: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities of each row by itself, unpadded, through the whole model."""
    result = torch.zeros(mask.shape)
    for row in range(len(ids)):
        length = int(mask[row].nonzero().max()) + 2
        logits = model(ids[row : row + 1, :length]).logits[0, :-1] / temperature
        chosen = torch.log_softmax(logits, -1).gather(-1, ids[row, 1:length, None]).squeeze(-1)
        result[row, : length - 1] = chosen * mask[row, : length - 1]
    return result


def gradient(model: Any, logps: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    (logps * torch.linspace(-1, 1, logps.numel()).view(logps.shape)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


class Shapes:
    """Records the shape of `input_ids` and the number of positions with logits of each forward pass."""

    def __init__(self, model: Any) -> None:
        self.inputs: list[tuple[int, ...]] = []
        self.positions: list[int] = []
        self.caches: list[Any] = []
        self._hook = model.register_forward_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        self.caches.append(output.past_key_values)
        self.inputs.append(tuple(kwargs["input_ids"].shape))
        self.positions.append(output.logits.shape[1])


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.sampled_from([[], list(range(20, 60))]),
    prompts=st.lists(tokens, min_size=1, max_size=3),
    members=st.lists(st.tuples(st.integers(0, 2), tokens), min_size=1, max_size=9),
    max_rows=st.one_of(st.none(), st.integers(1, 5)),
    temperature=st.sampled_from([1.0, 0.7]),
)
def test_shared_prompts_change_nothing(
    model: Any,
    start: list[int],
    prompts: list[list[int]],
    members: list[tuple[int, list[int]]],
    max_rows: int | None,
    temperature: float,
) -> None:
    """Log-probabilities and gradients equal those of each row alone, whatever the other rows are."""
    ids, mask = as_batch([(start + prompts[which % len(prompts)], completion) for which, completion in members])
    expected = alone(model, ids, mask, temperature)
    expected_gradient = gradient(model, expected)
    for arrangement in get_args(Arrangement):
        result = completion_logps(model, ids, mask, temperature=temperature, max_rows=max_rows, arrangement=arrangement)
        torch.testing.assert_close(result, expected, atol=2e-5, rtol=1e-4)
        assert (gradient(model, result) - expected_gradient).norm() <= 1e-4 * expected_gradient.norm() + 1e-5


def test_a_prompt_is_computed_once_for_its_completions(model: Any) -> None:
    """Eight short completions share a single copy of their prompt."""
    prompt = list(range(20, 60))
    ids, mask = as_batch([(prompt, [100 + i, 7, 8]) for i in range(8)])
    shapes = Shapes(model)
    completion_logps(model, ids, mask, arrangement="shared")
    assert shapes.inputs == [(1, 39 + 8 * 3)]  # a completion starts with the prompt's last token
    assert shapes.positions == [8 * 3]
    assert shapes.caches == [None]  # nothing would read a cache


def test_a_start_that_all_prompts_share_is_computed_once(model: Any) -> None:
    """Such as few-shot examples. The prompts' own tokens follow once for all of a prompt's completions."""
    start = list(range(20, 60))
    ids, mask = as_batch([([*start, *prompt], [100 + i, 7]) for prompt in ([5], [5, 6], [9, 8, 4]) for i in range(4)])
    expected, shapes = alone(model, ids, mask, 1.0), Shapes(model)
    result = completion_logps(model, ids, mask, arrangement="shared")
    assert shapes.inputs == [(1, 40 + (0 + 1 + 2) + 12 * 2)]
    torch.testing.assert_close(result, expected, atol=2e-5, rtol=1e-4)


def test_in_order_passes_do_not_depend_on_lengths(model: Any) -> None:
    """Ranks that share a model's shards must run the same number of passes."""
    ids, mask = as_batch([([5, i], [9]) for i in range(2)] + [([5, 20 + i], [9] * 40) for i in range(8)])
    for arrangement, passes in (("in_order", [9, 1]), ("by_length", [8, 2])):
        shapes = Shapes(model)
        completion_logps(model, ids, mask, max_rows=9, arrangement=arrangement)
        assert [rows for rows, _ in shapes.inputs] == passes


@pytest.mark.parametrize("name", [*FAMILIES, "bamba", "llama with eager attention", "llama with LoRA"])
def test_the_trainer_shares_prompts_only_where_it_is_exact(
    make_trainer: Any, make_batch: Callable[..., Any], name: str
) -> None:
    """Models whose attention takes any mask share prompts; windows, recurrent layers and other attention get separate
    rows. All models give the log-probabilities of each row alone."""
    bamba = BambaConfig(**SMALL, attn_layer_indices=[1], mamba_n_heads=8)
    config: Any = {**FAMILIES, "bamba": bamba}.get(name, FAMILIES["llama"])
    attention = "sdpa" if supports_sdpa(config) and "eager" not in name else "eager"
    tested: Any = random_model(config, attn_implementation=attention)
    if "LoRA" in name:
        tested = get_peft_model(tested, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    trainer = make_trainer(temperature=0.7)
    tested.eval()
    inputs = make_batch(["How many legs do three dogs have?"] * 4, ["12", "3 x 4 = 12", "<answer>12</answer>", "7"])
    ids, mask = inputs["input_ids"], inputs["loss_mask"]
    expected = alone(tested, ids, mask, 0.7)
    shapes = Shapes(tested)
    result = trainer.objective.logps(tested, ids, mask)
    shared = not any(word in name for word in ("window", "soft caps", "bamba", "eager"))
    assert (shapes.inputs[0][0] == 1) is shared
    torch.testing.assert_close(result, expected, atol=2e-4, rtol=1e-3)


def test_prompt_tuning_gets_separate_rows(model: Any) -> None:
    """The virtual tokens of prompt tuning have a mask of their own."""
    assert can_share_prompts(model)
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    assert not can_share_prompts(get_peft_model(model, config))


class Bigrams(torch.nn.Module):
    """A model whose bf16 logits are the same on every call: for each token, a row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).mul(4).bfloat16()

    def forward(self, input_ids: torch.Tensor, logits_to_keep: int, use_cache: bool) -> Any:
        return SimpleNamespace(logits=self.table[input_ids[:, -logits_to_keep:]])


def test_bf16_logits_are_not_rounded_again() -> None:
    """The softmax of bf16 logits is computed in float32, so its result is not rounded to bf16's two digits."""
    ids, mask = as_batch([(list(range(20, 30)), [100 + 7 * i, 300, 41 * i + 5, 9]) for i in range(8)])
    result = completion_logps(Bigrams(), ids, mask)
    exact = torch.log_softmax(Bigrams().table.double(), -1)[ids[:, :-1], ids[:, 1:]] * mask
    assert (result - exact).abs().max() < 1e-5


def test_by_default_activations_are_recomputed_only_if_they_would_not_fit(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision is part of the recorded arguments."""
    trainer = make_trainer(gradient_checkpointing=None)
    assert trainer.args.gradient_checkpointing is False
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**20))
    trainer = make_trainer(gradient_checkpointing=None)
    assert trainer.args.gradient_checkpointing is True
    assert make_trainer(gradient_checkpointing=False).args.gradient_checkpointing is False


@pytest.mark.parametrize("chunk", [10**9, 5 * 768], ids=["logits whole", "logits in chunks"])
@pytest.mark.parametrize("arrangement", ["shared", "in_order"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "LoRA"])
def test_gradient_checkpointing_changes_no_gradient(
    lora: bool, arrangement: Arrangement, chunk: int, make_args: Any, make_batch: Callable[..., Any], model: Any
) -> None:
    """Gradients are equal for full training and for adapters, and layers run again in the backward pass only with
    checkpointing."""
    batch = make_batch(["How many legs do three dogs have?"] * 4, ["12", "3 x 4 = 12", "<answer>12</answer>", "7"])
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False) if lora else None
        args = make_args(gradient_checkpointing=checkpointing)
        policy = prepare_policy(copy.deepcopy(model), args, config).train()
        assert can_share_prompts(policy)
        assert head_is_replaceable(policy)  # by a forward pass that must not be counted
        runs: list[int] = []
        layer = (policy.get_base_model() if lora else policy).model.layers[0]
        layer.mlp.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        ids, mask = batch["input_ids"], batch["loss_mask"]
        logps = completion_logps(policy, ids, mask, arrangement=arrangement, logits_per_chunk=chunk)
        gradient(policy, logps)
        gradients.append({name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None})
        assert len(runs) == (2 if checkpointing else 1)
    assert gradients[0].keys() == gradients[1].keys()
    for name, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], value, atol=1e-5, rtol=1e-4)
