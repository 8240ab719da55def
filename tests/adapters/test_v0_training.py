"""Training on other authors' environments for Verifiers' v0 API."""

import asyncio
import warnings
from typing import Any

import pytest
from datasets import Dataset
from v0_api import vf

import rg_env
from rg_env.adapters import as_environment
from rg_env.adapters.v0 import VerifiersEnvironment
from rg_env.core.environment import Environment, ReasoningGym
from rg_env.errors import InputError, RewardError

ROWS = Dataset.from_list([{"question": f"{n} + 1?", "answer": str(n + 1), "hint": n} for n in range(4)])


def right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"].strip() == answer)


async def short(completion: Any, state: Any) -> float:
    """An async reward that also reads the state."""
    await asyncio.sleep(0.01)
    assert state["completion"] == completion
    return 1.0 if len(completion[-1]["content"]) < 5 else 0.0


def make(*funcs: Any, weights: list[float] | None = None, **options: Any) -> VerifiersEnvironment:
    rubric = options.pop("rubric", None) or vf.Rubric(funcs=list(funcs) or [right], weights=weights)
    env = as_environment(vf.SingleTurnEnv(**{"dataset": ROWS, "rubric": rubric, "system_prompt": "Add.", **options}))
    assert isinstance(env, VerifiersEnvironment)
    return env


def test_rows_and_scores_match_verifiers() -> None:
    """Prompts, rewards (including async ones) and their weighted sum are the same as in Verifiers."""
    env = make(right, short, weights=[1.0, 0.25])
    assert env.train_rows[2]["prompt"] == [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 1?"}]
    assert (env.eval_rows, env.system_prompt) == ([], "Add.")
    assert env.reward_weights == {"right": 1.0, "short": 0.25}
    assert not env.has_accuracy
    texts = ["1", "2 or so", "no, it is", "4"]
    scored = env.score([env.rollout(row, text) for row, text in zip(env.train_rows, texts, strict=True)])
    assert [each.rewards for each in scored] == [
        {"right": 1.0, "short": 1.0}, {"right": 0.0, "short": 0.0}, {"right": 0.0, "short": 0.0},
        {"right": 1.0, "short": 1.0},
    ]  # fmt: skip
    assert [each.reward for each in scored] == [1.25, 0.0, 0.0, 1.25]
    assert all(each.metrics == {} for each in scored)


def test_accuracy_is_a_metric() -> None:
    """A reward function named `accuracy` is reported as a metric."""

    def accuracy(completion: Any, answer: str) -> float:
        return right(completion, answer)

    env = make(accuracy, short, weights=[0.0, 1.0])
    assert env.has_accuracy
    [scored] = env.score([env.rollout(env.train_rows[0], "1")])
    assert (scored.reward, scored.rewards, scored.metrics) == (1.0, {"short": 1.0}, {"accuracy": 1.0})


def test_rewards_receive_the_rows_values() -> None:
    """Rewards receive the answer with its type, the info and the task; completion environments have text prompts."""
    seen: list[Any] = []

    def look(prompt: Any, completion: Any, answer: Any, info: Any, task: Any) -> float:
        name = task if isinstance(task, str) else task["task"]  # later releases pass the row
        seen.append((prompt, completion, answer, info, name))
        return 0.0

    rows = Dataset.from_list([{"prompt": "1 + 1 =", "answer": 2, "info": {"kind": "sum"}, "task": "add"}])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # `message_type` is deprecated in later releases
        env = make(look, dataset=rows, message_type="completion", system_prompt=None)
    env.score([env.rollout(env.train_rows[0], " 2")])
    assert seen == [("1 + 1 =", " 2", 2, {"kind": "sum"}, "add")]
    assert env.train_rows[0]["answer"] == "2"


def _raises(completion: Any) -> float:
    raise KeyError("five")


async def _gives_none(completion: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("rubric", "message"),
    [
        (vf.Rubric(funcs=[right, _raises]), r"reward '_raises' raised KeyError: 'five' .*completion '7'"),
        (vf.Rubric(funcs=[_gives_none, right]), r"reward '_gives_none' returned None, not a finite number"),
        (vf.RubricGroup(rubrics=[vf.Rubric(funcs=[right]), vf.Rubric(funcs=[_raises])]), "reward '_raises' raised"),
    ],
)
def test_a_reward_that_fails_is_an_error(rubric: Any, message: str) -> None:
    """A failing reward raises an error instead of counting as 0; the next batch is not affected."""
    env = make(rubric=rubric)
    with pytest.raises(RewardError, match=message):
        env.score([env.rollout(env.train_rows[0], "7")])
    [scored] = make(right).score([env.rollout(env.train_rows[0], "1")])
    assert scored.reward == 1.0


def test_a_rubric_that_returns_none_is_an_error() -> None:
    """Rewards that a rubric class computes itself, without wrapped functions, are checked, too."""

    class Own(vf.Rubric):
        if hasattr(vf.Rubric, "score_rollouts"):  # up to 0.1.6

            async def score_rollouts(self, **kwargs: Any) -> Any:
                return vf.types.RolloutScores.model_construct(reward=[None], metrics={"right": [1.0]})

        else:

            async def score_group(self, states: Any) -> None:
                states[0].update(reward=None, metrics={"right": None})

    env = make(rubric=Own(funcs=[right]))
    with pytest.raises(RewardError, match=r"of Own' returned None, not a finite number|RubricGroup raised TypeError"):
        env.score([env.rollout(env.train_rows[0], "7")])


class _Turns(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return [], state


class _SetUp(vf.SingleTurnEnv):
    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        return state


def _tool(x: int) -> int:
    """A tool."""
    return x


def _with_tools() -> Any:
    old = {"oai_tools": [{"type": "function"}]}  # up to 0.1.6
    new = {"tool_defs": [{"name": "f", "description": "A tool.", "parameters": {}}]}
    return vf.SingleTurnEnv(dataset=ROWS, **(new if hasattr(vf, "Tool") else old))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (_Turns(dataset=ROWS), "_Turns is not a SingleTurnEnv"),
        (vf.ToolEnv(dataset=ROWS, tools=[_tool]), "ToolEnv is not a SingleTurnEnv"),
        (_with_tools(), "SingleTurnEnv has tools"),
        (_SetUp(dataset=ROWS, rubric=vf.Rubric(funcs=[right])), "_SetUp overrides setup_state"),
    ],
)
def test_environments_that_the_trainer_cannot_run_are_refused(env: Any, message: str) -> None:
    """The error names the environment and suggests an alternative."""
    with pytest.raises(InputError, match=rf"{message}.*use prime-rl to train on it"):
        as_environment(env)


def test_invalid_environments_are_refused() -> None:
    """Environments without a reward function or with an image in a prompt are refused, and so are other objects."""
    with pytest.raises(InputError, match="the rubric of SingleTurnEnv has no reward function"):
        as_environment(vf.SingleTurnEnv(dataset=ROWS))
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(InputError, match=r"dataset\[0\]: prompt must be text, or a list of messages"):
        make(dataset=Dataset.from_list([{"prompt": image, "answer": ""}]), system_prompt=None)
    with pytest.raises(InputError, match="env must be an rg_env ReasoningGym or Environment"):
        as_environment(object())


def test_the_trainer_unwraps_the_plain_environment() -> None:
    """The trainer uses the `ReasoningGym` in our environment, and refuses rewards with arguments that only Verifiers
    provides."""
    env = rg_env.load_environment(num_train_examples=4, num_eval_examples=2)
    plain = as_environment(env)
    assert isinstance(plain, ReasoningGym)
    assert plain.train_rows == env.dataset.to_list()
    assert as_environment(plain) is plain

    def wants_parser(completion: Any, parser: Any) -> float:
        return float(parser is not None)

    of_v0 = rg_env.load_environment(num_train_examples=4, num_eval_examples=2, rewards=[wants_parser])
    with pytest.raises(InputError, match="'wants_parser' needs 'parser', which GRPOTrainer does not provide"):
        as_environment(of_v0)
    with pytest.raises(InputError, match="needs 'parser', which this environment does not provide"):
        Environment([{"question": "?"}], rewards=[wants_parser])
