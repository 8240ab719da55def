"""Rows (questions with everything needed to score an answer), split into training and evaluation rows.

A row is `{"question": str, "answer": str, "info": {"rg_task", "config", "entry", "problem", "share"}}`. All values in
`info` are text. `entry` is the complete library entry as JSON, so scoring does not need to generate it again. `problem`
is the problem's key (`core.data.problem_keys`), and `share` is the task's share of the rows, such as "37/200". The
task's name is stored under `rg_task` because verifiers 0.3 reads `info["task"]` itself and expects a different value.

By default, a row's problem determines its split (`core.data.splits`), so training and evaluation rows never share a
problem, regardless of the seeds. Within a split, rows have distinct questions. The seed determines a task's first item.
Starting from that item, distinct questions in the requested split are kept, in order, until there are enough rows
(`core.data.selection`). The same tasks, numbers of rows and seeds yield the same rows in any process and on any number
of cores (`core.data.generation`). A repeated build reads the rows from disk (`core.data.row_cache`).
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from rg_env.core.data import row_cache
from rg_env.core.data.generation import Generation, RowRequest
from rg_env.core.data.manifest import Manifest, check_manifest, make_manifest, read_manifest
from rg_env.core.data.selection import DrawnRow as DrawnRow
from rg_env.core.data.splits import Split, SplitBy
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import is_user_task
from rg_env.core.text import is_count, shortened
from rg_env.core.user_code import sources
from rg_env.errors import InputError

MAX_ROWS = 2**31
"""Maximum number of rows in a split."""


def build_rows(
    mixture: object,
    split: Split,
    n: int,
    seed: int,
    *,
    split_by: SplitBy = "problem",
    cache: bool = True,
    processes: int | None = None,
) -> list[DrawnRow]:
    """Build `n` rows with distinct questions for `split`.

    The rows are divided among the tasks by weight and shuffled with `seed`.

    Args:
        mixture: anything that `Mixture.parse` accepts.
        split_by: "problem" or "question". With "question", the two splits may contain the same problem in
            different wordings or orders.
        cache: whether to read the rows from the disk cache and to add missing rows to it.
        processes: maximum number of generation processes (default: one per core).

    Raises:
        InputError: the library rejects the options, or a task does not have enough distinct questions.
        GenerationError: a draw takes too long, or a generation process cannot be started or dies.
    """
    return _build(Mixture.parse(mixture), [(split, n, seed)], split_by, cache, processes)[0]


def build_splits(
    gym: object,
    num_train: int,
    num_eval: int,
    seed: int,
    eval_seed: int = 0,
    *,
    split_by: SplitBy = "problem",
    cache: bool = True,
    processes: int | None = None,
    manifest: str | Path | Manifest | None = None,
) -> tuple[list[DrawnRow], list[DrawnRow], dict[str, Any]]:
    """Build training rows, evaluation rows and their manifest (see `core.data.manifest`).

    `seed` determines the training rows and `eval_seed` the evaluation rows, so the evaluation set stays the same when
    the training seed changes. `manifest` is the manifest of another run, or the path of its file. Raises `InputError`
    if the rows differ from those in that manifest. The other arguments and errors are the same as for `build_rows`.
    """
    mixture = Mixture.parse(gym)
    expected = None if manifest is None else read_manifest(manifest)  # checked before rows are drawn
    parts: list[_Part] = [("train", num_train, seed), ("eval", num_eval, eval_seed)]
    train, evaluation = _build(mixture, parts, split_by, cache, processes)
    described = make_manifest(mixture, {"train": (train, seed), "eval": (evaluation, eval_seed)}, split_by)
    if expected is not None:
        check_manifest(expected, described)
    return train, evaluation, described


def check_request(mixture: Mixture, split: Split, n: int, seed: int, split_by: object = "problem") -> None:
    """Raise `InputError` for any invalid argument that can be detected without drawing a question."""
    if split_by not in get_args(SplitBy):
        raise InputError(f'split_by must be "problem" or "question", not {shortened(split_by)}')
    if not is_count(n, MAX_ROWS):
        raise InputError(
            f"the number of {split} examples must be a whole number from 0 to {MAX_ROWS}, not {shortened(n)}"
        )
    if not is_count(abs(seed) if isinstance(seed, int) and not isinstance(seed, bool) else seed, 2**64):
        raise InputError(f"seed must be a whole number from -2**64 to 2**64, not {shortened(seed)}")
    mixture.counts(n)


_Part = tuple[Split, int, int]
"""A split, its number of rows, and its seed."""


def _build(
    mixture: Mixture, parts: list[_Part], by: SplitBy, cache: bool, processes: int | None
) -> list[list[DrawnRow]]:
    """Return the rows for each part. Parts that are not on disk are generated together."""
    for part in parts:
        check_request(mixture, *part, by)
    folder = row_cache.folder() if cache else None
    files = {part: row_cache.path_of(folder, _described(mixture, part, by)) for part in parts if folder and part[1]}
    built = _load(files)
    if len(built) < len(parts):
        with row_cache.building(path for part, path in files.items() if part not in built):
            # Another process may have built these rows in the meantime.
            built |= _load({part: path for part, path in files.items() if part not in built})
            missing = [part for part in parts if part not in built]
            built |= _generate(mixture, missing, by, processes)
            for part in missing:
                if part in files:
                    row_cache.store(files[part], built[part])
    return [built[part] for part in parts]


def _load(files: Mapping[_Part, Path]) -> dict[_Part, list[DrawnRow]]:
    found = {part: row_cache.load(path) for part, path in files.items()}
    return {part: rows for part, rows in found.items() if rows is not None}


def _generate(mixture: Mixture, parts: list[_Part], by: SplitBy, processes: int | None) -> dict[_Part, list[DrawnRow]]:
    """Generate the rows for each part. Parts with the same seed share one walk through each task's items, so that no
    item is drawn twice."""
    requests = []
    for seed in dict.fromkeys(part[2] for part in parts):
        counts = {split: mixture.counts(n) for split, n, own in parts if own == seed}
        requests += [
            RowRequest(task, seed, {split: numbers[i] for split, numbers in counts.items()}, by)
            for i, task in enumerate(mixture.tasks)
        ]
    found = list(zip(requests, Generation(requests, processes).run(), strict=True))
    built = {}
    for part in parts:
        split, n, seed = part
        rows: list[DrawnRow] = []
        for request, by_split in found:
            if request.seed == seed and (count := request.counts[split]):
                rows += [{**row, "info": {**row["info"], "share": f"{count}/{n}"}} for row in by_split[split]]
        random.Random(f"{split}:{seed}").shuffle(rows)
        built[part] = rows
    return built


def _described(mixture: Mixture, part: _Part, by: SplitBy) -> dict[str, Any]:
    """Return everything that determines the rows of `part`."""
    split, n, seed = part
    tasks = [[task.name, count, task.config] for task, count in zip(mixture.tasks, mixture.counts(n), strict=True)]
    own = {"imports": sorted(sources().values())} if any(map(is_user_task, mixture.names)) else {}
    return {"tasks": tasks, "split": split, "seed": seed, "by": by, **own}
