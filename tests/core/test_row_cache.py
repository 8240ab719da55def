"""Rows on disk."""

import gzip
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rg_env.core.data import row_cache
from rg_env.core.data.dataset import build_rows, build_splits
from rg_env.core.data.selection import Row

WHAT = {"tasks": [["maze", 2, {}]], "split": "train", "seed": 0}


def _row(question: str) -> Row:
    return {"question": question, "answer": "1", "info": {"rg_task": "maze"}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own; the folder that its files will be in."""
    monkeypatch.setenv("RG_ENV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rows"


def _only_file(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


def test_what_is_stored_is_loaded(cache: Path) -> None:
    """Rows come back equal, from a file and folder that are their owner's only; other keys find nothing."""
    rows = [_row("one"), _row("zwei ✓")]
    assert row_cache.load(WHAT) is None
    row_cache.store(WHAT, rows)
    assert row_cache.load(WHAT) == rows
    assert row_cache.load({**WHAT, "seed": 1}) is None
    assert (cache.stat().st_mode & 0o777, _only_file(cache).stat().st_mode & 0o777) == (0o700, 0o600)


def test_the_second_build_comes_from_disk(cache: Path) -> None:
    """Rows and manifest are the same, also for other numbers of processes, and the files are not written again. Splits
    are kept apart: another training seed generates training rows only."""
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


@pytest.mark.parametrize("data", [b"[]", gzip.compress(b"[{]"), gzip.compress(b"[]")[:-3]])
def test_a_damaged_file_is_built_again(data: bytes, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not gzip, not JSON, or truncated: one line, and the next build replaces it."""
    row_cache.store(WHAT, [_row("mine")])
    _only_file(cache).write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert row_cache.load(WHAT) is None
    (record,) = caplog.records
    assert "rebuilding them" in record.getMessage()
    assert "\n" not in record.getMessage()
    row_cache.store(WHAT, [_row("mine")])
    assert row_cache.load(WHAT) == [_row("mine")]


def test_a_full_disk_is_one_warning(cache: Path) -> None:
    """If the file cannot be written completely, a warning is logged, no partial file is left, and the build
    continues."""
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, {resource.RLIM_INFINITY}))
from rg_env.core.data import row_cache
row_cache.store({WHAT!r}, [{{"question": str(i), "answer": "", "info": {{}}}} for i in range(1000)])
print("went on")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "went on\n"
    assert len(run.stderr.splitlines()) == 1
    assert "cannot cache rows in" in run.stderr
    assert list(cache.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_one_warning(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A path that is not a folder, and a folder that others own or may write to: nothing is kept, loaded or broken."""
    row_cache.store(WHAT, [_row("mine")])
    cache.chmod(0o777)
    assert row_cache.load(WHAT) is None
    row_cache.store({**WHAT, "seed": 1}, [_row("mine")])
    assert len(list(cache.iterdir())) == 1
    if os.getuid() == 0:
        cache.chmod(0o700)
        os.chown(cache, 12345, 12345)
        assert row_cache.load(WHAT) is None
        assert "it belongs to user 12345" in caplog.records[-1].getMessage()
    shutil.rmtree(cache)
    cache.touch()
    assert row_cache.load(WHAT) is None
    row_cache.store(WHAT, [_row("mine")])
    messages = [record.getMessage() for record in caplog.records]
    assert ["other users can write to it" in messages[0], "exists" in messages[-1]] == [True, True]


def test_the_folder_is_where_users_keep_caches() -> None:
    """`RG_ENV_CACHE`, else `XDG_CACHE_HOME`, else the platform's folder; an empty `RG_ENV_CACHE` means no cache."""
    assert row_cache.folder({"RG_ENV_CACHE": "/a", "XDG_CACHE_HOME": "/x"}) == Path("/a/rows")
    assert row_cache.folder({"RG_ENV_CACHE": ""}) is None
    assert row_cache.folder({"RG_ENV_CACHE": "~no_such_user/cache"}) is None
    assert row_cache.folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/rg-env/rows")
    assert row_cache.folder({}, "darwin") == Path.home() / "Library/Caches/rg-env/rows"
    assert row_cache.folder({}, "linux") == Path.home() / ".cache/rg-env/rows"


def test_old_files_make_room(cache: Path) -> None:
    """The files used least recently go, and so do the remains of killed builds; other people's files stay."""
    for seed in range(3):
        row_cache.store({**WHAT, "seed": seed}, [_row(str(seed))])
        row_cache.load({**WHAT, "seed": 0})
        time.sleep(0.02)
    remains, other = cache / "killed.tmp", cache / "note.txt"
    for path in (remains, other):
        path.write_text("x")
        os.utime(path, (0, 0))
    size = max(path.stat().st_size for path in cache.glob("*.gz"))
    row_cache.store({**WHAT, "seed": 3}, [_row("3")], max_bytes=3 * size + size // 2)
    assert [seed for seed in range(4) if row_cache.load({**WHAT, "seed": seed})] == [0, 2, 3]
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
    """The ranks of a run want the same rows: one builds them, the others wait and load. No lock is left."""
    command = [sys.executable, "-c", BUILD]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert sum("built" in output for output in outputs) == 1
    assert all(output.endswith("8 4\n") for output in outputs)
    assert [path.name for path in cache.iterdir() if path.name.endswith(".lock")] == []


def test_a_lock_that_a_killed_process_held_is_free(cache: Path) -> None:
    """A folder that cannot be created does not prevent building."""
    holder = "from rg_env.core.data import row_cache\nimport os\nwith row_cache.building([{}]):\n    os._exit(9)"
    assert subprocess.run([sys.executable, "-c", holder], check=False, timeout=30).returncode == 9
    with row_cache.building([{}]):
        pass
    cache.chmod(0o777)
    with row_cache.building([{}]):
        pass
