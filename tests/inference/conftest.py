"""Fixtures for the tiny policy and an engine that samples from it."""

from typing import Any

import pytest
import torch
from loopback import serve  # noqa: F401  fixture
from transformers import AutoModelForCausalLM, AutoTokenizer

from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.tiny import POLICY_DIR


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(POLICY_DIR)


@pytest.fixture(scope="session")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)


@pytest.fixture
def engine(model: Any, tokenizer: Any) -> EmbeddedEngine:
    return EmbeddedEngine(model, tokenizer, seed=0)
