"""The program of a generation process: takes jobs as JSON lines on stdin, gives items as JSON lines on stdout.

Started by `core.generation` with a fixed hash seed. It imports the user's code, where a task is theirs, and says
`{"ready": true}`. A job is `{"task", "config", "seed", "first", "count", "splits", "by"}`; the reply is one line for
each of the `count` draws, in order: `[question, gold, entry, problem]`, `null` for a draw that gives no question of
these splits, `{"failed": text}` for one that the library fails on. What it refuses altogether is `{"error": text}`. The
end of stdin ends the process: it does not outlive its parent.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from typing import Any

from rg_env.core.data.items import DrawFailed, ItemStream
from rg_env.core.data.splits import SplitBy
from rg_env.core.tasks import library
from rg_env.core.tasks.library_fixes import mend
from rg_env.core.tasks.task_table import is_user_task, load_table
from rg_env.core.user_code import import_same
from rg_env.errors import InputError

_TOP = "call register_dataset where the file is read, outside of functions and of `if __name__ == ...`"


def main(sources: Mapping[str, str]) -> None:
    """Serve jobs until stdin ends. `sources`: see `core.imports.import_same`."""
    replies = os.dup(1)
    with open(os.devnull, "w") as nowhere:  # what the library prints must not get among the replies
        os.dup2(nowhere.fileno(), 1)
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    try:
        import_same(sources)
        _send(replies, {"ready": True})
    except InputError as error:
        _send(replies, {"error": str(error)})
    streams: dict[str, ItemStream] = {}
    while True:
        job = jobs.get()
        task = job["task"]
        if task not in load_table():
            _send(replies, {"error": f"task {task!r} is not registered by importing {', '.join(sources)}: {_TOP}"})
            continue
        key = json.dumps([task, job["config"], job["seed"]])
        if key not in streams:
            if not is_user_task(task):
                library.import_only(task, load_table()[task]["module"])
            mend(task)
            streams[key] = ItemStream(task, job["config"], job["seed"])
        try:
            for index in range(job["first"], job["first"] + job["count"]):
                _send(replies, _draw(streams[key], index, job["splits"], job["by"]))
        except InputError as error:
            _send(replies, {"error": str(error)})


def _draw(stream: ItemStream, index: int, splits: list[str], by: SplitBy) -> Any:
    try:
        item = stream.draw(index)
    except DrawFailed as error:
        return {"failed": str(error)}
    return item if item and item.split(by) in splits else None


def _read_jobs(jobs: "queue.SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)  # the parent is gone, or has no more use for this process, whatever it is drawing


def _send(replies: int, value: object) -> None:
    data = json.dumps(value).encode() + b"\n"
    while data:
        data = data[os.write(replies, data) :]
