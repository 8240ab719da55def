"""The folder of an export: written aside and renamed at the end, or nothing."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rg_env.core.run_folder import removed_on_error
from rg_env.errors import OutputFolderError, RGEnvError

_CANNOT_WRITE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY, errno.EINVAL),  # what `out` turns out to be
}
_HEADROOM = 2**20


@contextmanager
def written_aside(out: Path) -> Iterator[Path]:
    """A folder next to `out`, renamed to it at the end. If anything fails, nothing is left of it.

    Raises:
        OutputFolderError: `out` exists, or cannot be written.
    """
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
        if taken or out.is_symlink():
            raise OutputFolderError(
                f"{out} exists already and is not overwritten: name another folder with --output-dir"
            )
    except OutputFolderError:
        raise
    except (OSError, ValueError) as error:
        raise _unwritable(out, error) from error
    with removed_on_error(str(out.parent)):
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
        except (OSError, ValueError) as error:
            raise _unwritable(out, error) from error
        try:
            yield aside
            mask = os.umask(0)
            os.umask(mask)
            aside.chmod(0o777 & ~mask)  # like mkdir
            aside.rename(out)
        except BaseException as error:
            shutil.rmtree(aside, ignore_errors=True)
            known = isinstance(error, RGEnvError)
            if isinstance(error, OSError) and not known and error.errno in _CANNOT_WRITE:
                raise OutputFolderError(f"cannot write {out}: {error.strerror}; nothing is left of it") from error
            raise


def _unwritable(out: Path, error: OSError | ValueError) -> OutputFolderError:
    reason = error.strerror if isinstance(error, OSError) else error
    return OutputFolderError(f"cannot write {str(out)[:200]}: {reason}; name another folder with --output-dir")


def check_space(needed: int, folder: Path) -> None:
    """Raise `OutputFolderError` if the disk has no room for `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed + _HEADROOM:
        raise OutputFolderError(
            f"{needed / 1e6:,.0f} MB are to be written to {folder.parent}, and {free / 1e6:,.0f} MB are free: make "
            "room, or name another folder with --output-dir"
        )
