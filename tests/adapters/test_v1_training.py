"""Training on other authors' tasksets for Verifiers' v1 API."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from chat_server import ChatServer
from v1_api import vf

import rg_env
from rg_env.adapters import as_environment
from rg_env.adapters.v1_training import TasksetEnvironment
from rg_env.core.rewards import Scored
from rg_env.errors import InputError, RewardError


class SumData(vf.TaskData):
    answer: str = ""


class Sum(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    """Four questions of task class `kind`."""

    kind: type[Sum] = Sum
    prompt: Any = "{} + 1?"
    system_prompt_text: str | None = "Add."
    skills: Sequence[str] = ()

    def load(self) -> Iterator[Sum]:
        for n in range(4):
            prompt = self.prompt.format(n) if isinstance(self.prompt, str) else self.prompt
            more = {"system_prompt": self.system_prompt_text, "skills": list(self.skills)}
            yield self.kind(SumData(prompt=prompt, answer=str(n + 1), **more), self.config.task)


def of(kind: type[Sum] = Sum, **options: Any) -> Sums:
    taskset = Sums(vf.TasksetConfig())
    taskset.kind = kind
    for name, value in options.items():
        setattr(taskset, name, value)
    return taskset


def scored(taskset: Any, *texts: str, **options: Any) -> list[Scored]:
    env = as_environment(taskset)
    return env.score([env.rollout(row, text, **options) for row, text in zip(env.train_rows, texts, strict=False)])


def test_rows_and_scores_match_verifiers() -> None:
    """Rows have the tasks' prompts in order, and scores are the rewards, metrics and weighted sum of `Task.score`."""

    class Both(Sum):
        @vf.reward(weight=0.25)
        async def forms(self, task: SumData, trace: vf.Trace) -> dict[str, float]:
            assert task.answer == self.data.answer
            return {"short": float(len(trace.last_reply) < 5), "digits": float(trace.last_reply.isdigit())}

        @vf.metric
        async def length(self, trace: vf.Trace) -> float:
            return float(len(trace.last_reply))

    env = as_environment(of(Both))
    assert isinstance(env, TasksetEnvironment)
    assert env.eval_rows == []
    assert env.train_rows[2]["prompt"] == [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 1?"}]
    assert [row["answer"] for row in env.train_rows] == ["1", "2", "3", "4"]
    assert env.reward_weights == {"right": 1.0, "forms": 0.25}
    assert not env.has_accuracy
    assert scored(of(Both), "1", "no idea") == [
        Scored(1.5, {"right": 1.0, "short": 1.0, "digits": 1.0}, {"length": 1.0}),
        Scored(0.0, {"right": 0.0, "short": 0.0, "digits": 0.0}, {"length": 7.0}),
    ]


def test_rewards_receive_a_complete_trace() -> None:
    """The trace has the prompt, text, token ids, log-probabilities, usage, stop condition and the task's own state."""
    seen: list[vf.Trace] = []

    class OwnState(vf.State):
        visits: int = 0

    class Looks(vf.Task[SumData, OwnState]):
        @vf.reward
        async def look(self, trace: vf.Trace) -> float:
            trace.state.visits += 1
            seen.append(trace)
            return 0.5

    options: dict[str, Any] = {"token_ids": [5, 6, 7], "logprobs": [-0.1, -0.2, -0.3], "truncated": True}
    [one] = scored(of(Looks), " 7 of", **options)  # type: ignore[arg-type]
    assert one == Scored(0.5, {"look": 0.5}, {})
    (trace,) = seen
    (branch,) = trace.branches
    assert [message.role for message in branch.messages] == ["system", "user", "assistant"]
    assert (branch.token_ids, branch.sampled_mask, branch.logprobs) == ([5, 6, 7], [True] * 3, [-0.1, -0.2, -0.3])
    assert (trace.is_truncated, trace.num_output_tokens, trace.num_turns) == (True, 3, 1)
    assert (trace.stop_condition, trace.is_completed, trace.state.visits) == ("agent_completed", True, 1)
    assert trace.task.data.answer == "1"
    assert trace.assistant_messages[0].content == " 7 of"


@pytest.mark.parametrize("kind", ["reward", "metric"])
def test_accuracy_is_a_metric(kind: str) -> None:
    """A reward or metric named `accuracy` is reported as a metric; a reward also counts with its weight."""

    class Rated(Sum):
        @(vf.reward(weight=2.0) if kind == "reward" else vf.metric)
        async def accuracy(self, trace: vf.Trace) -> float:
            return float(trace.last_reply == self.data.answer)

    assert as_environment(of(Rated)).has_accuracy
    [one] = scored(of(Rated), "1")
    assert one == Scored(3.0 if kind == "reward" else 1.0, {"right": 1.0}, {"accuracy": 1.0})


def test_prompts_may_have_several_messages() -> None:
    """Examples may precede the question."""
    chat = [vf.UserMessage(content="1 + 1?"), vf.AssistantMessage(content="2"), vf.UserMessage(content="2 + 1?")]
    env = as_environment(of(prompt=chat, system_prompt_text=None))
    assert [message["role"] for message in env.train_rows[0]["prompt"]] == ["user", "assistant", "user"]
    assert len(scored(of(prompt=chat), "3")) == 1


def test_a_judge_without_a_runtime_is_a_reward() -> None:
    """A judge that is called over the network counts with its weight. If the judge fails, the error names it."""
    with ChatServer(lambda question: "yes" if "reply 1" in question else "no") as server:

        class Asks(Sum):
            def plugged_judges(self) -> list[vf.Judge]:
                config = vf.JudgeConfig(id="judge", name="liked", weight=0.5, base_url=server.url, api_key_var="HOME")
                return [Liked(config)]

        class Liked(vf.Judge[bool]):
            prompt = "reply {response}"

            def parse(self, response: vf.JudgeResponse) -> bool:
                return response.text == "yes"

            async def score(self, task: vf.TaskData, trace: vf.Trace) -> float:
                return float((await self.evaluate(trace=trace, response=trace.last_reply)).parsed)

        assert as_environment(of(Asks)).reward_weights == {"right": 1.0, "liked": 0.5}
        assert [each.reward for each in scored(of(Asks), "1", "2 or so")] == [1.5, 0.0]

        class Breaks(Liked):
            async def score(self, task: vf.TaskData, trace: vf.Trace) -> float:
                raise ConnectionError("no judge")

        class AsksInVain(Asks):
            def plugged_judges(self) -> list[vf.Judge]:
                return [Breaks(judge.config) for judge in super().plugged_judges()]

        with pytest.raises(RewardError, match=r"raised ConnectionError: no judge \(.*, line \d+\); task AsksInVain"):
            scored(of(AsksInVain), "1")


def test_reward_functions_in_the_config_count(tmp_path: Any) -> None:
    (tmp_path / "plugged.py").write_text("async def half(trace):\n    return 0.5\n")
    task = vf.TaskConfig(rewards={"half": {"fn": f"{tmp_path}/plugged.py:half", "weight": 3.0}})
    env = as_environment(Sums(vf.TasksetConfig(task=task)))
    assert env.reward_weights == {"right": 1.0, "half": 3.0}
    assert env.score([env.rollout(env.train_rows[0], "no")])[0].reward == 1.5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"reward 'odd' returned None, not a finite number.*; task Odd, .*completion '7'"),
        (float("nan"), "reward 'odd' returned nan, not a finite number"),
        ({"a": 1.0, "b": None}, "reward 'b' returned None, not a finite number"),
        (KeyError("five"), r"a reward or metric raised KeyError: 'five' \(.*, line \d+\); task Odd"),
        ({}, "Odd returned no reward"),
    ],
)
def test_a_reward_that_fails_is_an_error(value: Any, message: str) -> None:
    """A failing reward is never counted as 0 or omitted, whichever rollout fails."""

    class Odd(vf.Task[SumData]):
        @vf.reward
        async def odd(self, trace: vf.Trace) -> Any:
            if trace.last_reply == "fine":
                return 1.0
            if isinstance(value, Exception):
                raise value
            return value

    with pytest.raises(RewardError, match=message):
        scored(of(Odd), "fine", "7")  # type: ignore[arg-type]
    assert scored(of(Odd), "fine")[0].reward == 1.0  # type: ignore[arg-type]


def test_a_metric_that_fails_is_an_error() -> None:
    class Odd(Sum):
        @vf.metric
        async def odd(self, trace: vf.Trace) -> Any:
            return None

    with pytest.raises(RewardError, match="'odd' returned None"):
        scored(of(Odd), "1")


# --- refused tasksets


def kind(**members: Any) -> type[Sum]:
    """`Sum` with additional or different members."""
    return type("Own", (Sum,), members)


async def hook(self: Any, trace: Any, runtime: Any) -> None:
    pass


async def look(self: Any, runtime: Any) -> float:
    return 1.0


async def rewrite(self: Any, response: vf.Response) -> None:
    pass


class RuntimeJudge(Sum):
    def plugged_judges(self) -> list[vf.Judge]:
        class Looks(vf.Judge):
            async def score(self, task: Any, trace: Any, runtime: Any) -> float:  # type: ignore[override]
                return 1.0

        return [Looks(vf.JudgeConfig(id="x", name="looks"))]


IMAGE = [vf.UserMessage(content=[vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url="x"))])]


@pytest.mark.parametrize(
    ("taskset", "message"),
    [
        (of(kind(toolsets=classmethod(lambda cls, config: [object()]))), "Own has tools"),
        (of(toolsets=lambda config: [object()]), "Sums has tools"),
        (of(kind(NEEDS_CONTAINER=True)), "Own needs a container"),
        *((of(kind(**{name: hook})), f"Own overrides {name}") for name in ("setup", "finalize", "stage_verifier")),
        (of(kind(rewrite=vf.intercept(rewrite))), "Own intercepts requests or replies"),
        *((of(kind(look=signal(look))), "Own needs a runtime for 'look'") for signal in (vf.reward, vf.metric)),
        (of(RuntimeJudge), "RuntimeJudge needs a runtime for 'looks'"),
        (of(prompt=IMAGE), "Sum 0 cannot be prompted: the prompt is not plain text"),
        (of(skills=["search"]), "Sum 0 has skills"),
        (of(prompt=None), "Sum 0 cannot be prompted: the prompt is empty"),
    ],
)
def test_tasks_that_the_trainer_cannot_run_are_refused(taskset: Any, message: str) -> None:
    """The error names the task and suggests an alternative."""
    with pytest.raises(InputError, match=rf"{message}.*use prime-rl to train on it"):
        as_environment(taskset)


def test_an_infinite_taskset_must_be_limited() -> None:
    class Endless(Sums):
        INFINITE = True

        def load(self) -> Iterator[Sum]:
            return (Sum(SumData(prompt=f"{n}?", answer="1")) for n in itertools.count())

    endless = Endless(vf.TasksetConfig())
    with pytest.raises(InputError, match=r"Endless is infinite: limit it, for example .*take\(1000\)"):
        as_environment(endless)
    env = TasksetEnvironment(endless.take(3), endless.skip(3).take(2))
    assert [len(env.train_rows), len(env.eval_rows)] == [3, 2]


def test_invalid_tasksets_are_refused() -> None:
    """Tasks without rewards, empty tasksets and other objects are refused."""

    class Unpaid(vf.Task[SumData]):
        pass

    with pytest.raises(InputError, match="Unpaid has no reward"):
        as_environment(of(Unpaid))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="neither train_taskset nor eval_taskset has any tasks"):
        as_environment(of().take(0))
    with pytest.raises(InputError, match=r"a taskset must be a verifiers.v1.Taskset, not list"):
        TasksetEnvironment([Sum(SumData(prompt="?"))])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the Verifiers object Sum is neither a Taskset nor an Env"):
        as_environment(Sum(SumData(prompt="?")))
    with pytest.raises(InputError, match="env must be an rg_env ReasoningGym or Environment"):
        as_environment(object())
    v0 = type("SingleTurnEnv", (), {"__module__": "verifiers.envs.singleturn_env"})  # missing from this release
    with pytest.raises(InputError, match="SingleTurnEnv uses Verifiers' v0 API, which GRPOTrainer does not support"):
        as_environment(v0())


# --- environments


def single(kind: type[vf.Env] = vf.SingleAgentEnv, **agent: Any) -> vf.Env:
    """Return a single-agent env with the taskset `Sums`, set later because Verifiers loads tasksets only by name."""
    config = vf.SingleAgentEnvConfig(taskset={"id": "rg-env"}, agent=vf.AgentConfig(**agent))
    env = kind(config)
    env.taskset = of()
    return env


def test_a_single_agent_env_trains_on_its_taskset() -> None:
    for env in (single(), single(harness={"id": "rg-env"}), single(harness={"id": "null"})):
        assert [row["answer"] for row in as_environment(env).train_rows] == ["1", "2", "3", "4"]


def test_envs_that_customize_how_tasks_run_are_refused() -> None:
    class Twice(vf.SingleAgentEnv):
        async def run(self, task: Any, agents: Any) -> None:
            pass

        async def finalize(self, task: Any, episode: Any) -> None:
            pass

    class TwoConfig(vf.EnvConfig):
        solver: vf.AgentConfig = vf.AgentConfig()
        critic: vf.AgentConfig = vf.AgentConfig()

    class Two(vf.Env[TwoConfig]):
        async def run(self, task: Any, agents: Any) -> None:
            pass

    for env, message in (
        (single(Twice), "Twice overrides run, finalize"),
        (Two(TwoConfig(taskset={"id": "rg-env"})), "Two is not a SingleAgentEnv and may have several agents or turns"),
        (single(harness={"id": "bash"}), r"SingleAgentEnv has a harness with tools \(bash\)"),
    ):
        with pytest.raises(InputError, match=rf"{message}.*use prime-rl to train on it"):
            as_environment(env)


def test_our_taskset_scores_like_the_plain_environment() -> None:
    plain = rg_env.ReasoningGym("leg_counting", num_train_examples=3, num_eval_examples=0)
    taskset = rg_env.ReasoningGymEnv("leg_counting", num_train_examples=3, split="train").taskset
    env = as_environment(taskset)
    assert [row["prompt"] for row in env.train_rows] == [row["prompt"] for row in plain.train_rows]
    texts = [f"<answer>{plain.train_rows[0]['answer']}</answer>", "<answer>no</answer>", "no"]
    theirs = plain.score([plain.rollout(row, text) for row, text in zip(plain.train_rows, texts, strict=True)])
    assert [each.rewards for each in scored(taskset, *texts)] == [each.rewards for each in theirs]
    assert [each.reward for each in scored(taskset, *texts)] == [each.reward for each in theirs]


def test_scoring_works_inside_a_running_event_loop() -> None:
    """A notebook's cells run inside an event loop."""

    async def cell() -> list[Scored]:
        return scored(of(), "1")

    assert asyncio.run(cell())[0].reward == 1.0
