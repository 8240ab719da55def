"""`ReasoningGymEnv` for Verifiers' v1 API, run by Verifiers with a real local server."""

import asyncio
import inspect
from typing import Any

import pytest
from chat_server import ChatServer
from v1_api import vf

import rg_env
from rg_env.adapters import as_environment
from rg_env.adapters.v1 import SingleTurnEnvConfig
from rg_env.core.grading.scoring import Rollout
from rg_env.errors import InputError, UnknownNameError

SMALL: dict[str, Any] = {"num_train_examples": 4, "num_eval_examples": 6}
SHOTS = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "<answer>1</answer>"}]


def run_tasks(env: rg_env.ReasoningGymEnv, server: ChatServer) -> list[vf.Episode]:
    """Run every task once, as Verifiers does, and return the episodes."""

    async def run() -> list[vf.Episode]:
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="HOME")
        context = vf.ModelContext(model="m", client=client)
        async with env.serving():
            return list(await asyncio.gather(*(env.run_episode(task, context) for task in env.taskset)))

    return asyncio.run(run())


def test_load_environment_returns_a_verifiers_environment() -> None:
    """The v1 environment contains the plain one, which the trainer uses."""
    env = rg_env.load_environment("leg_counting", **SMALL, seed=1, grading="partial")
    assert type(env) is rg_env.ReasoningGymEnv
    assert isinstance(env, vf.Env)
    assert isinstance(env.taskset, rg_env.ReasoningGymTaskset)
    plain = rg_env.ReasoningGym("leg_counting", **SMALL, seed=1, grading="partial")
    assert (env.environment.train_rows, env.environment.eval_rows) == (plain.train_rows, plain.eval_rows)
    assert env.manifest == plain.manifest
    assert as_environment(env) is env.environment
    assert repr(env) == f"ReasoningGymEnv({plain!r}, 'eval')"


@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("prompt", [{}, {"few_shot": SHOTS}, {"prompt_placement": "user", "few_shot": SHOTS}])
def test_prompts_and_rewards_match_the_plain_environment(server: ChatServer, split: Any, prompt: Any) -> None:
    """Right, wrong and missing answers score as in `ReasoningGym`, for every form of prompt and both splits."""

    async def shouts(rollout: Rollout) -> float:
        return float("<ANSWER" not in rollout.text) / (1 + (rollout.completion_tokens or 0))

    options: dict[str, Any] = {**SMALL, **prompt, "gym": ["leg_counting", "gcd"]}
    options["rewards"] = ["correctness", ("brevity", 0.33), {"name": shouts, "weight": 0.7}]
    env = rg_env.load_environment(**options, split=split)
    plain = rg_env.ReasoningGym(**options)
    rows = plain.train_rows if split == "train" else plain.eval_rows
    texts = [(f"<answer>{row['answer']}</answer>", "<answer>x</answer>", "none")[i % 3] for i, row in enumerate(rows)]
    replies = {row["question"]: text for row, text in zip(rows, texts, strict=True)}
    server.answer = replies.__getitem__
    episodes = run_tasks(env, server)
    assert [episode.errors for episode in episodes] == [[]] * len(rows)
    tokens = [episode.traces[0].calls[0].usage.completion_tokens for episode in episodes]
    expected = plain.score(
        [plain.rollout(row, text, completion_tokens=n) for row, text, n in zip(rows, texts, tokens, strict=True)]
    )
    assert [episode.traces[0].reward for episode in episodes] == [each.reward for each in expected]
    accuracy = [episode.traces[0].metrics["accuracy"] for episode in episodes]
    assert accuracy == [each.metrics["accuracy"] for each in expected]
    for episode, each in zip(episodes, expected, strict=True):
        assert {name: reward.score for name, reward in episode.traces[0].rewards.items() if reward} == each.rewards
    sent = {body["messages"][-1]["content"]: body["messages"] for body in server.requests}
    assert [sent[row["question"]] for row in rows] == [row["prompt"] for row in rows]


def test_requests_have_the_template_variables_and_stop_texts_of_the_taskset(server: ChatServer) -> None:
    """Both are sampling settings of the agent, which prime-rl's client applies as well. The agent's own settings take
    precedence."""
    kwargs = {"enable_thinking": False}
    run_tasks(rg_env.load_environment(**SMALL, chat_template_kwargs=kwargs), server)
    assert [body["chat_template_kwargs"] for body in server.requests] == [kwargs] * 6
    options = {"id": "rg-env", "chat_template_kwargs": kwargs, "stop": ["</answer>"]}
    config = SingleTurnEnvConfig(taskset=options, agent={"sampling": {"temperature": 0.5}})
    assert config.agent.sampling is not None
    sampling = config.agent.sampling.model_dump(exclude_none=True)
    assert sampling == {
        "temperature": 0.5, "chat_template_kwargs": kwargs, "stop": ["</answer>"], "include_stop_str_in_output": True
    }  # fmt: skip
    own = SingleTurnEnvConfig(taskset=options, agent={"sampling": {"stop": ["x"]}}).agent.sampling
    assert own is not None
    assert own.model_dump()["stop"] == ["x"]


@pytest.mark.parametrize("end", ["", "</think>"])
def test_an_answer_in_thinking_that_the_template_opens_does_not_count(server: ChatServer, end: str) -> None:
    """The reply has no tag of its own if it ends in the thinking section."""
    env = rg_env.load_environment(**SMALL, opens_thinking=True)
    golds = {row["question"]: row["answer"] for row in env.environment.eval_rows}
    server.answer = lambda question: f"maybe{end} <answer>{golds[question]}</answer>"
    assert {episode.traces[0].metrics["accuracy"] for episode in run_tasks(env, server)} == {float(bool(end))}
    taskset = rg_env.ReasoningGymTaskset(SingleTurnEnvConfig(taskset={"id": "rg-env", "opens_thinking": True}).taskset)
    assert next(iter(taskset)).data.info["reply_prefix"] == "<think>"


def test_a_reward_that_raises_is_the_rollouts_error(server: ChatServer) -> None:
    def breaks(rollout: Rollout) -> float:
        raise KeyError("five")

    (episode, *_) = run_tasks(rg_env.load_environment(**SMALL, rewards=["correctness", breaks]), server)
    assert not episode.ok
    assert "reward 'breaks' raised KeyError: 'five' (" in episode.traces[0].errors[0].message


def test_parameters_match_the_plain_environment() -> None:
    """Both entry points have the parameters of `ReasoningGym` and, in addition, `split`."""
    plain = dict(inspect.signature(rg_env.ReasoningGym).parameters)
    own = dict(inspect.signature(rg_env.ReasoningGymEnv).parameters)
    assert own.pop("split").default == "eval"
    assert own == plain
    assert inspect.signature(rg_env.load_environment) == inspect.signature(rg_env.ReasoningGymEnv)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"task_name": "maze", "num_examples": 5},
            UnknownNameError,
            "use 'gym' instead; .* use 'num_train_examples' instead",
        ),
        ({"max_animals": 9}, UnknownNameError, "an option of a task; use gym={'name': TASK, 'config': {'max_animals'"),
        (
            {"rubric": object()},
            UnknownNameError,
            "an argument with Verifiers up to 0.3.1; .* pass its reward functions as rew",
        ),
        ({"split": "test"}, UnknownNameError, "unknown split 'test'"),
        ({"rewards": [lambda state: 1.0]}, InputError, "needs 'state', which this environment does not provide"),
    ],
)
def test_bad_arguments_are_reported_at_once(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rg_env.load_environment(**{**SMALL, **options})


@pytest.mark.parametrize(
    ("name", "use"),
    [("get_dataset", "train_rows"), ("eval_dataset", "eval_rows"), ("system_prompt", "environment.system_prompt")],
)
def test_attributes_of_the_v0_api_are_explained(name: str, use: str) -> None:
    """`hasattr` still reports that they are missing."""
    env = rg_env.load_environment(**SMALL)
    assert not hasattr(env, name)
    with pytest.raises(AttributeError, match=rf"^{name} belongs to Verifiers' v0 API, up to 0.3.1: use env\..*{use}$"):
        getattr(env, name)
    with pytest.raises(AttributeError, match=r"^'ReasoningGymEnv' object has no attribute 'datset'$"):
        env.datset  # noqa: B018
    for name in ("train_rows", "score"):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': use env.environment.{name}$"):
            getattr(env, name)


def test_a_split_without_rows_is_an_error_when_it_is_read() -> None:
    """An environment may have rows in only one split."""
    env = rg_env.load_environment(num_train_examples=2, num_eval_examples=0)
    assert len(env.environment.train_rows) == 2
    with pytest.raises(
        InputError, match="num_eval_examples is 0, so there are no tasks: increase it, or use split='train'"
    ):
        list(env.taskset)
    env = rg_env.load_environment(num_train_examples=0, num_eval_examples=2, split="train")
    with pytest.raises(InputError, match=r"num_train_examples is 0.* or use split='eval'"):
        list(env.taskset)
