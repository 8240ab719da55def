"""Gradient checkpointing through the trainer: less is kept, and nothing else changes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig

from rg_env.training.algorithms import logprobs
from rg_env.training.algorithms.logprobs import can_share_prompts


def gradients(trainer: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of something made of the log-probabilities of `batch`."""
    model = trainer.model.train()
    model.zero_grad()
    logps = trainer.objective.logps(model, batch["input_ids"], batch["loss_mask"])
    (logps * torch.linspace(-1, 1, logps.numel()).view(logps.shape)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("chunk", [10**9, 5 * 768], ids=["logits whole", "logits in chunks"])
@pytest.mark.parametrize("processes", [1, 2], ids=["shared prompts", "rows in order"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "LoRA"])
def test_gradients_are_the_same(
    lora: bool,
    processes: int,
    chunk: int,
    make_trainer: Any,
    make_batch: Callable[..., Any],
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With all weights trained or an adapter's; layers are run again in the backward pass only with checkpointing."""
    monkeypatch.setattr(logprobs, "LOGITS_PER_CHUNK", chunk)
    batch = make_batch(["How many legs do three dogs have?"] * 4, ["12", "3 x 4 = 12", "<answer>12</answer>", "7"])
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False) if lora else None
        trainer = make_trainer(
            model=copy.deepcopy(model),
            peft_config=config,
            gradient_checkpointing=checkpointing,
        )
        assert can_share_prompts(trainer.model)
        layer = trainer.model.get_base_model().model.layers[0] if lora else trainer.model.model.layers[0]
        monkeypatch.setattr(type(trainer.accelerator), "num_processes", processes)
        runs: list[int] = []
        layer.mlp.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        found.append(gradients(trainer, batch))
        monkeypatch.setattr(type(trainer.accelerator), "num_processes", 1)
        assert len(runs) == (2 if checkpointing else 1)
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-5, rtol=1e-4)
