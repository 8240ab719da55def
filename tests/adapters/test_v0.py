"""The environment for Verifiers' v0 API, evaluated with a real local server."""

import asyncio
import contextlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from seen_rewards import Seen
from user_code import TASK
from v0_api import evaluated, functions, generated, names, vf, weights

import rg_env
from rg_env.adapters import as_environment, v0
from rg_env.core.data.splits import split_of
from rg_env.core.grading.scoring import Rollout
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.errors import InputError, RewardError, UnknownNameError

SMALL: dict[str, Any] = {"num_train_examples": 8, "num_eval_examples": 6}
SHOTS = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "<answer>1</answer>"}]


@pytest.mark.parametrize("prompt", [{}, {"prompt_placement": "user", "few_shot": SHOTS}, {"system_prompt": None}])
def test_rows_and_scores_match_the_plain_environment(server: ChatServer, prompt: dict[str, Any]) -> None:
    """Rows of both splits and scores of replies over HTTP equal those of `ReasoningGym`, for every form of prompt."""
    rewards = ["correctness", "format", "brevity"]
    arguments: dict[str, Any] = {**SMALL, **prompt, "gym": ["leg_counting", "gcd"], "rewards": rewards}
    env, plain = rg_env.load_environment(**arguments), rg_env.ReasoningGym(**arguments)
    assert (env.dataset.to_list(), env.eval_dataset.to_list()) == (plain.train_rows, plain.eval_rows)
    assert env.environment.manifest == plain.manifest
    answers = [f"<answer>{row['answer'] if index % 2 else 'no'}</answer>" for index, row in enumerate(plain.eval_rows)]
    replies = {row["question"]: answer for row, answer in zip(plain.eval_rows, answers, strict=True)}
    server.answer = replies.__getitem__
    scored = plain.score(
        [plain.rollout(row, text, completion_tokens=5) for row, text in zip(plain.eval_rows, answers, strict=True)]
    )
    results = evaluated(env, server.url)
    # Verifiers 0.3.1 adds fields that are None to assistant messages.
    sent = [{key: value for key, value in each.items() if value is not None} for each in server.requests[0]["messages"]]
    assert sent in [row["prompt"] for row in plain.eval_rows]
    assert results.reward == [each.reward for each in scored]
    for name in plain.reward_weights:
        assert results.metrics[name] == [each.rewards[name] for each in scored]


def test_verifiers_loads_the_environment_by_name() -> None:
    """`vf.load_environment("rg-env", ...)` returns the environment, with the columns that the v0 API requires."""
    env = vf.load_environment("rg-env", gym="leg_counting")
    assert isinstance(env, rg_env.ReasoningGymEnv)
    assert (len(env.dataset), len(env.eval_dataset)) == (2000, 200)
    assert set(env.dataset.column_names) == {"question", "answer", "info", "prompt", "example_id"}
    row = env.dataset[3]
    assert row["example_id"] == 3
    assert row["prompt"] == [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": row["question"]}]
    assert all(isinstance(value, str) for value in row["info"].values())
    assert {split_of(info["problem"]) for info in env.dataset["info"]} == {"train"}
    assert {split_of(info["problem"]) for info in env.eval_dataset["info"]} == {"eval"}
    assert env.environment.mixture.names == ["leg_counting"]
    assert env.environment.manifest["splits"]["eval"]["size"] == 200
    statuses = ["status/wrong", "status/no_answer", "status/too_long", "status/ungradable"]
    # Since 0.1.9, Verifiers' own metrics follow.
    assert names(env.rubric)[:7] == ["correctness", "format", "accuracy", *statuses]
    assert weights(env.rubric) == [1.0, 0.1] + [0.0] * (len(names(env.rubric)) - 2)


def test_parameters_follow_upstream() -> None:
    """The first parameters are those of Verifiers' own environment, and both entry points have the same defaults."""
    parameters = inspect.signature(rg_env.load_environment).parameters
    upstream = ["gym", "num_train_examples", "num_eval_examples", "system_prompt", "parser", "seed"]
    assert list(parameters)[:6] == upstream
    defaults = {name: parameters[name].default for name in parameters if name != "kwargs"}
    own = inspect.signature(rg_env.ReasoningGymEnv).parameters
    assert {name: own[name].default for name in own if name != "kwargs"} == defaults


@pytest.mark.parametrize("grading", ["hardened", pytest.param("upstream", marks=pytest.mark.slow)])
def test_reward_functions_share_a_rollouts_score(server: ChatServer, grading: str) -> None:
    """All functions receive the same rollout, whose answer is graded once. The library's graders run in a worker and
    give partial credit for a mention of the answer. Async functions are awaited."""

    async def judged(rollout: Rollout) -> float:
        await asyncio.sleep(0.001)
        return len(rollout.text)

    seen, other = Seen(), Seen("other")
    env = rg_env.load_environment(**SMALL, grading=grading, rewards=["correctness", seen, other, judged])
    status, more = ("correct", "") if grading == "hardened" else ("partial", " or so")
    right = {row["question"]: row["answer"] for row in env.eval_dataset}
    server.answer = lambda question: f"<answer>{right[question]}{more}</answer>"
    results = evaluated(env, server.url)
    assert {*map(id, seen.rollouts)} == {*map(id, other.rollouts)}
    states = [(rollout.completion_tokens, rollout.truncated, rollout.score.status) for rollout in seen.rollouts]
    assert states == [(5, False, status)] * 6
    assert sorted(results.metrics["correctness"]) == sorted(rollout.score.value for rollout in seen.rollouts)
    assert sorted(results.metrics["judged"]) == sorted(len(rollout.text) for rollout in seen.rollouts)


def test_accuracy_by_task_is_exact_over_a_dataset(server: ChatServer) -> None:
    """The mean of `accuracy/<task>` over the environment's rows is that task's accuracy, also with repeated rows."""
    gym = [{"name": "leg_counting", "weight": 2}, "chain_sum", {"name": "gcd", "weight": 0.3}]
    env = rg_env.load_environment(gym=gym, num_train_examples=8, num_eval_examples=17)
    golds = {row["question"]: row["answer"] for row in env.eval_dataset if row["info"]["rg_task"] != "chain_sum"}
    server.answer = lambda question: f"<answer>{golds.get(question, 'no')}</answer>"
    metrics = evaluated(env, server.url, rollouts_per_example=2).metrics
    means = {name: sum(values) / len(values) for name, values in metrics.items()}
    assert means["accuracy/leg_counting"] == pytest.approx(1.0, abs=1e-12)
    assert means["accuracy/gcd"] == pytest.approx(1.0, abs=1e-12)
    assert means["accuracy/chain_sum"] == 0.0
    tasks = [info["rg_task"] for info in env.eval_dataset["info"]]
    assert means["accuracy"] == pytest.approx(1 - tasks.count("chain_sum") / 17)


def test_another_completion_in_the_same_state_is_scored_separately() -> None:
    """The rollout stored in `state` is used only for its own completion."""
    env = rg_env.load_environment(**SMALL)
    row = env.dataset[0]
    state: dict[str, Any] = {}
    right, wrong = (
        v0.rollout_of("?", f"<answer>{answer}</answer>", row["answer"], state, row["info"])
        for answer in (row["answer"], "no")
    )
    assert (right.score.status, wrong.score.status) == ("correct", "wrong")


def test_an_answer_in_thinking_that_the_template_opens_does_not_count(server: ChatServer) -> None:
    """The reply has no tag of its own if it ends in the thinking section."""
    for text, accuracy in (("maybe <answer>1</answer>", 0.0), ("so</think><answer>1</answer>", 1.0)):
        env = rg_env.load_environment(**SMALL, opens_thinking=True)
        row = env.eval_dataset[0]
        rollout = v0.rollout_of("?", text.replace("1", row["answer"]), row["answer"], {}, row["info"])
        assert rollout.score.value == accuracy


@pytest.mark.parametrize("value", [float("nan"), "raise"])
def test_a_reward_that_fails_ends_the_batch(value: Any, server: ChatServer) -> None:
    """`generate` raises a `RewardError` that names the reward that failed or returned NaN; later batches still work."""
    broken = True

    def bad(rollout: Rollout) -> float:
        if broken and value == "raise":
            raise KeyError("x")
        return value if broken else 1.0

    env = rg_env.load_environment(**SMALL, rewards=["correctness", bad])
    with pytest.raises(RewardError, match=r"reward 'bad' .*task leg_counting, answer '0'"):
        generated(env, server.url, env.get_eval_dataset(2))
    broken = False
    assert generated(env, server.url, env.get_eval_dataset(2)).reward == [1.0, 1.0]


def raises(completion: Any, **kwargs: Any) -> float:
    raise ZeroDivisionError("no")


async def raises_async(completion: Any) -> float:
    raise ZeroDivisionError("no")


def gives_nan(prompt: Any, completion: Any, answer: Any) -> float:
    return float("nan")


def gives_none(state: Any) -> Any:
    return None


def group(completions: Any) -> list[float]:
    return [float("nan") for _ in completions]


GROUPS = [(group, "reward 'group' returned nan")] if hasattr(vf.Rubric, "_is_group_func") else []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, r"reward 'raises' raised ZeroDivisionError: no \(.*, line \d+\)"),
        (raises_async, r"reward 'raises_async' raised ZeroDivisionError: no \(.*, line \d+\)"),
        (gives_nan, r"reward 'gives_nan' returned nan, not a finite number.* \(.*, line \d+\)"),
        (gives_none, "reward 'gives_none' returned None, not a finite number"),
        *GROUPS,
    ],
)
def test_a_users_rubric_that_fails_ends_the_batch(function: Any, message: str, server: ChatServer) -> None:
    """Functions receive the arguments that their signatures name, also in nested rubrics."""
    inner = vf.RubricGroup(rubrics=[vf.Rubric(funcs=[_says_cat, function])])
    env = rg_env.load_environment(**SMALL, rubric=vf.RubricGroup(rubrics=[inner]))
    with pytest.raises(RewardError, match=message):
        generated(env, server.url, env.get_eval_dataset(1))


def test_a_reward_error_takes_precedence_over_later_errors() -> None:
    rubric = vf.Rubric(funcs=[raises])
    v0.record_errors(rubric)

    def fail() -> None:
        with v0.raising_recorded_errors():
            with contextlib.suppress(RewardError):  # as Verifiers does
                functions(rubric)[0](completion="?")
            raise ConnectionError("because of it")

    with pytest.raises(RewardError, match="'raises'"):
        fail()


async def _says_cat(completion: Any, state: Any) -> float:
    """An async reward in one of Verifiers' rubrics."""
    await asyncio.sleep(0)
    return float("cat" in completion[-1]["content"])


def test_a_users_rubric(server: ChatServer) -> None:
    """A rubric's rewards replace the defaults or are added to `rewards`."""
    server.answer = lambda question: "cat <answer>no</answer>"
    rubric = vf.Rubric(funcs=[_says_cat], weights=[0.5])
    env = rg_env.load_environment(**SMALL, rubric=rubric)
    found = evaluated(env, server.url)
    assert found.reward == [0.5] * 6
    assert (found.metrics["accuracy"], found.metrics["status/wrong"]) == ([0.0] * 6, [1.0] * 6)
    both = rg_env.load_environment(**SMALL, rubric=rubric, rewards={"format": 0.1})
    assert evaluated(both, server.url).reward == [pytest.approx(0.6)] * 6


def _wants_parser(completion: Any, parser: Any) -> float:
    return float(parser is not None)


def test_the_trainer_uses_only_the_plain_environment() -> None:
    """The trainer accepts our environment, unless its rewards need Verifiers, and refuses those of other authors."""
    env = rg_env.load_environment(**SMALL)
    plain = as_environment(env)
    assert isinstance(plain, rg_env.ReasoningGym)
    assert plain.train_rows == env.dataset.to_list()
    rubric = vf.Rubric(funcs=[_says_cat])
    for other, message in (
        (
            rg_env.load_environment(**SMALL, rewards=[_wants_parser]),
            "'_wants_parser' needs 'parser', which GRPO",
        ),
        (rg_env.load_environment(**SMALL, rubric=rubric), r"own rubric: pass reward functions as rewards=\[...\]"),
        (vf.SingleTurnEnv(dataset=env.dataset, rubric=rubric), "SingleTurnEnv uses Verifiers' v0 API, .* a v1 Taskset"),
    ):
        with pytest.raises(InputError, match=message):
            as_environment(other)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"num_train_exmaples": 1}, UnknownNameError, "'num_train_exmaples' of .*: did you mean 'num_train_e"),
        ({"dataset": None}, UnknownNameError, "unknown parameter 'dataset'"),
        ({"rubric": "x"}, InputError, "rubric must be a vf.Rubric, not 'x'"),
        ({"task": 1, "size": 5}, UnknownNameError, "use 'gym' instead; .* use 'num_train_examples' instead"),
        ({"parser": "x"}, InputError, "parser must be a vf.Parser, not 'x'"),
    ],
)
def test_bad_arguments_are_refused_at_once(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rg_env.load_environment(**{**SMALL, **kwargs})


def test_one_split_alone_and_parent_arguments() -> None:
    """The dataset of a split with 0 examples is None, and arguments of the parent class are passed on."""
    env = rg_env.load_environment(num_train_examples=0, num_eval_examples=2, sampling_args={"temperature": 0.5})
    assert env.dataset is None
    assert env.sampling_args["temperature"] == 0.5


@pytest.mark.slow
def test_a_cancelled_reward_leaves_the_score_to_the_others() -> None:
    """Functions await the same score from a worker. If one is cancelled, the others still get the score, and the state
    keeps no pending score."""
    env = rg_env.load_environment(**SMALL, grading="upstream")
    row = env.dataset[0]
    first, second = functions(env.rubric)[:2]

    async def main() -> float:
        state: dict[str, Any] = {}
        arguments = {
            "prompt": "?", "completion": f"<answer>{row['answer']}</answer>", "answer": row["answer"],
            "state": state, "info": row["info"], "parser": None,
        }  # fmt: skip
        cancelled = asyncio.ensure_future(first(**arguments))
        other = asyncio.ensure_future(second(**arguments))
        await asyncio.sleep(0)
        cancelled.cancel()
        value: float = await other
        assert cancelled.cancelled()
        assert not [key for key in state if "pending" in key]
        return value

    assert asyncio.run(main()) == 1.0


@pytest.mark.slow
def test_a_users_task_is_graded_in_a_mixture(server: ChatServer, tmp_path: Path) -> None:
    """Answers that make the grader of a user's task hang time out, and all other answers are scored."""
    path = tmp_path / "own_tasks.py"
    path.write_text(TASK)
    rg_env.import_user_code([str(path)])
    seen = Seen()
    env = rg_env.load_environment(["own_sums", "leg_counting"], 4, 6, rewards=["correctness", seen])
    right = {row["question"]: row["answer"] for row in env.eval_dataset}
    own = [row["question"] for row in env.eval_dataset if row["info"]["rg_task"] == "own_sums"]

    def reply(question: str) -> str:
        return f"<answer>{'hang' if question == own[0] else right[question]}</answer>"

    server.answer = reply
    results = evaluated(env, server.url)
    statuses = [rollout.score.status for rollout in seen.rollouts]
    assert statuses.count("timed_out") == results.metrics["status/timed_out"].count(1.0) == len(statuses) // 6
    assert set(statuses) == {"timed_out", "correct"}
