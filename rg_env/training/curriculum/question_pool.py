"""Questions of one task at one level, as many as are asked for: generated as they are needed, always the same ones.

    pool = QuestionPool("chain_sum at level 1", spec, seed=0, prepare=prepare)
    pool[0], pool[1], ...

They come from the training split, in batches that double in size (`core.dataset`: more rows hold all of the fewer, and
come from disk the second time). Where the task has no more distinct ones they start over.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rg_env.core.data.dataset import Row, build_rows
from rg_env.core.data.splits import SplitBy
from rg_env.errors import GenerationError, InputError, TooFewQuestionsError

FIRST_ROWS = 128
"""Of the first batch: a few steps' worth, and still little work for tasks that are slow to draw from."""

Prepare = Callable[[list[Row]], list[dict[str, Any]]]


class QuestionPool:
    """Questions by number, from 0 up.

    Args:
        name: what lines and errors call it.
        spec: the task, as `Mixture.parse` takes it.
        seed: picks the questions.
        split_by: what decides which of them are for training (`core.splits`).
        prepare: makes rows of a training dataset from them; those that it leaves out are too long.
        end: how many there are, where that is known from an earlier run: how long it is worth to look for more depends
            on the machine's speed, and a run that goes on must start over where the first one did.
        say: takes lines for the user.
    """

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        *,
        seed: int,
        prepare: Prepare,
        split_by: SplitBy = "problem",
        end: int | None = None,
        say: Callable[[str], Any] = print,
    ) -> None:
        self.end = end
        """How many distinct ones there are, once that is known."""
        self._name, self._spec, self._seed, self._prepare, self._say = name, spec, seed, prepare, say
        self._split_by: SplitBy = split_by
        self._known: set[str] = set()
        self._questions: list[dict[str, Any]] = []
        self._told_too_long = False

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Question `number`; beyond the last one they start over.

        Raises:
            InputError: there is none: the library refuses the options, or all are too long.
            GenerationError: none can be generated.
        """
        while number >= len(self._questions) and len(self._known) != self.end:
            self._grow()
        return self._questions[number % len(self._questions)]

    def _grow(self) -> None:
        wanted = 2 * len(self._known) or FIRST_ROWS
        try:
            rows = self._build(wanted if self.end is None else min(wanted, self.end))
        except TooFewQuestionsError as error:
            found = max(error.found, len(self._known))
            if not found:
                raise
            rows = self._build(found)
            self._ends(found)
        except (InputError, GenerationError) as error:  # draws that fail, or take for ever: what there is will do
            if not self._known:
                raise
            self._ends(len(self._known), f" ({error})")
            return
        new = [row for row in rows if row["question"] not in self._known]
        self._known.update(row["question"] for row in new)
        fitting = self._prepare(new)
        self._questions += fitting
        if not self._questions:
            raise InputError(f"{self._name}: all {len(new)} questions are longer than max_prompt_length: raise it")
        if len(fitting) < len(new) and not self._told_too_long:
            self._told_too_long = True
            self._say(
                f"{self._name}: {len(new) - len(fitting)} of {len(new)} questions are longer than max_prompt_length "
                f"and are left out"
            )

    def _build(self, n: int) -> list[Row]:
        return build_rows(self._spec, "train", n, self._seed, split_by=self._split_by)

    def _ends(self, found: int, reason: str = "") -> None:
        self.end = found
        self._say(f"{self._name}: there are {found} distinct questions{reason}; after the last they start over")
