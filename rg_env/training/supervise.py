"""A server and a trainer as one run: the trainer starts when the server is healthy, and neither outlives the other.

code = Run(server, trainer, folder=..., healthy=...).supervise()

Ctrl-C, SIGTERM and SIGHUP reach the trainer as one SIGINT, on which it saves; a second signal ends everything at once.
Processes that were there before are left alone.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from rg_env.errors import TrainingError
from rg_env.inference.process_group import TICK_S, Command, ProcessGroup, adopt_orphans, descendants, end_all

GRACE_S = 15.0
"""For a program to end after SIGTERM, once nothing is to be saved any more."""
HURRY_S = 2.0
"""The same after a second signal."""
HEALTH_EVERY_S = 1.0
TAIL = 20


class _Asked(Exception):
    """A signal asks for the end."""


class Run:
    """One run; `supervise` is called once, from the main thread."""

    def __init__(
        self,
        server: Command,
        trainer: Command,
        *,
        folder: Path,
        healthy: Callable[[], bool],
        server_timeout_s: float = 600.0,
        save_timeout_s: float = 300.0,
        verbose: bool = False,
    ):
        self._commands = {"vllm": server, "train": trainer}
        self._logs = {name: folder / f"{name}.log" for name in self._commands}
        self._groups: dict[str, ProcessGroup] = {}
        self._healthy, self._server_timeout_s, self._save_timeout_s = healthy, server_timeout_s, save_timeout_s
        self._shown = {"vllm", "train"} if verbose else {"train"}
        self._signals: list[int] = []
        self._heeded = 0  # of them; a further one means hurry
        self._console = Console()

    def supervise(self) -> int:
        """Run both; returns the trainer's exit code, or 128 + N after signal N.

        Raises:
            TrainingError: the server does not come up, or dies.
        """
        strangers = set(descendants(psutil.Process()))
        adopt_orphans()
        with signals_noted(self._signals):
            try:
                self._start("vllm")
                self._await_health()
                self._start("train")
                return self._watch()
            except _Asked:
                self._heeded, number = 1, self._signals[0]
                if "train" in self._groups:
                    time_left = f"{self._save_timeout_s:g} s"
                    self._console.line(
                        f"interrupted: the trainer has {time_left} to save (Ctrl-C again ends it at once)"
                    )
                    self._await_trainer(interrupt=True)
                return 128 + number
            finally:
                for name in reversed(self._groups):  # the trainer first: it would complain of the server's end
                    self._groups[name].end(self._grace)
                self._show_output()
                # Orphans: what a program left behind that died before it could end it.
                end_all(lambda: set(descendants(psutil.Process())) - strangers, self._grace)
                self._console.progress("")

    def _grace(self) -> float:
        return HURRY_S if len(self._signals) > self._heeded else GRACE_S

    def _start(self, name: str) -> None:
        self._groups[name] = ProcessGroup(self._commands[name], self._logs[name])

    def _await_health(self) -> None:
        server, log = self._groups["vllm"], self._logs["vllm"]
        start = asked = time.monotonic()
        while True:
            self._tick()
            now = time.monotonic()
            if server.code is not None:
                self._show_tail(server)
                raise TrainingError(f"vLLM ended with code {server.code} before it was ready: see above, and {log}")
            if now - start > self._server_timeout_s:
                self._show_tail(server)
                waited = f"{self._server_timeout_s:g} s"
                raise TrainingError(f"vLLM is not ready after {waited}: see {log}, or give a longer --server-timeout")
            if now - asked >= HEALTH_EVERY_S:
                asked = now
                last = " ".join(server.last_lines(1))
                self._console.progress(f"waiting for vLLM, {now - start:.0f} s{': ' if last else ''}{last}")
                if self._healthy():
                    self._console.line(f"vLLM is ready after {now - start:.0f} s")
                    return

    def _watch(self) -> int:
        server, trainer = self._groups["vllm"], self._groups["train"]
        while trainer.code is None and server.code is None:
            self._tick()
        if trainer.code is not None:
            return trainer.code
        self._console.line(
            f"vLLM ended with code {server.code}: the trainer has {self._save_timeout_s:g} s to notice, save and end"
        )
        self._await_trainer(interrupt=False)
        last = " ".join(server.last_lines(1))
        raise TrainingError(f"vLLM ended with code {server.code} in mid-run ({last[:200]}): see {self._logs['vllm']}")

    def _await_trainer(self, *, interrupt: bool) -> None:
        """Return when it has ended, has had its time, or a further signal came."""
        trainer = self._groups["train"]
        deadline = time.monotonic() + self._save_timeout_s
        while trainer.code is None and len(self._signals) == self._heeded:
            if time.monotonic() >= deadline:
                self._console.line(f"the trainer did not end within {self._save_timeout_s:g} s: it is ended now")
                return
            if interrupt:
                trainer.interrupt()  # again and again: a launcher may have been about to start one more worker
            time.sleep(TICK_S)
            self._show_output()

    def _tick(self) -> None:
        time.sleep(TICK_S)
        self._show_output()
        if self._signals:
            raise _Asked

    def _show_output(self) -> None:
        for name, group in self._groups.items():
            for line in group.new_lines():
                if name in self._shown:
                    self._console.line(f"[{name}] {line}")

    def _show_tail(self, group: ProcessGroup) -> None:
        if "vllm" not in self._shown:
            for line in group.last_lines(TAIL):
                self._console.line(f"[vllm] {line}")


@contextlib.contextmanager
def signals_noted(noted: list[int]) -> Iterator[None]:
    """Within, signals that ask for the end are only put down in `noted`: none can break off the ending of processes."""

    def note(number: int, _: Any) -> None:
        noted.append(number)

    # A terminal that goes away sends SIGHUP; under nohup that is ignored, and stays so.
    kinds = [signal.SIGINT, signal.SIGTERM]
    kinds += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    assert threading.current_thread() is threading.main_thread(), "signals come to the main thread"
    before = {kind: signal.signal(kind, note) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


class Console:
    """Standard output: lines, and below them one that is written over and over, on a terminal."""

    EVERY_S = 15.0
    """Between progress lines where they cannot be written over."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._under = False  # there is a progress line
        self._last = -self.EVERY_S

    def line(self, text: str) -> None:
        self._write(("\r\033[K" if self._under else "") + text + "\n")
        self._under = False

    def progress(self, text: str) -> None:
        """Show `text` until the next line; an empty one takes it away."""
        if self._terminal:
            if text or self._under:
                width = shutil.get_terminal_size().columns - 1
                self._write("\r\033[K" + text[:width])
            self._under = bool(text)
        elif text and time.monotonic() - self._last >= self.EVERY_S:
            self._last = time.monotonic()
            self._write(text[:200] + "\n")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:  # the reader or the terminal is gone; the run is not, and its logs are on disk
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
