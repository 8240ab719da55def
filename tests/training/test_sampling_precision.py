"""The embedded engine in mixed precision, in training and in an evaluation, on the CPU."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import FAMILIES, SMALL, random_model
from peft import LoraConfig
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, PreTrainedModel

from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.local_models import embedded
from rg_env.inference.embedded import kv_cache
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.models import load_policy
from rg_env.inference.protocol import Completion, Sampling

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]
HALF = torch.bfloat16


class Casts(TorchDispatchMode):
    """Records the tensors that are cast while this mode is active, by the address of their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("_to_copy", "to"):
            self.addresses.append(args[0].data_ptr())
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("new_precision")
@pytest.mark.parametrize("adapters", [False, True])
def test_weights_are_cast_once(make_trainer: Any, adapters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer with bf16 samples any number of tokens with one cast of each weight, and stores both keys and values in
    half precision. Frozen weights stay frozen."""
    stored, update = set(), kv_cache.GrowingLayer.update

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = update(self, *args, **kwargs)
        stored.add(tuple(each.dtype for each in found))
        return found

    monkeypatch.setattr(kv_cache.GrowingLayer, "update", watched)
    lora = LoraConfig(r=4, target_modules="all-linear") if adapters else None
    trainer = make_trainer(model=random_model(FAMILIES["qwen2"]), peft_config=lora, bf16=True)
    model = trainer.model
    linear = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    trained = [each.requires_grad for each in model.parameters()]
    with Casts() as casts:
        trainer.engine.generate(PROMPTS, Sampling(max_tokens=6))
    weights = {each.weight.data_ptr() for each in linear}
    found = [address for address in casts.addresses if address in weights]
    assert len(found) == len(set(found)) == len(weights)
    assert stored == {(HALF, HALF)}
    assert [each.requires_grad for each in model.parameters()] == trained


def check_logprobs(model: Any, prompt: list[int], got: Completion) -> None:
    """Compare a completion's log-probabilities with those of a forward pass under autocast."""
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF):
        logits = model(torch.tensor([prompt + got.token_ids])).logits[0, len(prompt) - 1 : -1].float()
    expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(got.token_ids)[:, None]).squeeze(-1)
    torch.testing.assert_close(torch.tensor(got.logprobs), expected, atol=2e-2, rtol=2e-2)


def test_logprobs_match_training_in_bf16(model: Any, tokenizer: Any) -> None:
    """A forward pass under autocast, as in training, yields the same log-probabilities up to rounding."""
    engine = EmbeddedEngine(model, tokenizer, seed=0, autocast=HALF)
    for prompt, got in zip(PROMPTS, engine.generate(PROMPTS, Sampling(max_tokens=12)), strict=True):
        check_logprobs(model, prompt, got)


@pytest.mark.parametrize("run", [None, "training: {bf16: true}", "training: {bf16: false}"])
def test_a_gpu_evaluates_in_the_precision_of_the_run(
    run: str | None, tmp_path: Path, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, linear layers take two bytes per weight, and the answers are those that the run would sample, unless
    the run trained in float32."""
    folder = tmp_path / "run" / "checkpoint-1"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if run:
        (folder.parent / "config.yaml").write_text(run)
    monkeypatch.setattr("rg_env.inference.models.best_device", lambda: "cuda")
    monkeypatch.setattr(PreTrainedModel, "to", lambda self, device: self)  # this machine has no GPU

    async def answers() -> tuple[Any, list[Completion]]:
        async with embedded(str(folder), EvalConfig(models={"it": {"model": str(folder)}}, seed=3)) as it:  # type: ignore[dict-item]
            return it.engine, it.engine.generate(PROMPTS, Sampling(max_tokens=12))

    engine, found = asyncio.run(answers())
    half = None if run and "false" in run else HALF
    sizes = {each.weight.dtype for each in engine.model.modules() if isinstance(each, torch.nn.Linear)}
    assert sizes == {half or torch.float32}
    assert engine.model.get_input_embeddings().weight.dtype == torch.float32
    theirs = load_policy(str(folder)).model
    assert found == EmbeddedEngine(theirs, tokenizer, seed=3, autocast=half).generate(PROMPTS, Sampling(max_tokens=12))


def test_a_finished_row_may_reach_the_end_of_the_context(tokenizer: Any) -> None:
    """Learned positions end with the context, which a finished row with a longer prompt passes while a shorter one is
    still running."""
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    model = random_model(GPT2Config(vocab_size=SMALL["vocab_size"], bos_token_id=1, eos_token_id=2, **sizes))
    found = EmbeddedEngine(model, tokenizer, seed=0).generate([[5] * 3, *[[6] * 2] * 5], Sampling(temperature=0))
    assert [len(each.token_ids) for each in found] == [13, *[14] * 5]
