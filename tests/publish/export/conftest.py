"""Models to export, and the command on them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rg_env.publish.export.job import ExportRequest, export


@pytest.fixture
def make_model() -> Callable[..., Any]:
    """A small model with random weights; keywords change its configuration."""

    def make(config: Any, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    return make


@pytest.fixture
def exported() -> Callable[..., tuple[Path, list[str]]]:
    """Exports a folder; returns the new folder and the progress lines."""

    def call(path: Path, **request: Any) -> tuple[Path, list[str]]:
        lines: list[str] = []
        return export(ExportRequest(path, **request), lines.append), lines

    return call
