"""The cache of rows on disk."""

import gzip
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_code import run_code

from rg_env.core.data import row_cache
from rg_env.core.data.dataset import build_rows, build_splits
from rg_env.core.data.selection import DrawnRow

WHAT = {"tasks": [["maze", 2, {}]], "split": "train", "seed": 0}


def _row(question: str) -> DrawnRow:
    return {"question": question, "answer": "1", "info": {"rg_task": "maze", "config": "{}"}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the files of an empty cache that only this test uses."""
    monkeypatch.setenv("RG_ENV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rows"


def _store(what: dict[str, Any], question: str, **options: Any) -> None:
    """Store one row for `what`."""
    where = row_cache.folder()
    assert where is not None
    row_cache.store(row_cache.path_of(where, what), [_row(question)], **options)


def _load(what: dict[str, Any]) -> list[DrawnRow] | None:
    where = row_cache.folder()
    return where and row_cache.load(row_cache.path_of(where, what))


def test_what_is_stored_is_loaded(cache: Path) -> None:
    """Rows are loaded unchanged, from a folder that only its owner can access; other keys find nothing."""
    assert _load(WHAT) is None
    _store(WHAT, "zwei ✓")
    assert _load(WHAT) == [_row("zwei ✓")]
    assert _load({**WHAT, "seed": 1}) is None
    assert cache.stat().st_mode & 0o777 == 0o700


def test_the_second_build_comes_from_disk(cache: Path) -> None:
    """Rows and manifest are the same, even with another number of processes, and files are not written again. Splits
    are stored separately: another training seed generates only training rows."""
    first = build_splits(["maze", "gcd"], 8, 4, seed=1)
    files = {path: path.stat().st_ino for path in cache.iterdir()}
    assert build_splits(["maze", "gcd"], 8, 4, seed=1, processes=1) == first
    assert build_rows(["maze", "gcd"], "eval", 4, seed=0) == first[1]
    assert build_splits(["maze", "gcd"], 8, 4, seed=1, cache=False) == first
    assert {path: path.stat().st_ino for path in cache.iterdir()} == files
    build_splits(["maze", "gcd"], 8, 4, seed=2)
    after = {path: path.stat().st_ino for path in cache.iterdir()}
    assert len(after) == len(files) + 1
    assert after.items() >= files.items()
    for path in files:
        path.write_bytes(gzip.compress(json.dumps([_row("from disk")]).encode()))
    assert build_rows(["maze", "gcd"], "eval", 4, seed=0) == [_row("from disk")]


@pytest.mark.parametrize(
    "data",
    [b"[]", gzip.compress(b"[{]"), gzip.compress(b"[]")[:-3]],
    ids=["not gzip", "not JSON", "truncated"],
)
def test_a_damaged_file_is_built_again(data: bytes, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged file causes a warning of one line, and the next build replaces it."""
    _store(WHAT, "mine")
    next(cache.iterdir()).write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert _load(WHAT) is None
    (record,) = caplog.records
    assert "rebuilding them" in record.getMessage()
    assert "\n" not in record.getMessage()
    _store(WHAT, "mine")
    assert _load(WHAT) == [_row("mine")]


def test_a_full_disk_is_one_warning(cache: Path) -> None:
    """If the file cannot be written completely, a warning is logged, no partial file is left, and the build
    continues."""
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, {resource.RLIM_INFINITY}))
from rg_env.core.data import row_cache
rows = [{{"question": str(i), "answer": "", "info": {{}}}} for i in range(1000)]
row_cache.store(row_cache.path_of(row_cache.folder(), {WHAT!r}), rows)
print("went on")
"""
    run = run_code(code)
    assert run.stdout == "went on\n"
    assert len(run.stderr.splitlines()) == 1
    assert "cannot cache rows in" in run.stderr
    assert list(cache.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_one_warning(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If others own the folder or may write to it, or if the path is not a folder, rows are built but not cached."""
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert row_cache.folder() is None
    if os.getuid() == 0:
        cache.chmod(0o700)
        os.chown(cache, 12345, 12345)
        assert row_cache.folder() is None
    cache.rmdir()
    cache.touch()
    assert len(build_rows("gcd", "train", 2, seed=0)) == 2
    messages = [record.getMessage() for record in caplog.records]
    assert ["other users can write to" in message for message in messages] == [True] * (len(messages) - 1) + [False]


def test_the_folder_is_where_users_keep_caches(tmp_path: Path, environ: Callable[..., None]) -> None:
    """`RG_ENV_CACHE`, else `XDG_CACHE_HOME`, else the platform's folder; an empty `RG_ENV_CACHE` means no cache."""
    environ(XDG_CACHE_HOME=str(tmp_path / "x"), HOME=str(tmp_path))
    assert row_cache.folder() == tmp_path / "cache/rows"
    for unusable in ("", "~no_such_user/cache"):
        environ(RG_ENV_CACHE=unusable)
        assert row_cache.folder() is None
    environ(RG_ENV_CACHE=None)
    assert row_cache.folder() == tmp_path / "x/rg-env/rows"
    environ(XDG_CACHE_HOME=None)
    assert row_cache.folder() == tmp_path / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "rg-env/rows"


def test_old_files_make_room(cache: Path) -> None:
    """The least recently used files are deleted, and so are the remains of killed builds; other files are kept."""
    for seed in range(3):
        _store({**WHAT, "seed": seed}, str(seed))
        os.utime(row_cache.path_of(cache, {**WHAT, "seed": seed}), (seed, seed))
    _load({**WHAT, "seed": 0})
    remains, other = cache / ".killed.part", cache / "note.txt"
    for path in (remains, other):
        path.write_text("x" * 1000)
        os.utime(path, (0, 0))
    size = max(path.stat().st_size for path in cache.glob("*.gz"))
    _store({**WHAT, "seed": 3}, "3", max_bytes=3 * size + size // 2)
    assert [seed for seed in range(4) if _load({**WHAT, "seed": seed})] == [0, 2, 3]
    assert other.exists()
    assert not remains.exists()


BUILD = """
import json, sys
from rg_env.core.data import dataset

class Counted(dataset.Generation):
    def __init__(self, requests, processes):
        if requests:
            print("built", flush=True)
        super().__init__(requests, processes)

dataset.Generation = Counted
train, evaluation, _ = dataset.build_splits(["maze"], 8, 4, seed=1, processes=1)
print(len(train), len(evaluation))
"""


def test_processes_that_start_together_build_once(cache: Path) -> None:
    """The ranks of a run need the same rows: one rank builds them, and the others wait and load them. No lock is
    left."""
    command = [sys.executable, "-c", BUILD]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert sum("built" in output for output in outputs) == 1
    assert all(output.endswith("8 4\n") for output in outputs)
    assert [path.name for path in cache.iterdir() if path.name.endswith(".lock")] == []


def test_a_lock_that_a_killed_process_held_is_free(cache: Path) -> None:
    """Rows can be built after a process died while it held the lock, or if no lock can be created."""
    path = cache / "rows.json.gz"
    program = "import os, pathlib, sys\nfrom rg_env.core.data.row_cache import building\n"
    program += "with building([pathlib.Path(sys.argv[1])]):\n    os._exit(9)"
    cache.mkdir(parents=True)
    assert run_code(program, path, check=False).returncode == 9
    for each in (path, cache / "missing" / "rows.json.gz"):
        with row_cache.building([each]):
            pass
