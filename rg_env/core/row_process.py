"""One generation process, from its parent's side: see `core.generation`."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import rg_env
from rg_env.errors import GenerationError

# The package is found as here, whatever the working directory is; `-P` keeps the user's files from shadowing modules.
_PROGRAM = (
    "import json, sys; paths, sources = map(json.loads, sys.argv[1:]); "
    "sys.path += [path for path in paths if path not in sys.path]; "
    "from rg_env.core.row_child import main; main(sources)"
)
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")
"""All of the environment that a generation process gets, beside `LC_*`: it runs the library's snippets of code."""


class RowProcess:
    """A fresh interpreter that draws items. `sources`: the user's code that it imports first (`core.imports`)."""

    def __init__(self, sources: Mapping[str, str] = MappingProxyType({})) -> None:
        self.ready = False
        """Whether it takes jobs."""
        self.heard = time.monotonic()
        """When it last replied."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        self._rest = b""
        paths = [str(Path(rg_env.__file__).resolve().parent.parent)]
        if sources:  # found as here
            paths += [os.path.abspath(path) for path in sys.path]
        arguments = [json.dumps(paths), json.dumps(dict(sources))]
        command = [sys.executable, "-P", "-W", "ignore", "-c", _PROGRAM, *arguments]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=child_environment(),
                bufsize=0,
                process_group=0,  # Ctrl-C reaches this process alone, which ends the others
            )
        except OSError as error:
            raise GenerationError(f"cannot start a process to generate rows: {error}") from error
        assert self._process.stdout is not None
        self.replies = self._process.stdout

    def send(self, job: dict[str, Any]) -> None:
        """Hand it a job."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
        except OSError:
            raise self._death() from None

    def read(self) -> list[Any]:
        """The replies that have come; to be called when `replies` is readable. Raises `GenerationError` if the process
        is dead."""
        data = os.read(self.replies.fileno(), 1 << 20)
        if not data:
            raise self._death()
        self.heard = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Kill it, whatever it does, and wait for its end."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _death(self) -> GenerationError:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        self._errors.seek(0)
        last = (self._errors.read().decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -9 else "")
        else:
            how = f"ended with code {code}"
        return GenerationError(f"a process that generates rows {how}: {last}")


def child_environment() -> dict[str, str]:
    """The environment of a generation process: a fixed hash seed, one thread, no secrets."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")}
    return {**kept, "PYTHONHASHSEED": "0", "TZ": "UTC", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
