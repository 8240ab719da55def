"""Read and write files without following links. A folder may have been downloaded, and archives can contain links to
any file.

    write_aside(folder / "summary.md", text)                 # replaces the file at once, or keeps the old one
    with written_aside(output) as aside: figure.savefig(aside)
    with opened_to_append(folder / "rollouts.jsonl") as file: ...
    make_folder(folder / "eval_results")                     # a subfolder that rg_env writes to
    read_bytes(folder / "config.yaml")

The user's own path to a file or a folder may contain links. Links *in* an output folder are replaced (a link at the
name of a file that is written as a whole) or refused (a file to append to, and a subfolder).
"""

import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from rg_env.core.text import cut_bytes, one_line
from rg_env.errors import InputError, OutputFolderError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""System errors that no change of the input would avoid: a full disk, an exceeded quota or file size limit, or a
failing device."""
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ASIDE = f".*.{'[0-9a-f]' * 16}.part"


@contextmanager
def written_aside(file: Path) -> Iterator[BinaryIO]:
    """Yield a new file with an unpredictable name in the same folder. At the end of the block, it replaces `file`. On
    an error, the old file is kept.

    Raises:
        OutputFolderError: the file cannot be written, for example because its folder was removed.
        OSError: the disk is full (`FULL`). The error names `file`.
    """
    name = f".{cut_bytes(file.name, 200)}.{secrets.token_hex(8)}.part"
    with _naming(file):
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with open(os.open(name, _NEW, 0o666, dir_fd=folder), "wb") as aside:
                yield aside
            os.replace(name, file.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
        finally:
            os.close(folder)


def write_aside(file: Path, text: str) -> None:
    """Write a UTF-8 text file atomically. Lone surrogates are written as escapes. Raises the same errors as
    `written_aside`."""
    with written_aside(file) as aside:
        aside.write(text.encode("utf-8", "backslashreplace"))


def opened_to_append(file: Path) -> BinaryIO:
    """Open a file for reading and appending, and create it if it is missing. Raises the same errors as `written_aside`,
    and `OutputFolderError` if `file` is a link, has another name (a hard link) or is not a regular file."""
    with _naming(file):
        descriptor = os.open(file, _APPEND, 0o666)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise _is_link(file)
    return cast(BinaryIO, io.BufferedRandom(_NamedFile(descriptor, file)))


class _NamedFile(io.FileIO):
    """A file whose errors name it. The system's errors do not name an open file."""

    def __init__(self, descriptor: int, file: Path):
        super().__init__(descriptor, "a+")
        self._file = file

    def write(self, data: Any) -> int:
        with _naming(self._file):
            return super().write(data)


def regular(file: str | Path) -> Path:
    """Return the path of a user's own file, which may be a link. Raises `OSError` for a pipe or a device, because
    reading it may never end."""
    if os.path.exists(file) and not os.path.isfile(file) and not os.path.isdir(file):
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    return Path(file)


def opened_to_read(file: Path) -> BinaryIO:
    """Open a file for reading.

    Raises:
        InputError: the file cannot be read, is a link out of its folder, or is not a regular file (reading from a pipe
            or a device may never end).
    """
    try:
        if links_out(file, file.parent):
            raise InputError(f"{one_line(file, 500)} is a link to another folder, which is not followed: use a copy")
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{one_line(file, 500)} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{one_line(file, 500)} is not a regular file")
    return open(descriptor, "rb")


def read_bytes(file: Path) -> bytes:
    """Return a file's contents. Raises the same errors as `opened_to_read`."""
    with opened_to_read(file) as opened:
        try:
            return opened.read()
        except OSError as error:
            raise InputError(f"{one_line(file, 500)} cannot be read: {error.strerror}") from error


def links_out(path: Path, *folders: Path) -> bool:
    """Whether `path` leads, through links, out of all of `folders` and of the blobs of the Hub's cache."""
    if not os.path.islink(path) and path.parent in folders:
        return False
    real, roots = Path(os.path.realpath(path)), [Path(os.path.realpath(folder)) for folder in folders]
    blobs = [above.parent / "blobs" for root in roots for above in (root, *root.parents) if above.name == "snapshots"]
    return not any(real.is_relative_to(root) for root in (*roots, *blobs))


def make_folder(folder: Path) -> None:
    """Create a subfolder of an output folder, unless it exists.

    Raises:
        OutputFolderError: the folder is a link, or cannot be created.
    """
    check_no_link(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFolderError(f"cannot write to {one_line(folder)}: {error.strerror}") from error


def check_no_link(path: Path) -> None:
    """Raise `OutputFolderError` if `path` is a link."""
    if path.is_symlink():
        raise _is_link(path)


def remove_partial(folder: Path) -> None:
    """Remove the temporary files that killed processes left in `folder`. Call this only while holding its lock."""
    for file in folder.glob(_ASIDE):
        with suppress(OSError):
            file.unlink()


def _is_link(path: Path) -> OutputFolderError:
    return OutputFolderError(
        f"{one_line(path)} is a link or a special file, which rg_env does not write through: replace it with a "
        "copy, or choose another output folder"
    )


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Let errors of the system name `file` rather than its temporary name."""
    try:
        yield
    except OutputFolderError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _is_link(file) from error
        if error.errno in FULL:
            raise OSError(error.errno, error.strerror, str(file)) from error
        reason = error.strerror
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            reason = f"the folder {one_line(file.parent)} does not exist or was removed"
        raise OutputFolderError(f"cannot write {one_line(file)}: {reason}") from error
