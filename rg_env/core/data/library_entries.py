"""The library's own entries for a config, found by the text of their questions.

    found = entries_for("gcd", {"seed": 45, "size": 50}, questions)      # {question: entry}

Published replies to Reasoning Gym's questions come with the questions and the config, but without the metadata that
graders need. The entries are drawn as the library draws them, without rg_env's fixes and selection, in a child process
with the usual limits. They are cached on disk with the rows (`core.data.row_cache`).
"""

import contextlib
import json
import signal
import time
from collections.abc import Collection, Mapping
from typing import Any

from rg_env.core.child_main import ParentPipe
from rg_env.core.data import row_cache
from rg_env.core.data.items import limit_cpu
from rg_env.core.processes import JsonProcess, ProcessEndedError, bare_environment
from rg_env.core.tasks import library
from rg_env.core.tasks.task_table import SET_BY_ROWS, load_table
from rg_env.errors import InputError, RGEnvError

SIZE = 500
"""Number of entries of a config without `size`, as in the library."""
_CPU_S = 120
"""Limit on the CPU time for the entries of one config. Questions not found by then stay without an entry. Time by the
clock would make grades depend on what else the machine does."""
_SILENCE_S = 600.0


def entries_for(task: str, config: Mapping[str, Any], questions: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the entries that the library generates for `config`, by question. `config` contains the task's options,
    the library's `seed`, and optionally its `size`. The result may also contain entries for other questions, and lacks
    those for questions that the installed release does not generate.

    Raises `InputError` if the library rejects the options, or the process that draws the entries dies.
    """
    options = {name: value for name, value in config.items() if name not in SET_BY_ROWS}
    what = {"library": task, "config": options, "seed": config["seed"], "size": config.get("size") or SIZE}
    wanted = {question.strip() for question in questions}
    folder = row_cache.folder()
    file = None if folder is None else row_cache.path_of(folder, what)
    known: list[Any] = (row_cache.load(file) if file and file.exists() else None) or []
    found = _by_question(known)
    if len(known) < what["size"] and not wanted <= found.keys():
        drawn = _drawn(what, wanted)
        found = _by_question(drawn)
        if file is not None and len(drawn) > len(known):
            row_cache.store(file, drawn)
    return found


def _by_question(entries: Collection[Any]) -> dict[str, dict[str, Any]]:
    return {entry["question"].strip(): entry for entry in entries if entry}


def _drawn(what: Mapping[str, Any], wanted: Collection[str]) -> list[Any]:
    """Draw entries in order until all of the wanted questions are found. An entry that cannot be drawn is None, as are
    all entries after the time limit, so that they are not drawn again next time."""
    process = JsonProcess("rg_env.core.data.library_entries:serve", bare_environment())
    entries: list[Any] = []
    missing = set(wanted)
    try:
        process.send({**what, "cpu_s": _CPU_S})
        while missing and len(entries) < what["size"]:
            reply = process.receive(time.monotonic() + _SILENCE_S)
            if isinstance(reply, dict) and "error" in reply:
                raise InputError(reply["error"])
            entries.append(reply)
            missing.discard(reply["question"].strip() if reply else "")
    except TimeoutError:
        raise InputError(f"the process that generates the entries is silent for {_SILENCE_S:g} s") from None
    except ProcessEndedError as error:
        if error.code != -signal.SIGPROF:
            raise InputError(f"the process that generates the entries ended: {error}") from None
        entries += [None] * (what["size"] - len(entries))
    finally:
        process.kill()
    return entries


def serve() -> None:
    """Draw one config's entries. This is the main function of a child process. The only message is {"library": task,
    "config", "seed", "size", "cpu_s"}. Each reply is an entry, or null if the library fails on it. If no entry can be
    drawn, the only reply is {"error": text}. SIGPROF ends the process after `cpu_s` seconds of CPU time."""
    parent = ParentPipe()
    what = parent.receive()
    task, config = what["library"], what["config"]
    limit_cpu(what["cpu_s"])
    try:
        library.import_only(task, load_table()[task]["module"])
        dataset = library.create(task, config, seed=what["seed"], size=what["size"])
    except RGEnvError as error:
        parent.send({"error": str(error)})
        return
    for index in range(what["size"]):
        entry = None
        with contextlib.suppress(Exception), library.quiet():
            entry = json.loads(json.dumps(dataset[index], default=library.to_plain))
        parent.send(entry)
