"""A disk cache of rows. With a cache, building the same rows again takes milliseconds and does not import the library.

The cache has one gzipped JSON file for each combination of tasks, split, number of rows and seed. The file name is a
hash of everything that the rows depend on, including this package's code and the versions of the library and Python. A
damaged file is rebuilt, with a one-line warning. Errors in the cache never prevent rows from being built.

The cache folder is `rows` in `RG_ENV_CACHE` ("" disables the cache) or, if that variable is not set, `rg-env/rows` in
`XDG_CACHE_HOME`, `~/Library/Caches` (macOS) or `~/.cache`. A new cache folder is readable only by its owner. A folder
that other users own or can write to is not used. If the files exceed `MAX_BYTES` in total, the least recently used
files are removed.
"""

import contextlib
import fcntl
import gzip
import hashlib
import json
import logging
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rg_env.core.data.selection import DrawnRow
from rg_env.core.files import written_aside
from rg_env.core.text import reason_of

MAX_BYTES = 1 << 30
"""Maximum total size of the cache in bytes."""
_SOURCES = ("data", "grading", "tasks")  # gold answers depend on the graders' code

_logger = logging.getLogger(__name__)


def cached(
    what: Sequence[Mapping[str, Any]], build: Callable[[list[int]], list[list[DrawnRow]]]
) -> list[list[DrawnRow]]:
    """Return the rows that each item of `what` describes (see `path_of`), from the cache if possible. `build` builds
    the rows for all missing items, given by their positions, which are then stored."""
    where, everything = folder(), list(range(len(what)))
    if where is None:
        return build(everything)
    files = [path_of(where, each) for each in what]
    found = [load(file) for file in files]
    if missing := [number for number in everything if found[number] is None]:
        with building(files[number] for number in missing):
            # Another process may have built these rows in the meantime.
            found = [load(files[number]) if number in missing else found[number] for number in everything]
            missing = [number for number in missing if found[number] is None]
            for number, rows in zip(missing, build(missing) if missing else (), strict=True):
                found[number] = rows
                store(files[number], rows)
    return [rows or [] for rows in found]


def folder() -> Path | None:
    """Return the cache folder (created if needed), or None if the cache is disabled or cannot be used."""
    try:
        if (chosen := os.environ.get("RG_ENV_CACHE")) is not None:
            where = Path(chosen).expanduser() / "rows" if chosen else None
        else:
            home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
            where = Path(os.environ.get("XDG_CACHE_HOME") or home) / "rg-env" / "rows"
        if where is not None:
            where.mkdir(mode=0o700, parents=True, exist_ok=True)
            if where.stat().st_uid != os.getuid() or where.stat().st_mode & 0o022:
                raise PermissionError(f"other users can write to {where}")
    except (OSError, RuntimeError) as error:  # a missing home folder causes a RuntimeError
        _logger.warning("rows are not cached: %s", error)
        return None
    return where


def path_of(where: Path, what: Mapping[str, Any]) -> Path:
    """Return the file for the rows described by `what` (JSON values). The file's name is a hash of everything that the
    rows depend on."""
    key = {
        "what": what,
        "versions": [version(name) for name in ("rg-env", "reasoning-gym", "numpy", "sympy")],
        "python": [sys.implementation.name, *sys.version_info[:2]],
        "sources": _sources(),
    }
    return where / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}.json.gz"


def load(path: Path) -> list[DrawnRow] | None:
    """Return the cached rows, or None if they are missing or damaged."""
    try:
        rows: list[DrawnRow] = json.loads(gzip.decompress(path.read_bytes()))
        os.utime(path)  # marks the file as recently used
        return rows
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        _logger.warning("cannot use the cached rows in %s (%s); rebuilding them", path, reason_of(error))
        return None


def store(path: Path, rows: list[DrawnRow], max_bytes: int = MAX_BYTES) -> None:
    """Cache `rows`, and remove the least recently used files beyond `max_bytes`. A failure causes only a warning."""
    try:
        with written_aside(path) as aside:
            aside.write(gzip.compress(json.dumps(rows).encode(), compresslevel=3, mtime=0))
        _prune(path.parent, max_bytes)
    except OSError as error:
        _logger.warning("cannot cache rows in %s (%s); they will be rebuilt next time", path.parent, reason_of(error))


@contextlib.contextmanager
def building(paths: Iterable[Path]) -> Iterator[None]:
    """Prevent other processes on this machine from building the same rows during the block, if the file system supports
    locks."""
    with contextlib.ExitStack() as held:
        for path in paths:
            with contextlib.suppress(OSError):
                file = held.enter_context(path.with_suffix(".lock").open("a"))
                fcntl.flock(file, fcntl.LOCK_EX)  # the system releases the lock if the process dies
                # Processes that were waiting for the lock then find the rows in the cache.
                held.callback(path.with_suffix(".lock").unlink, missing_ok=True)
        yield


@lru_cache(maxsize=1)
def _sources() -> str:
    """Return a hash of the code that rows depend on. Between releases, the code can change without a new version
    number."""
    core = Path(__file__).parent.parent
    digest = hashlib.sha256()
    files = [path for folder in _SOURCES for path in (core / folder).rglob("*") if path.suffix in (".py", ".json")]
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _prune(where: Path, max_bytes: int) -> None:
    """Remove the least recently used files beyond `max_bytes`, including the remains of killed builds."""
    total = 0
    with contextlib.suppress(FileNotFoundError):  # another build may also be pruning
        files = [(path.stat(), path) for path in where.iterdir() if path.suffix in (".gz", ".part", ".lock")]
        for status, path in sorted(files, key=lambda each: each[0].st_mtime, reverse=True):
            total += status.st_size
            if total > max_bytes:
                path.unlink()
