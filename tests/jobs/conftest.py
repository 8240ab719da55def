"""Small environments and trainers on the tiny policy, and a working folder."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from training_fixtures import *  # noqa: F403  fixtures


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, environ: Callable[..., None]) -> Iterator[Path]:
    """The working folder of a test, empty at first. The environment names no launcher, GPUs or caches."""
    environ(CUDA_VISIBLE_DEVICES="", WORLD_SIZE=None, VLLM_CPU_KVCACHE_SPACE=None, HF_HOME=None)
    with contextlib.chdir(tmp_path):
        yield tmp_path
