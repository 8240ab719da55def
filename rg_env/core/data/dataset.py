"""Rows (questions with everything needed to score an answer), split into training and evaluation rows.

A row is `{"question": str, "answer": str, "info": {"rg_task", "config", "entry", "problem", "share"}}`. All values in
`info` are text. `entry` is the complete library entry as JSON, so scoring does not need to generate it again. `problem`
is the problem's key (`core.data.problem_keys`), and `share` is the task's share of the rows, such as "37/200". The
task's name is stored under `rg_task` because verifiers 0.3 reads `info["task"]` itself and expects a different value.

By default, a row's problem determines its split (`core.data.splits`), so training and evaluation rows never share a
problem, regardless of the seeds. Within a split, rows have distinct questions, except that a training split repeats
questions if a task has too few (`core.data.splits.OnFew`). The seed determines a task's first item.
Starting from that item, distinct questions in the requested split are kept, in order, until there are enough rows
(`core.data.selection`). The same tasks, numbers of rows and seeds yield the same rows in any process and on any number
of cores (`core.data.generation`). A repeated build reads the rows from disk (`core.data.row_cache`).
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

from rg_env.core.data import row_cache
from rg_env.core.data.generation import Generation, RowRequest
from rg_env.core.data.manifest import Manifest, check_manifest, make_manifest, read_manifest
from rg_env.core.data.selection import DrawnRow as DrawnRow
from rg_env.core.data.splits import EVAL_SHARE, OnFew, Split, SplitBy
from rg_env.core.processes import print_once
from rg_env.core.tasks.mixture import Mixture, TaskSpec
from rg_env.core.tasks.task_table import is_user_task, load_table
from rg_env.core.text import is_count, listed, shortened
from rg_env.core.user_code import sources
from rg_env.errors import InputError, TooFewQuestionsError

MAX_ROWS = 2**31
"""Maximum number of rows in a split."""

DISTINCT_FILE = Path(__file__).parents[1] / "distinct_questions.json"
"""How many distinct questions tasks have with the default options, at their levels, and with the options in the shipped
configs. `tools/distinct_questions.py` takes the measurements by drawing. Cached rows do not depend on this folder."""


class Distinct(NamedTuple):
    """What a number of draws contained."""

    draws: int
    train: int
    """Number of distinct questions in the training split."""
    eval: int
    """Number of distinct questions in the evaluation split."""
    once: int
    """Number of questions that were drawn exactly once."""
    twice: int
    """Number of questions that were drawn exactly twice."""
    complete: int
    """1 if further draws would have no new question, by the same rule as for rows (`selection.PATIENCE_DRAWS`)."""

    @property
    def unseen(self) -> float:
        """Lower bound of the expected number of other questions: A. Chao, Scandinavian Journal of Statistics 11 (1984),
        bias-corrected."""
        return 0.0 if self.complete else self.once * (self.once - 1) / (2 * (self.twice + 1))

    def at_least(self, split: Split) -> int:
        """Return how many distinct questions the split has at least, to two digits if there are others."""
        share = EVAL_SHARE if split == "eval" else 1 - EVAL_SHARE
        found = int(getattr(self, split) + share * self.unseen)
        digits = 10 ** max(0, len(str(found)) - 2)
        return found if self.complete else found // digits * digits

    def described(self, split: Split) -> str:
        """Return the number of distinct questions as text, such as "63" or "over 60,000"."""
        return f"{'' if self.complete else 'over '}{self.at_least(split):,}"


def options_key(spec: TaskSpec) -> str:
    """Return the task's options that differ from the defaults, as JSON."""
    defaults = load_table()[spec.name]["options"]
    return json.dumps({key: value for key, value in sorted(spec.config.items()) if value != defaults.get(key)})


def measured(spec: TaskSpec) -> Distinct | None:
    """Return the measurement for a task with these options, or None if it was not taken."""
    found = _table().get(spec.name, {}).get(options_key(spec))
    return None if found is None else Distinct._make(found)


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = json.loads(DISTINCT_FILE.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class SplitRequest:
    """A request for the rows of one split. The rows are divided among the tasks by weight and shuffled with `seed`.

    Raises `InputError` for any invalid value that can be detected without drawing a question.
    """

    mixture: Mixture
    split: Split
    n: int
    seed: int
    by: SplitBy = "problem"
    """With "question", the two splits may contain the same problem in different wordings or orders."""
    on_few: OnFew = "repeat"

    def __post_init__(self) -> None:
        if self.on_few not in get_args(OnFew):
            raise InputError(f'on_few must be "repeat", "cap" or "error", not {shortened(self.on_few)}')
        if self.by not in get_args(SplitBy):
            raise InputError(f'split_by must be "problem" or "question", not {shortened(self.by)}')
        if not is_count(self.n, MAX_ROWS):
            raise InputError(
                f"the number of {self.split} examples must be a whole number from 0 to {MAX_ROWS}, not "
                f"{shortened(self.n)}"
            )
        seed = self.seed
        if not is_count(abs(seed) if isinstance(seed, int) and not isinstance(seed, bool) else seed, 2**64):
            name = "seed" if self.split == "train" else "eval_seed"
            raise InputError(f"{name} must be a whole number from -2**64 to 2**64, not {shortened(seed)}")
        _ = self.counts

    @cached_property
    def counts(self) -> list[int]:
        """Number of rows for each task."""
        return self.mixture.counts(self.n)

    @property
    def described(self) -> dict[str, Any]:
        """Everything that determines the rows."""
        tasks = [[task.name, count, task.config] for task, count in zip(self.mixture.tasks, self.counts, strict=True)]
        own = {"imports": sorted(sources().values())} if any(map(is_user_task, self.mixture.names)) else {}
        how = {"split": self.split, "seed": self.seed, "by": self.by, "on_few": self.on_few}
        return {"tasks": tasks, **how, **own}

    def shortage(self, rows: Sequence[DrawnRow]) -> list[str]:
        """Describe the tasks with fewer distinct questions than requested, one line each."""
        questions: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            questions.setdefault((row["info"]["rg_task"], row["info"]["config"]), []).append(row["question"])
        lines = []
        for task, count in zip(self.mixture.tasks, self.counts, strict=True):
            own = questions.get((task.name, task.config_json), [])
            if 0 < (few := len(set(own))) < count:
                lines.append(f"task {task.name!r} has {self._few(few, count, len(own))}")
        return lines

    def _few(self, few: int, count: int, used: int) -> str:
        what = {"train": "training", "eval": "evaluation"}[self.split]
        then = f"each is used {used / few:.1f} times on average" if used > few else "all are used"
        then = f"request fewer, because splits.on_few is {self.on_few!r}" if self.on_few == "error" else then
        return f"{few:,} distinct {what} {'question' if few == 1 else 'questions'}, not {count:,}: {then}"

    def expected_shortage(self) -> list[str]:
        """Describe the tasks that are known to have fewer distinct questions than requested, one line each, and those
        whose number is not known (see `measured`). Nothing is drawn.

        Raises `TooFewQuestionsError` if `on_few` is "error" and a task has too few.
        """
        lines, unknown = [], []
        for task, count in zip(self.mixture.tasks, self.counts, strict=True):
            if (known := measured(task)) is None:
                unknown.append(task.name)
            elif known.complete and (few := known.at_least(self.split)) < count:
                used = count if self.on_few == "repeat" and self.split == "train" else few
                lines.append(f"task {task.name!r} has about {self._few(few, count, used)}")
                if self.on_few == "error":
                    raise TooFewQuestionsError(lines[-1], few)
        if unknown and self.n:
            lines.append(f"not measured: how many distinct questions {listed(unknown)} has with these options")
        return lines


def build_rows(
    mixture: object,
    split: Split,
    n: int,
    seed: int,
    *,
    split_by: SplitBy = "problem",
    on_few: OnFew = "repeat",
    cache: bool = True,
    processes: int | None = None,
) -> list[DrawnRow]:
    """Build `n` rows for `split` (see `SplitRequest`).

    Args:
        mixture: anything that `Mixture.parse` accepts.
        cache: whether to read the rows from the disk cache and to add missing rows to it.
        processes: maximum number of generation processes (default: one per core).

    Raises:
        InputError: the library rejects the options, or a task has no questions for this split, or too few and `on_few`
            is "error".
        GenerationError: a draw takes too long, or a generation process cannot be started or dies.
    """
    return _build([SplitRequest(Mixture.parse(mixture), split, n, seed, split_by, on_few)], cache, processes)[0]


def build_splits(
    gym: object,
    num_train: int,
    num_eval: int,
    seed: int,
    eval_seed: int = 0,
    *,
    split_by: SplitBy = "problem",
    on_few: OnFew = "repeat",
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
    requests = [
        SplitRequest(mixture, "train", num_train, seed, split_by, on_few),
        SplitRequest(mixture, "eval", num_eval, eval_seed, split_by, on_few),
    ]
    train, evaluation = _build(requests, cache, processes)
    described = make_manifest(mixture, {"train": (train, seed), "eval": (evaluation, eval_seed)}, split_by)
    if expected is not None:
        check_manifest(expected, described)
    return train, evaluation, described


def _build(requests: Sequence[SplitRequest], cache: bool, processes: int | None) -> list[list[DrawnRow]]:
    """Return the rows for each request. Rows that are not on disk are generated together."""
    filled = [request for request in requests if request.n]

    def generate(numbers: Sequence[int]) -> list[list[DrawnRow]]:
        return _generate([filled[number] for number in numbers], processes)

    built = row_cache.cached([each.described for each in filled], generate) if cache else generate(range(len(filled)))
    for request, rows in zip(filled, built, strict=True):
        for line in request.shortage(rows):
            print_once(line)
    remaining = iter(built)
    return [next(remaining) if request.n else [] for request in requests]


def _generate(requests: Sequence[SplitRequest], processes: int | None) -> list[list[DrawnRow]]:
    """Generate the rows for each request. Requests with the same seed share one walk through each task's items, so that
    no item is drawn twice."""
    walks = []
    for seed in dict.fromkeys(request.seed for request in requests):
        own = [request for request in requests if request.seed == seed]
        walks += [
            RowRequest(task, seed, {request.split: request.counts[i] for request in own}, own[0].by, own[0].on_few)
            for i, task in enumerate(own[0].mixture.tasks)
        ]
    found = list(zip(walks, Generation(walks, processes).run(), strict=True))
    built = []
    for request in requests:
        rows: list[DrawnRow] = []
        total = sum(len(by_split.get(request.split, ())) for walk, by_split in found if walk.seed == request.seed)
        for walk, by_split in found:
            if walk.seed == request.seed and walk.counts[request.split]:
                own_rows = by_split[request.split]
                share = f"{len(own_rows)}/{total}"
                rows += [{**row, "info": {**row["info"], "share": share}} for row in own_rows]
        random.Random(f"{request.split}:{request.seed}").shuffle(rows)
        built.append(rows)
    return built
