"""A module of targets, and a pool that tests share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_pools import TARGETS

from rg_env.core.grading.workers import WorkerPool


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("targets")
    (folder / "worker_targets.py").write_text(TARGETS, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[WorkerPool]:
    with WorkerPool("worker_targets:do", workers=1, wall_s=0.5, memory_mb=256, warmup="worker_targets:warm") as pool:
        yield pool
