"""Gradient checkpointing: less is kept, and nothing else changes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig

from rg_env.training.algorithms.logprobs import Arrangement, can_share_prompts, completion_logps
from rg_env.training.algorithms.policy import prepare_policy


@pytest.mark.parametrize("chunk", [10**9, 5 * 768], ids=["logits whole", "logits in chunks"])
@pytest.mark.parametrize("arrangement", ["shared", "in_order"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "LoRA"])
def test_gradients_are_the_same(
    lora: bool, arrangement: Arrangement, chunk: int, make_args: Any, make_batch: Callable[..., Any], model: Any
) -> None:
    """With all weights trained or an adapter's; layers are run again in the backward pass only with checkpointing."""
    batch = make_batch(["How many legs do three dogs have?"] * 4, ["12", "3 x 4 = 12", "<answer>12</answer>", "7"])
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False) if lora else None
        args = make_args(gradient_checkpointing=checkpointing)
        policy = prepare_policy(copy.deepcopy(model), args, config, training=True).train()
        assert can_share_prompts(policy)
        runs: list[int] = []
        layer = (policy.get_base_model() if lora else policy).model.layers[0]
        layer.mlp.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        ids, mask = batch["input_ids"], batch["loss_mask"]
        logps = completion_logps(policy, ids, mask, arrangement=arrangement, logits_per_chunk=chunk)
        (logps * torch.linspace(-1, 1, logps.numel()).view(logps.shape)).sum().backward()
        found.append({name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None})
        assert len(runs) == (2 if checkpointing else 1)
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-5, rtol=1e-4)
