"""Locks on what DeepSpeed compiles at its first use (`torch.utils.cpp_extension`): a process that is killed meanwhile
leaves its lock behind, and every later run would wait for it without end, and without a word."""

import contextlib
import os
import time
from pathlib import Path

from rg_env.core.world import say

STALE_S = 600.0
"""A lock is left over where nothing beside it has changed for so long: compiling takes a minute or two."""


def extensions_folder() -> Path:
    """Where torch keeps compiled extensions."""
    if (given := os.environ.get("TORCH_EXTENSIONS_DIR")) is not None:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"


def clear_stale_locks() -> None:
    """Take away locks that were left over, and say so. All processes of a run may call it."""
    now = time.time()
    root = extensions_folder()
    with contextlib.suppress(OSError):  # no such folder, or one that may not be read: then torch will tell
        for lock in [*root.glob("*/lock"), *root.glob("*/*/lock")]:
            with contextlib.suppress(OSError):  # another process was faster
                changed = max(file.stat().st_mtime for file in lock.parent.iterdir())
                if now - changed > STALE_S:
                    lock.unlink()
                    say(f"Removed {lock}: left over from a process that was killed while it compiled.")
