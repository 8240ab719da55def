"""The environment for Verifiers' v0 API (`vf.load_environment`), from 0.1.2 to 0.3.

    env = vf.load_environment("rg-env", gym="leg_counting")
    env = vf.load_environment("rg-env", gym=["leg_counting", {"name": "chain_sum", "weight": 2}], seed=1)

Parameters follow upstream's own `ReasoningGymEnv`. What v0's versions do differently is met by duck typing here, not
by looking at version numbers.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import verifiers as vf
from datasets import Dataset

from rg_env.adapters.reward_errors import record_reward_errors, reward_errors
from rg_env.adapters.v0_rubric import make_rubric
from rg_env.core.data.dataset import Row
from rg_env.core.data.manifest import Manifest
from rg_env.core.data.splits import SplitBy
from rg_env.core.environment import ReasoningGym
from rg_env.core.prompts import SYSTEM_PROMPT, Placement
from rg_env.core.rewards.registry import PARAMETERS, with_parameters_of
from rg_env.core.text import shortened
from rg_env.errors import InputError, unknown_name

_MADE_HERE = ("dataset", "eval_dataset", "rubric", "message_type")
"""Parameters of the parent classes that this environment fills in itself."""


class _ReasoningGym(ReasoningGym):
    offered = PARAMETERS
    """Verifiers gives rewards its `state` and `parser` too; the trainer refuses rewards that need one of them."""


class ReasoningGymEnv(vf.SingleTurnEnv):
    """A single-turn environment over Reasoning Gym tasks, whose training and evaluation rows never share a problem.

    Attributes: `environment` (the `ReasoningGym` whose rows and rubric these are, which `GRPOTrainer` trains on),
    `mixture` (the checked tasks), `manifest` (what the rows are, see `core.manifest`), `rewards` (name,
    function, weight), `asking` (how questions are put and answers graded), `grading`, `rubric`. `dataset` and
    `eval_dataset` have the columns question, answer, info (texts), prompt and example_id; they are None where 0
    examples were asked for.

    `to_examples` puts further rows in the form of `dataset`'s.

    `generate` raises the first `RewardError` of its batch: a failing reward ends the run instead of counting as 0.
    """

    def __init__(
        self,
        gym: Any = "leg_counting",
        num_train_examples: int = 2000,
        num_eval_examples: int = 200,
        system_prompt: str | None = SYSTEM_PROMPT,
        parser: vf.Parser | None = None,
        seed: int = 0,
        eval_seed: int = 0,
        rewards: Any = None,
        prompt_placement: Placement = "system",
        partial_credit: bool = False,
        grading: str = "hardened",
        manifest: str | Path | Manifest | None = None,
        preamble: str | None = None,
        split_by: SplitBy = "problem",
        **kwargs: Any,
    ) -> None:
        """`gym`: anything `Mixture.parse` takes. `rewards`: anything `resolve_rewards` takes. `seed` picks the training
        rows, `eval_seed` the evaluation rows, and `split_by` says what decides the split of a row: its "problem", or
        its "question" (see `core.splits`). `prompt_placement`: "user" puts `system_prompt` before the question, for
        chat templates that reject a system role, and "user_after" behind it. `preamble`: a system message besides,
        before a `system_prompt` that stands there. `grading`: "hardened", right or not; "partial", real progress
        counts; "upstream", the library's own formulas (see `core.scoring`). `partial_credit`: the same as
        `grading="partial"`. `manifest`: the `manifest.json` of a run, or its content; rows other than that run's are
        refused. Other keywords go to the parent class.

        Raises `InputError` for what cannot work.
        """
        _check_keywords(kwargs)
        if parser is not None and not isinstance(parser, vf.Parser):
            raise InputError(f"parser must be a vf.Parser, not {shortened(parser)}")
        if not isinstance(kwargs.get("sampling_args") or {}, Mapping):
            raise InputError(f"sampling_args must be a mapping, not {shortened(kwargs['sampling_args'])}")
        self.environment = env = _ReasoningGym(
            gym,
            num_train_examples,
            num_eval_examples,
            seed=seed,
            eval_seed=eval_seed,
            rewards=rewards,
            system_prompt=system_prompt,
            prompt_placement=prompt_placement,
            preamble=preamble,
            few_shot=kwargs.pop("few_shot", None),
            partial_credit=partial_credit,
            grading=grading,
            manifest=manifest,
            split_by=split_by,
        )
        self.mixture, self.manifest, self.rewards = env.mixture, env.manifest, env.rewards
        self.prompt_options, self.grading = env.prompt_options, env.grading
        parser = parser or vf.Parser()
        super().__init__(
            dataset=_dataset(env.train_rows),
            eval_dataset=_dataset(env.eval_rows),
            # Newer versions put a system prompt that they know of before any prompt without one.
            system_prompt=system_prompt if prompt_placement == "system" else None,
            parser=parser,
            rubric=make_rubric(env.rubric, parser),
            **kwargs,
        )
        self.reward_errors = record_reward_errors(self.rubric)

    def to_examples(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Rows of `core.dataset` as this environment asks and grades them: those of its datasets, as plain values."""
        return self.environment.to_examples(rows)

    # Synchronous up to 0.1.5 (with `a_generate` beside it), asynchronous from 0.1.6.
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, then raise the first error of a reward function, if there was one."""
        return self._checked(super().generate, *args, **kwargs)

    def a_generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, where it has one, then raise the first error of a reward function."""
        return self._checked(super().a_generate, *args, **kwargs)

    # Parts of a batch, from 0.1.9 on: a server that runs the environment for `vf-eval` knows these two alone (0.1.10),
    # and `generate` saves what they return before it returns itself.
    async def run_rollout(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, then raise the first error of a reward function, if there was one."""
        return await self._part(super().run_rollout, *args, **kwargs)

    async def run_group(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, where it has one, then raise the first error of a reward function."""
        return await self._part(super().run_group, *args, **kwargs)

    async def _part(self, run: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        with reward_errors() as errors:
            result = await run(*args, **kwargs)
        if errors:
            self.reward_errors.forget()
            raise errors[0]
        return result

    def _checked(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._batch():
            result = generate(*args, **kwargs)
            if not inspect.isawaitable(result):
                self.reward_errors.raise_first()
                return result
        return self._checked_later(result)

    async def _checked_later(self, result: Awaitable[Any]) -> Any:
        with self._batch():
            value = await result
            self.reward_errors.raise_first()
            return value

    @contextmanager
    def _batch(self) -> Iterator[None]:
        """A batch that fails otherwise takes its reward errors with it: the next one must not raise them."""
        try:
            yield
        except BaseException:
            self.reward_errors.forget()
            raise


@with_parameters_of(ReasoningGymEnv)
def load_environment(*args: Any, **options: Any) -> ReasoningGymEnv:
    """What `vf.load_environment("rg-env", ...)` calls; parameters as for `ReasoningGymEnv`."""
    return ReasoningGymEnv(*args, **options)


def _dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset | None:
    """Rows as the v0 API wants them: no plain-text `task` column, which several versions refuse."""
    return Dataset.from_list(list(rows)) if rows else None


def _check_keywords(kwargs: Mapping[str, Any]) -> None:
    own = {name for name in inspect.signature(load_environment).parameters if name != "kwargs"}
    parents = {
        name
        for parent in vf.SingleTurnEnv.__mro__
        if "__init__" in vars(parent) and parent is not object
        for name, parameter in inspect.signature(parent.__init__).parameters.items()
        if name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    for name in kwargs:
        if name in _MADE_HERE:
            raise InputError(f"{name!r} cannot be given: this environment makes it from gym and rewards")
        if name not in parents:
            raise unknown_name("parameter of the environment", name, own | parents - set(_MADE_HERE))
