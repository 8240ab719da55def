"""Where a command writes: a fresh folder, or a named one that may be written; and files that are whole or not there."""

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rg_env.errors import OutputFolderError

OUTPUTS = Path("outputs")
_NAME_BYTES = 80  # file systems take 255, of which the time and a counter need some


def cut(text: str, limit: int = _NAME_BYTES) -> str:
    """`text`, as far as a folder's name takes it."""
    return text.encode()[:limit].decode(errors="ignore")


def file_part(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", name)


def free_folder(output_dir: str | Path | None, name: str, remedy: str, *, resume: str, goes_on: bool = False) -> Path:
    """The folder to write to, checked but not yet made. None: a fresh one under `outputs/`, called by `name` and time.

    Args:
        remedy: what errors advise; `resume`: the option that goes on with what a folder holds.
        goes_on: whether it may hold files already.

    Raises:
        OutputFolderError: it holds files already, or cannot be written.
    """
    try:
        return _free_folder(output_dir, name, remedy, resume, goes_on)
    except OutputFolderError:
        raise
    except (OSError, ValueError) as error:  # a name too long, or with a null byte in it; a folder that may not be read
        reason = error.strerror if isinstance(error, OSError) else error
        shown = str(output_dir or OUTPUTS)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
        raise OutputFolderError(f"cannot write {shown!r}: {reason}; {remedy}") from error


def _free_folder(output_dir: str | Path | None, name: str, remedy: str, resume: str, goes_on: bool) -> Path:
    if output_dir is None:
        stem = OUTPUTS / f"{cut(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = next(p for n in range(1000) if not (p := stem if n == 0 else Path(f"{stem}-{n}")).exists())
    else:
        folder = Path(output_dir)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # tells what is_dir() hides
    if folder.is_dir() and any(folder.iterdir()) and not goes_on:
        raise OutputFolderError(
            f"{folder} is not empty: it may hold another run; {remedy}, move it away, or go on with it ({resume})"
        )
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):  # permissions do not tell all: /proc, read-only and full disks
            pass
    except OSError as error:
        raise OutputFolderError(f"cannot write {folder}: {nearest}: {error.strerror}; {remedy}") from error
    return folder


@contextmanager
def written_aside(file: Path) -> Iterator[Path]:
    """What is written to the path given becomes `file` at the end; if that fails, the old one stays and no other."""
    aside = file.with_name(f"{file.name}.part")
    try:
        yield aside
        aside.replace(file)
    except OSError:  # a full disk
        aside.unlink(missing_ok=True)
        raise


def write_aside(file: Path, text: str) -> None:
    """Write a whole text file, or nothing. What UTF-8 cannot hold is written as its number."""
    with written_aside(file) as aside:
        aside.write_text(text, encoding="utf-8", errors="backslashreplace")
