"""A checkout to write scripts in, and a cluster that runs them."""

import shutil
import venv
from pathlib import Path

import pytest

pytest.importorskip("psutil", reason="extras 'train' and 'eval' have it")
from slurm_cluster import CONFIG, EVALUATION, REPOSITORY, Cluster


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a config for each engine, one of an evaluation, and an environment; a space and a quote in
    its name."""
    folder = tmp_path / "my team's checkout"
    shutil.copytree(REPOSITORY / "configs", folder / "configs")
    for kind in ("embedded", "vllm"):
        (folder / f"{kind}.yaml").write_text(CONFIG.replace("KIND", kind))
    (folder / "evaluation.yaml").write_text(EVALUATION)
    venv.create(folder / ".venv", symlinks=True)
    for name in ("HF_HOME", "RG_ENV_CACHE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def cluster(checkout: Path) -> Cluster:
    return Cluster(checkout)
