"""Rows kept on disk, so that the second build of the same rows takes milliseconds and does not import the library.

One gzip file for each (tasks, split, number, seed), named by the hash of all that rows depend on, this package's own
code and the versions of the library and of Python among it. It holds JSON: a head with that key and the hash of the
rows, then the rows. A file is believed only if it is ours, complete and for this very key; otherwise the rows are built
anew, and one line says so. Nothing that fails here keeps rows from being built.

The folder is `rows` under `RG_ENV_CACHE` ("" switches the cache off), else under `rg-env` in `XDG_CACHE_HOME`,
`~/Library/Caches` (macOS) or `~/.cache`. It is readable by its owner only. The files used least recently go when they
take more than `MAX_BYTES` together.
"""

import contextlib
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
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rg_env.core.data.selection import Row

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 1 << 30
"""All files together."""
_STALE_S = 86_400.0
"""Unfinished files older than this were left by a build that was killed."""
_SUFFIX, _TMP, _LOCK = ".json.gz", ".tmp", ".lock"
_SOURCES = ("data", "grading", "tasks")  # gold answers come from graders

_logger = logging.getLogger(__name__)


def folder() -> Path | None:
    """Where rows are kept; None if the cache is switched off, or there is no home folder."""
    chosen = os.environ.get("RG_ENV_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    try:
        if chosen is not None:
            return Path(chosen).expanduser() / "rows" if chosen else None
        home = Path.home()
    except RuntimeError:
        return None
    caches = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return (Path(xdg) if xdg else caches) / "rg-env" / "rows"


def load(what: Mapping[str, Any]) -> list[Row] | None:
    """The rows kept for `what` (JSON values); None if there are none that can be believed."""
    where = folder()
    if where is None:
        return None
    path, key = where / _name(what), _key(what)
    try:
        with open(path, "rb", opener=_open_own) as file:
            head, _, body = gzip.decompress(file.read()).partition(b"\n")
        if json.loads(head) != {"key": key, "sha256": hashlib.sha256(body).hexdigest()}:
            raise ValueError("its content is not what it says")
        rows: list[Row] = json.loads(body)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        _logger.warning("the cached rows in %s cannot be used (%s): building them anew", path, _line(error))
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used just now
    return rows


def store(what: Mapping[str, Any], rows: list[Row]) -> None:
    """Keep `rows` for `what`; one warning if that is not possible."""
    where = folder()
    if where is None:
        return
    body = json.dumps(rows).encode()
    head = json.dumps({"key": _key(what), "sha256": hashlib.sha256(body).hexdigest()}).encode()
    temporary = ""
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(where.stat())
        handle, temporary = tempfile.mkstemp(_TMP, dir=where)  # mode 600
        with open(handle, "wb") as file:
            file.write(gzip.compress(head + b"\n" + body, compresslevel=3, mtime=0))
        os.replace(temporary, where / _name(what))
    except OSError as error:
        _logger.warning("cannot keep rows in %s (%s): they are built anew next time", where, _line(error))
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    with contextlib.suppress(OSError):
        _prune(where)


@contextmanager
def building(whats: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Within: no other process of this machine builds the same. Where files cannot be locked, each builds its own."""
    with ExitStack() as held:
        if (where := folder()) is not None and fcntl is not None:
            path = where / (hashlib.sha256("".join(map(_name, whats)).encode()).hexdigest()[:32] + _LOCK)
            with contextlib.suppress(OSError):
                where.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check_owner(where.stat())
                file = held.enter_context(open(path, "a", opener=_open_own))
                fcntl.flock(file, fcntl.LOCK_EX)  # the system takes it back from a process that dies
                held.callback(path.unlink, missing_ok=True)  # who waits for it finds the rows
        yield


def _key(what: Mapping[str, Any]) -> dict[str, Any]:
    """All that rows depend on, in JSON form."""
    key = {
        "what": what,
        "rg-env": version("rg-env"),
        "reasoning-gym": version("reasoning-gym"),
        "its libraries": [version(name) for name in ("numpy", "sympy")],
        "python": [sys.implementation.name, *sys.version_info[:2]],
        "sources": _sources(),
    }
    return json.loads(json.dumps(key))


def _name(what: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_key(what), sort_keys=True).encode()).hexdigest()[:32] + _SUFFIX


@lru_cache(maxsize=1)
def _sources() -> str:
    """Hash of the code that rows depend on: for those who change it between releases."""
    core = Path(__file__).parent.parent
    digest = hashlib.sha256((core / "data" / "slow_draws.json").read_bytes())
    for path in sorted(path for folder in _SOURCES for path in (core / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _open_own(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        _check_owner(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_owner(status: os.stat_result) -> None:
    """Raises `PermissionError` for what someone else owns or may write to."""
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise PermissionError(f"it belongs to user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("others may write to it")


def _prune(where: Path) -> None:
    """Remove the files used least recently beyond `MAX_BYTES`, and what killed builds left."""
    found = []
    for path in where.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another build prunes too
            status = path.stat()
            if path.name.endswith(_SUFFIX):
                found.append((status.st_mtime, status.st_size, path))
            elif path.name.endswith((_TMP, _LOCK)) and time.time() - status.st_mtime > _STALE_S:
                path.unlink()
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > MAX_BYTES:
            path.unlink(missing_ok=True)


def _line(error: BaseException) -> str:
    """The error in one line, without the path that the message around it names."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split()) or type(error).__name__
