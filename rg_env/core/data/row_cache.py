"""A disk cache of rows: building the same rows again takes milliseconds and does not import the library.

The cache has one gzipped JSON file for each combination of tasks, split, number of rows and seed. The file name is a
hash of everything the rows depend on, including this package's code and the library and Python versions. A damaged file
is rebuilt, with a one-line warning. Errors in the cache never prevent rows from being built.

The folder is `rows` in `RG_ENV_CACHE` ("" disables the cache) or, if that is not set, `rg-env/rows` in
`XDG_CACHE_HOME`, `~/Library/Caches` (macOS) or `~/.cache`. It is readable only by its owner; a folder that others own
or can write to is not used. If the files exceed `MAX_BYTES` in total, the least recently used ones are removed.
"""

import contextlib
import fcntl
import gzip
import hashlib
import json
import logging
import os
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rg_env.core.data.selection import Row
from rg_env.core.text import reason_of

MAX_BYTES = 1 << 30
"""Maximum total size of the cache in bytes."""
_STALE_S = 86_400.0
"""Age in seconds at which an unfinished file counts as abandoned by a killed build."""
_SUFFIX, _TMP, _LOCK = ".json.gz", ".tmp", ".lock"
_SOURCES = ("data", "grading", "tasks")  # gold answers come from graders

_logger = logging.getLogger(__name__)


def folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path | None:
    """The cache folder; None if the cache is disabled or the user has no home folder."""
    chosen, xdg = environment.get("RG_ENV_CACHE"), environment.get("XDG_CACHE_HOME")
    try:
        if chosen is not None:
            return Path(chosen).expanduser() / "rows" if chosen else None
        home = Path.home()
    except RuntimeError:
        return None
    caches = home / "Library" / "Caches" if platform == "darwin" else home / ".cache"
    return (Path(xdg) if xdg else caches) / "rg-env" / "rows"


def load(what: Mapping[str, Any]) -> list[Row] | None:
    """The cached rows for `what` (JSON values); None if they are missing or unusable."""
    if (where := folder()) is None:
        return None
    path = where / _name(what)
    try:
        _check_owner(where)
        rows: list[Row] = json.loads(gzip.decompress(path.read_bytes()))
        os.utime(path)  # mark as recently used
        return rows
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        _logger.warning("cannot use the cached rows in %s (%s); rebuilding them", path, reason_of(error))
        return None


def store(what: Mapping[str, Any], rows: list[Row], max_bytes: int = MAX_BYTES) -> None:
    """Cache `rows` for `what`, and remove the least recently used rows beyond `max_bytes`. Failures only log a
    warning."""
    if (where := folder()) is None:
        return
    temporary = ""
    try:
        _make_folder(where)
        handle, temporary = tempfile.mkstemp(_TMP, dir=where)  # mode 600
        with open(handle, "wb") as file:
            file.write(gzip.compress(json.dumps(rows).encode(), compresslevel=3, mtime=0))
        os.replace(temporary, where / _name(what))
        _prune(where, max_bytes)
    except OSError as error:
        _logger.warning("cannot cache rows in %s (%s); they will be rebuilt next time", where, reason_of(error))
        with contextlib.suppress(OSError):
            os.unlink(temporary)


@contextmanager
def building(whats: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """While the block runs, no other process on this machine builds the same rows, provided that files can be
    locked."""
    with contextlib.ExitStack() as held:
        if whats and (where := folder()) is not None:
            path = where / (hashlib.sha256("".join(map(_name, whats)).encode()).hexdigest()[:32] + _LOCK)
            with contextlib.suppress(OSError):
                _make_folder(where)
                file = held.enter_context(open(path, "a"))
                fcntl.flock(file, fcntl.LOCK_EX)  # released by the system if the process dies
                held.callback(path.unlink, missing_ok=True)  # waiting processes then find the rows
        yield


def _name(what: Mapping[str, Any]) -> str:
    """The file name: a hash of everything the rows depend on."""
    key = {
        "what": what,
        "versions": [version(name) for name in ("rg-env", "reasoning-gym", "numpy", "sympy")],
        "python": [sys.implementation.name, *sys.version_info[:2]],
        "sources": _sources(),
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32] + _SUFFIX


@lru_cache(maxsize=1)
def _sources() -> str:
    """Hash of the code that rows depend on, for development between releases."""
    core = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(path for folder in _SOURCES for path in (core / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _make_folder(where: Path) -> None:
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(where)


def _check_owner(where: Path) -> None:
    """Raise `PermissionError` if another user owns the folder or can write to it."""
    status = where.stat()
    if status.st_uid != os.getuid():
        raise PermissionError(f"it belongs to user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("other users can write to it")


def _prune(where: Path, max_bytes: int) -> None:
    """Remove the least recently used files beyond `max_bytes`, and unfinished files from killed builds."""
    found = []
    for path in where.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another build is pruning too
            status = path.stat()
            if path.name.endswith(_SUFFIX):
                found.append((status.st_mtime, status.st_size, path))
            elif path.name.endswith((_TMP, _LOCK)) and time.time() - status.st_mtime > _STALE_S:
                path.unlink()
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > max_bytes:
            path.unlink(missing_ok=True)
