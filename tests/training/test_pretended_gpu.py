"""A step of training on a pretended GPU (see `pretended_cuda`), from sampling to the loss and the update. A tensor that
is left on the CPU is an error there, as on a real GPU."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
import torch
from accelerate import PartialState
from model_families import SMALL, random_model
from pretended_cuda import CUDA, PretendedCuda
from torch._subclasses.fake_tensor import FakeTensor
from transformers import LlamaConfig, PreTrainedModel

from rg_env.errors import EngineError
from rg_env.inference.embedded import engine
from rg_env.inference.embedded.engine import EmbeddedEngine, Sampler
from rg_env.inference.protocol import Sampling
from rg_env.training import GRPOConfig
from rg_env.training.algorithms import objective

TINY = LlamaConfig(**{**SMALL, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32})
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]
pytestmark = pytest.mark.slow
MIXED = "Expected all tensors to be on the same device"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> PretendedCuda:
    """Pretend that this machine has a GPU which supports bfloat16."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    # transformers skips checks that wait for the GPU while it traces a model with fake tensors.
    monkeypatch.setattr("transformers.utils.import_utils.is_fake_tensor", lambda tensor: False)
    return PretendedCuda()


def _copied(tensor: Any, memo: dict[int, Any]) -> Any:
    found = memo[id(tensor)] = torch.nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
    found.real_tensor = tensor.real_tensor
    return found


@pytest.fixture
def make_on_gpu(
    cuda: PretendedCuda, make_trainer: Any, monkeypatch: pytest.MonkeyPatch, new_precision: None
) -> Iterator[Callable[..., Any]]:
    """Return a function that makes a trainer whose model is on the pretended GPU."""
    state = PartialState(cpu=True)
    monkeypatch.setattr(state, "device", CUDA)
    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator())
    monkeypatch.setattr(PreTrainedModel, "to", lambda self, device: self)
    monkeypatch.setattr(FakeTensor, "__deepcopy__", _copied, raising=False)
    monkeypatch.setattr("rg_env.training.trainer.check_savable", lambda model, tokenizer: None)

    def make(**fields: Any) -> Any:
        few = {"rollouts_per_step": 4, "per_device_train_batch_size": 4, "num_generations": 2, "max_tokens": 3}
        return make_trainer(model=cuda.moved(random_model(TINY)), bf16=True, **few, **fields)

    with cuda:
        yield make


EVERY_OPTION = Sampling(max_tokens=6, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.1)


def test_the_engine_stays_on_the_gpu(cuda: PretendedCuda, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill, decoding and all sampling options use only tensors on the GPU and yield the tokens that a CPU yields.
    The program waits for the GPU only once every few tokens."""
    monkeypatch.setattr(engine, "_CHECK_EVERY", 3)
    model, waits = random_model(TINY), list[int]()
    torch.manual_seed(0)
    expected = EmbeddedEngine(model, tokenizer).generate(PROMPTS, EVERY_OPTION)
    torch.manual_seed(0)
    with cuda:
        on_gpu = EmbeddedEngine(cuda.moved(model), tokenizer)
        began = cuda.waits
        with model.register_forward_pre_hook(lambda *_: waits.append(cuda.waits - began)):
            found = on_gpu.generate(PROMPTS, EVERY_OPTION)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert waits == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("kl_reference", ["initial", "previous"])
def test_a_step_stays_on_the_gpu(make_on_gpu: Any, cuda: PretendedCuda, kl_reference: str) -> None:
    """Rollouts, reference, each loss and the update use only tensors on the GPU, in bf16, and log-probabilities match
    those of the sampler."""
    trainer = make_on_gpu(beta=0.1, entropy_coef=0.1, kl_reference=kl_reference, num_iterations=2)
    parts = trainer._next_micro_batches()
    trainer._add_reference_logps(parts)
    losses = set()
    for loss_type in get_args(GRPOConfig.model_fields["loss_type"].annotation):
        trainer.objective._args = trainer.args.model_copy(update={"loss_type": loss_type})
        loss = trainer.objective(parts[0])
        assert loss.device == CUDA
        losses.add(round(loss.detach().item(), 6))
    assert len(losses) > 1
    assert trainer.metrics.take()["sampling/logp_difference"] < 0.05
    assert {result.dtype for name, result in cuda.operations if name in ("mm", "linear")} == {torch.bfloat16}
    for parameter in trainer.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)  # the backward pass cannot be pretended
    before = trainer.model.lm_head.weight.detach().clone()
    assert trainer.strategy._update(trainer._updating)[1] is False
    assert (trainer.model.lm_head.weight != before).any().item()


def test_a_tensor_on_the_cpu_is_found(make_on_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests fail if the sampler or the loss uses a tensor on another device."""
    trainer = make_on_gpu(beta=0.1)
    parts = trainer._next_micro_batches()
    trainer._add_reference_logps(parts)
    kl_terms, penalize = objective.kl_terms, Sampler._penalize
    monkeypatch.setattr(objective, "kl_terms", lambda *logps: kl_terms(*logps) + torch.zeros(logps[0].shape))
    with pytest.raises(RuntimeError, match=MIXED):
        trainer.objective(parts[0])
    monkeypatch.setattr(Sampler, "_penalize", lambda self, logits: penalize(self, logits) + torch.zeros(logits.shape))
    with pytest.raises(EngineError, match=MIXED):
        trainer.engine.generate(PROMPTS, Sampling(max_tokens=1))
