"""Locks that a killed process left where DeepSpeed compiles."""

import os
import time
from pathlib import Path

import pytest

from rg_env.training import distributed


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """One that is left over, one whose neighbour was just written, and a fresh one."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    found = {}
    for name in ("stale", "compiling", "fresh"):
        folder = tmp_path / "extensions" / f"{name}_op"
        folder.mkdir(parents=True)
        found[name] = folder / "lock"
        for file in (found[name], folder / "build.ninja"):
            file.touch()
            old = name == "stale" or (name == "compiling" and file.name == "lock")
            os.utime(file, (time.time() - old * 2 * distributed.STALE_S,) * 2)
    return found


def test_a_lock_that_is_left_over_is_taken_away_and_told(
    locks: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Once; what may still compile keeps its lock."""
    for _ in range(2):
        distributed.clear_stale_locks()
    assert {name: lock.exists() for name, lock in locks.items()} == {"stale": False, "compiling": True, "fresh": True}
    (line,) = capsys.readouterr().out.splitlines()
    assert str(locks["stale"]) in line


@pytest.mark.parametrize(("variable", "below"), [("XDG_CACHE_HOME", ""), ("HOME", ".cache")])
def test_the_folder_is_torchs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str) -> None:
    """As torch itself says it is, under the name of its build."""
    from torch.utils.cpp_extension import get_default_build_root

    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert distributed.extensions_folder() == tmp_path / below / "torch_extensions"
    assert Path(get_default_build_root()) == distributed.extensions_folder()
