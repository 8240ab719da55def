"""Locks that a killed process left in DeepSpeed's build folder."""

import os
import time
from pathlib import Path

import pytest

from rg_env.training import collectives


@pytest.fixture
def locks(tmp_path: Path) -> dict[str, Path]:
    """A stale lock, one in a folder with a recent file, and a fresh one."""
    paths = {}
    for name in ("stale", "compiling", "fresh"):
        folder = tmp_path / f"{name}_op"
        folder.mkdir(parents=True)
        paths[name] = folder / "lock"
        for file in (paths[name], folder / "build.ninja"):
            file.touch()
            old = name == "stale" or (name == "compiling" and file.name == "lock")
            os.utime(file, (time.time() - old * 2 * collectives.STALE_S,) * 2)
    return paths


def test_a_lock_left_by_a_killed_build_is_removed(
    locks: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The removal is reported once, and a process that may still be compiling keeps its lock."""
    for _ in range(2):
        collectives.clear_stale_locks(tmp_path)
    assert {name: lock.exists() for name, lock in locks.items()} == {"stale": False, "compiling": True, "fresh": True}
    (line,) = capsys.readouterr().out.splitlines()
    assert str(locks["stale"]) in line
