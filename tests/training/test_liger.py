"""Liger's kernels are refused where they cannot run, and otherwise give the same log-probabilities."""

from typing import Any

import pytest
import torch
from model_families import FAMILIES, SMALL, random_model

from rg_env.errors import InputError, MissingExtraError
from rg_env.training import GRPOConfig
from rg_env.training.algorithms import policy
from rg_env.training.algorithms.logprobs import completion_logps

NO_KERNELS = {"rope": False, "rms_norm": False, "cross_entropy": False}


def test_liger_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "is_liger_kernel_available", lambda: False)
    with pytest.raises(MissingExtraError, match="needs liger-kernel: run `pip install"):
        policy.check_liger(GRPOConfig(use_liger_kernel=True), torch.device("cuda"))


def test_liger_needs_a_gpu(make_trainer: Any) -> None:
    """Without this check, Triton would fail in the first step."""
    with pytest.raises(InputError, match="Liger's kernels need a GPU, but this run is on cpu"):
        make_trainer(use_liger_kernel=True)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")  # liger-kernel 0.8.5 uses it
@pytest.mark.parametrize("chunk", [10**9, 5 * SMALL["vocab_size"]])
@pytest.mark.parametrize("name", ["qwen2", "llama", "gemma2 with soft caps", "phi3 with fused projections"])
def test_a_liger_model_gives_the_same_logprobs(name: str, chunk: int) -> None:
    """A Liger model's forward pass accepts our arguments, with and without chunks. Kernels that need a GPU are not
    tested."""
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        pytest.skip(str(error))
    model = random_model(FAMILIES[name])
    ids = torch.randint(3, 700, (4, 20))
    mask = torch.zeros(4, 19, dtype=torch.bool)
    mask[:, 9:] = True
    expected = completion_logps(model, ids, mask)
    mlp = "geglu" if "gemma" in name else "swiglu"
    _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=True, **NO_KERNELS, **{mlp: False})
    assert "liger" in model.forward.__func__.__module__
    logps = completion_logps(model, ids, mask, logits_per_chunk=chunk)
    torch.testing.assert_close(logps, expected, atol=2e-5, rtol=1e-4)
