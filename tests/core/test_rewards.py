"""Rewards: registration, weights and values."""

import functools
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_rows import SORTING

from rg_env.core.grading.extraction import extract
from rg_env.core.grading.scoring import Rollout, Score, Status
from rg_env.core.rewards import WeightedReward, get_reward, resolve_rewards, reward
from rg_env.errors import InputError, RewardError, UnknownNameError

TEXT = "so <answer>12</answer>"


def make(status: Status = "correct", value: float = 1.0, tokens: int | None = 128, text: str | None = None) -> Rollout:
    """A rollout on leg_counting with this outcome."""
    answer = None if status == "no_answer" else "12"
    text = ("so" if answer is None else TEXT) if text is None else text
    rollout = Rollout("?", text, "12", {"rg_task": "leg_counting"}, tokens)
    return rollout.with_score(Score(value, answer, status, "leg_counting"))


@pytest.mark.parametrize(
    ("name", "rollout", "value"),
    [
        *(("correctness", make(), 1.0), ("correctness", make("partial", 0.25), 0.25)),
        ("tag_count", make(text="<think>a</think><answer>12</answer>"), 1.0),
        ("tag_count", make(text="</answer><answer>12</answer>"), 0.25),
        *(("tag_count", make(text="so"), 0.0), ("tag_count", make(text="<think></answer>"), 0.5)),
        *(("correctness", make("no_answer", 0.0), 0.0), ("format", make("ungradable", 0.0), 1.0)),
        *(("format", make("no_answer", 0.0), 0.0), ("brevity", make("partial", 0.5, tokens=1), 0.0)),
        ("brevity", make("wrong", 0.0, tokens=None), 0.0),
    ],
)
def test_built_in_rewards(name: str, rollout: Rollout, value: float) -> None:
    """Values depend on the status of the answer; rewards for length are tested below."""
    assert WeightedReward(name, get_reward(name), 1.0).value(rollout, {}) == value


def test_registering_and_parameter_names() -> None:
    """`@reward` registers a function. It receives the values that its parameters name, and keeps its defaults."""

    @reward
    def mine(rollout, answer, bonus=0.5):  # type: ignore[no-untyped-def]
        return bonus if rollout.answer == answer else 0

    @reward("other")
    def _other(task, **rest):  # type: ignore[no-untyped-def]
        return float(task == "leg_counting" and "info" in rest and "rollout" in rest)

    assert get_reward("mine") is mine
    available = {"prompt": "?", "completion": TEXT, "answer": "12", "state": {}, "info": {}, "parser": None}
    assert WeightedReward("mine", mine, 1.0).value(make(), available) == 0.5
    assert WeightedReward("other", get_reward("other"), 1.0).value(make(), available) == 1.0


def test_bad_registrations_are_refused() -> None:
    """Names in use, unknown parameters and positional-only ones are refused on registration."""
    with pytest.raises(InputError, match="'brevity' is already registered"):
        reward("brevity")(lambda rollout: 0.0)
    with pytest.raises(UnknownNameError, match="parameter 'rolout' of reward 'f': did you mean 'rollout'"):

        @reward
        def f(rolout):  # type: ignore[no-untyped-def]
            return 0.0

    with pytest.raises(InputError, match="positional-only"):
        reward("g")(lambda rollout, /: 0.0)

    with pytest.raises(InputError, match="takes an optional name"):
        reward(3)  # type: ignore[call-overload]

    assert reward() is reward


def test_the_same_source_may_register_again() -> None:
    """A notebook cell that is run twice replaces its reward."""
    for value in (1.0, 2.0):

        @reward("again")
        def again(rollout, value=value):  # type: ignore[no-untyped-def]
            return value

    assert WeightedReward("again", get_reward("again"), 1.0).value(make(), {}) == 2.0


def custom(completion: Any) -> float:
    """A reward that is not registered."""
    return float(len(completion))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, [("correctness", 1.0), ("format", 0.1)]),
        (["format"], [("format", 1.0)]),
        ("format", [("format", 1.0)]),
        (custom, [("custom", 1.0)]),
        ([("correctness", 1), ["format", 0]], [("correctness", 1.0), ("format", 0.0)]),
        ({"correctness": 2, "brevity": -0.5}, [("correctness", 2.0), ("brevity", -0.5)]),
        ([{"name": "format", "weight": 0.3}, {"name": "brevity"}], [("format", 0.3), ("brevity", 1.0)]),
        ({"format": {"name": "format", "weight": 0.3}}, [("format", 0.3)]),
        ([(custom, 0.5), "format"], [("custom", 0.5), ("format", 1.0)]),
    ],
)
def test_rewards_can_be_given_in_many_forms(spec: Any, expected: list[tuple[str, float]]) -> None:
    """Rewards may be names, functions, pairs and mappings, with or without weights."""
    assert [(item.name, item.weight) for item in resolve_rewards(spec)] == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        *(([], "must be a list"), (3, "must be a list"), ([3], "name or a function"), ([("format", 1, 2)], "pair")),
        *(([("format", math.nan)], "finite number"), ([("format", 10**400)], "must be a number")),
        *((["format", "format"], r"appears twice.*register the second function under another name"), ({}, "not {}")),
        *(([{"weight": 1}], "a mapping with a name"), ({"own": lambda: 0.0}, r"by rg_env.reward\('own'\)\(function\)")),
        ([{"name": "format", "wieght": 1}], "did you mean 'weight'"),
        ({"correctness": {"name": "format"}}, "reward 'correctness': its mapping has a different name, 'format'"),
        ([lambda x: 0.0], "unknown parameter 'x' of reward '<lambda>'"),
        ([lambda completions, answer, **columns: []], "in TRL, but a reward scores one rollout and returns a number"),
        (
            [lambda completions, answer, log=None, **columns: []],
            r"\(completions=\[rollout.text\], answer=\[rollout.row\['answer'\]\]",
        ),
        (
            [lambda data_source, solution_str, ground_truth, extra_info=None: 0.0],
            r"'data_source', as in verl: .*\(data_source=task, solution_str=rollout.text, ground_truth=answer, ext",
        ),
        ([lambda prompts=None, **columns: []], r"a batch \('prompts'\), as in TRL"),
        ({"length": {"when": "corect"}}, "reward 'length': when='corect': must be one of 'answered', 'correct'"),
        ({"length": {"when": ["correct"]}}, "reward 'length': when: must be one of"),
        ({"length": {"options": 3}}, "options=3: must be a mapping"),
        ({"length": {"options": {"tokens": 5}}}, "option 'tokens' of reward 'length'.*max_tokens"),
        *(({"length": {"options": {"max_tokens": bad}}}, "'max_tokens' must be a number of at least 0, not")
          for bad in ("many", math.nan, None, -5, 10**400)),
        ({"cosine": {"options": {"exceeded": "never"}}}, "'exceeded' must be a finite number, not 'never'"),
        ({"cosine": {"options": {"wrong_long": None}}}, "'wrong_long' must be a finite number, not None"),
    ],
)  # fmt: skip
def test_bad_rewards_are_refused(spec: Any, message: str) -> None:
    """Invalid rewards, weights, gates and options raise `InputError` with the reason."""
    with pytest.raises(InputError, match=message):
        resolve_rewards(spec)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, None, "1", [1.0], 1j, np.array([1.0, 2.0]), 10**400, 1e308, -2e38]
)
def test_a_reward_must_be_a_finite_number(value: Any) -> None:
    """The error names the reward and the rollout. The trainer computes in float32, which cannot hold 1e50."""
    rollout = r"task leg_counting, answer '12', completion 'so <ans"
    with pytest.raises(RewardError, match=rf"reward 'bad' returned .*not a finite number.*{rollout}"):
        WeightedReward("bad", lambda: value, 1.0).value(make(), {})
    with pytest.raises(RewardError, match=r"returned \[1.0\], .* \(a reward scores one rollout and returns a number\)"):
        WeightedReward("bad", lambda completion, **columns: [1.0], 1.0).value(make(), {"completion": []})
    with pytest.raises(RewardError, match=rf"'brevity': the server reported no usage.*{rollout}"):
        WeightedReward("brevity", get_reward("brevity"), 1.0).value(make(tokens=None), {})


def test_a_weighted_reward_must_fit_in_float32() -> None:
    assert WeightedReward("large", lambda: 1e30, 1e7).value(make(), {}) == 1e30
    with pytest.raises(RewardError, match=r"'large' returned 1e\+30, above 1e38 with its weight -1e\+09; task leg"):
        WeightedReward("large", lambda: 1e30, -1e9).value(make(), {})


def test_a_wrong_value_is_reported_with_file_and_line() -> None:
    """The error gives the location of a function, an async one, a partial one or an object's `__call__`; built-in
    callables have no location."""

    def gives_none(rollout, scale=1):  # type: ignore[no-untyped-def]
        return None

    async def gives_none_later(rollout):  # type: ignore[no-untyped-def]
        return None

    class Reward:
        def __call__(self, rollout):  # type: ignore[no-untyped-def]
            return None

    first = gives_none.__code__.co_firstlineno
    for function, line in (
        (gives_none, first),
        (functools.partial(gives_none, scale=2), first),
        (gives_none_later, gives_none_later.__code__.co_firstlineno),
        (Reward(), Reward.__call__.__code__.co_firstlineno),
    ):
        message = f"'bad' returned None, not a finite number up to 1e38 ({__file__}, line {line}); task leg_counting"
        with pytest.raises(RewardError, match=re.escape(message)):
            WeightedReward("bad", function, 1.0).value(make(), {})
    with pytest.raises(RewardError, match="not a finite number up to 1e38; task leg_counting"):
        WeightedReward("bad", print, 1.0).value(make(), {})


@pytest.mark.parametrize("value", [1, True, 1.0, np.float32(1), np.int64(1), np.array(1.0)])
def test_numbers_of_any_kind_are_accepted(value: Any) -> None:
    """Integers, booleans and NumPy scalars become floats."""
    result = WeightedReward("good", lambda: value, 1.0).value(make(), {})
    assert (result, type(result)) == (1.0, float)


def test_a_reward_that_raises_is_an_error_with_its_cause() -> None:
    """The error names reward and rollout, keeps its cause and shortens long texts."""

    def bad(rollout):  # type: ignore[no-untyped-def]
        raise KeyError("x")

    rollout = make(text="a" * 5000)
    with pytest.raises(
        RewardError, match=r"'bad' raised KeyError: 'x' \(.*/test_rewards\.py, line \d+\); task leg_c"
    ) as caught:
        WeightedReward("bad", bad, 1.0).value(rollout, {})
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(str(caught.value)) < 400


def test_a_reward_that_takes_the_messages_for_text_gets_a_hint() -> None:
    with pytest.raises(RewardError, match=r"no attribute 'split' \(.*\); if it takes .* lists .*rollout.text;"):
        WeightedReward("bad", lambda completion: len(completion.split()), 1.0).value(make(), {"completion": []})


def test_rewards_and_rollouts_can_be_pickled() -> None:
    """Built-in rewards and rollouts are sent to worker processes."""
    assert pickle.loads(pickle.dumps(make())) == make()
    for name in ("correctness", "format", "brevity"):
        assert pickle.loads(pickle.dumps(get_reward(name))) is get_reward(name)


def rollout_of(text: str, tokens: int | None = None, status: Status = "correct") -> Rollout:
    """A rollout with this text."""
    return make(status, float(status == "correct"), tokens, text)


def given_options(name: str, when: str | None = None, **options: Any) -> dict[str, Any]:
    return {"name": name, "when": when, "options": options}


@pytest.mark.parametrize(
    ("spec", "rollout", "value"),
    [
        ("length", rollout_of("x" * 1024), 0.5),  # estimated at 256 tokens
        (given_options("length", "correct", max_tokens=64), rollout_of("x", 32, "wrong"), 0.0),
        (given_options("length", "not_correct"), rollout_of("x", 0, "wrong"), 1.0),
        (given_options("format", "answered"), make("no_answer", 0.0), 0.0),
        (given_options("think_format", opened=True), rollout_of("so</think><answer>12</answer>"), 1.0),
        (given_options("think_format", opened=True), rollout_of("<think>so</think><answer>12</answer>"), 0.0),
        (given_options("tag_count", opened=True), rollout_of("so</think><answer>12</answer>"), 1.0),
        ("cosine", rollout_of("x", 0), 1.0),
        ("cosine", rollout_of("x", 0, "wrong"), -1.0),
        ("cosine", rollout_of("x", 512), -10.0),
        (given_options("cosine", exceeded=-2), rollout_of("x", 512), -2.0),
        (given_options("cosine", exceeded=None), rollout_of("x", 9999), 0.5),
        (given_options("cosine", exceeded=None), rollout_of("x", 512, "no_answer"), -0.5),
        ("repetition_penalty", rollout_of("a b c d " * 3), 4 / 9 - 1),
        (given_options("overlong_penalty", margin=0), rollout_of("x", 513), -1.0),
    ],
)
def test_defaults_options_and_gates(spec: Any, rollout: Rollout, value: float) -> None:
    """With a closed gate, the value is 0. The formulas are tested below."""
    (resolved,) = resolve_rewards([spec])
    assert resolved.value(rollout, {}) == pytest.approx(value)


def value_of(name: str, rollout: Rollout, **options: Any) -> float:
    (resolved,) = resolve_rewards([{"name": name, "options": options}])
    return resolved.value(rollout, {})


TOKENS = st.integers(0, 3000)
LIMITS = st.integers(1, 2000)


@given(TOKENS, LIMITS, st.sampled_from(["correct", "wrong", "no_answer", "too_long"]))
def test_cosine_matches_the_paper(tokens: int, limit: int, status: Status) -> None:
    """Yeo et al., 2025, arXiv:2502.03373: CosFn(t, T, a, b) = a + (b - a)(1 + cos(pi t / T)) / 2, with the paper's
    values."""
    short, long = (2.0, 1.0) if status == "correct" else (-10.0, 0.0)
    expected = long + (short - long) * (1 + math.cos(tokens * math.pi / limit)) / 2 if tokens < limit else -10.0
    values = {"correct_short": 2.0, "correct_long": 1.0, "wrong_short": -10.0, "wrong_long": 0.0}
    assert value_of("cosine", rollout_of("x", tokens, status), max_tokens=limit, **values) == pytest.approx(
        expected, abs=1e-12
    )


@given(TOKENS, LIMITS, st.data())
def test_the_overlong_penalty_matches_dapo(tokens: int, limit: int, data: st.DataObject) -> None:
    """Yu et al., 2025, arXiv:2503.14476, equation 13, with L_max = limit and L_cache = cache."""
    cache = data.draw(st.integers(1, limit))
    if tokens <= limit - cache:
        expected = 0.0
    elif tokens <= limit:
        expected = ((limit - cache) - tokens) / cache
    else:
        expected = -1.0
    assert value_of("overlong_penalty", rollout_of("x", tokens), max_tokens=limit, margin=cache) == pytest.approx(
        expected
    )


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 5))
def test_the_repetition_penalty_counts_repeated_ngrams(words: list[str], size: int) -> None:
    """Yeo et al., 2025: the penalty is the share of n-grams that repeat an earlier one."""
    grams = [words[i : i + size] for i in range(len(words) - size + 1)]
    repeated = sum(gram in grams[:i] for i, gram in enumerate(grams))
    expected = -repeated / len(grams) if grams else 0.0
    assert value_of("repetition_penalty", rollout_of("\n".join(words)), ngram=size) == pytest.approx(expected)


@given(TOKENS, LIMITS, st.sampled_from(["correct", "wrong"]))
def test_length_and_brevity_are_straight_lines(tokens: int, limit: int, status: Status) -> None:
    """Both rewards fall linearly from 1 to 0 at the limit, and then remain 0."""
    rollout = rollout_of("x", tokens, status)
    assert value_of("length", rollout, max_tokens=limit) == pytest.approx(max(0, limit - tokens) / limit)
    assert value_of("brevity", rollout) == pytest.approx(max(0, 512 - tokens) / 512 if status == "correct" else 0)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", " ", "\n", "12", "so"]), max_size=9))
def test_format_rewards_match_their_definitions(pieces: list[str]) -> None:
    """`think_format` agrees with one pattern for the entire text, and `format` with the extraction of an answer."""
    text = "".join(pieces)
    rollout = make(text=text)
    inner = r"(?:(?!</?(?:think|answer)>).)*"
    thought, stated = f"<think>{inner}</think>", rf"<answer>\s*(?!</answer>)\S{inner}</answer>"
    whole = re.fullmatch(rf"\s*{thought}\s*{stated}{inner}", text, re.DOTALL)
    assert value_of("think_format", rollout) == float(whole is not None)
    assert value_of("format", rollout) == float(extract(text).answer is not None)


@pytest.mark.parametrize("name", ["correctness", "format", "think_format", "partial"])
def test_an_answer_only_in_thinking_earns_nothing(name: str) -> None:
    """The thinking block may be closed, cut off or opened by the prompt."""
    gold = "<answer>['1', '2', '3', '4']</answer>"
    for text in (f"<think>so {gold}</think> I give up.", f"<think>so {gold}", f"so {gold}</think> I give up."):
        rollout = Rollout("?", text, "", SORTING)
        assert rollout.score.status == "no_answer"
        assert value_of(name, rollout) == 0
        rollout = Rollout("?", f"<think>so</think>{gold}", "", SORTING)
        assert value_of(name, rollout) == 1


@pytest.mark.parametrize("time", [1, 2])
def test_registrations_of_a_test_are_unknown_to_the_next(time: int) -> None:
    with pytest.raises(UnknownNameError):
        get_reward("left_behind")
    reward("left_behind")(lambda rollout: float(time))
    assert get_reward("left_behind")
