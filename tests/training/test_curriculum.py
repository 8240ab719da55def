"""Curriculum levels, which follow accuracy, and the questions at each level. Accuracies are scripted; questions are
real."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rg_env import ReasoningGym
from rg_env.core.data.dataset import build_rows
from rg_env.core.data.splits import split_of
from rg_env.core.tasks.task_table import working_levels
from rg_env.errors import InputError, TooFewQuestionsError
from rg_env.training.config.load import problems
from rg_env.training.config.schema import CurriculumConfig, TrainConfig
from rg_env.training.curriculum import FIRST_ROWS, Curriculum, CurriculumState, QuestionPool, TaskState


@pytest.fixture(scope="module")
def env() -> Any:
    """An environment with sums and another task."""
    return ReasoningGym(gym=["chain_sum", "leg_counting"], num_train_examples=8, num_eval_examples=40)


@pytest.fixture
def make(env: Any) -> Callable[..., Curriculum]:
    """Return a function that makes a curriculum for `chain_sum` with a window of 2. `task` has the options of the task,
    and other keywords are fields of the config."""

    def curriculum(task: dict[str, Any] | None = None, gym: Any = ("chain_sum",), **fields: Any) -> Curriculum:
        config = {"tasks": {"chain_sum": task or {}}, "window": 2, **fields}
        made = Curriculum(CurriculumConfig.model_validate(config), env, 0, gym=list(gym))
        made.say = lambda line: None
        return made

    return curriculum


def rows_of(env: Any, *tasks: str) -> list[dict[str, Any]]:
    """Return a row of the environment for each task name."""
    return [next(row for row in env.train_rows if row["info"]["rg_task"] == task) for task in tasks]


def play(curriculum: Curriculum, env: Any, accuracies: Sequence[float], first: int = 0) -> list[int]:
    """Play a batch of one sum for each accuracy, and return the level after each batch."""
    levels = []
    for step, accuracy in enumerate(accuracies, start=first):
        curriculum.replace(step, rows_of(env, "chain_sum"))
        curriculum.measure(step, [accuracy])
        curriculum.update_levels(step + 1)
        levels.append(curriculum.state.tasks["chain_sum"].level)
    return levels


def level_of(row: dict[str, Any]) -> tuple[int, int]:
    """Return the number of terms in a sum, and the number of digits of the longest term."""
    numbers = re.findall(r"\d+", row["question"])
    return len(numbers), max(map(len, numbers))


def test_levels_follow_the_accuracy(make: Any, env: Any) -> None:
    """The level rises above one threshold and falls below the other, after a full window, within limits."""
    curriculum = make({"start": 1, "highest": 2})
    assert play(curriculum, env, [1, 1, 1, 1, 1, 1]) == [1, 2, 2, 2, 2, 2]
    assert play(curriculum, env, [0.5, 0.5, 0, 0, 0, 0, 0, 0, 0], first=6) == [2, 2, 2, 1, 1, 0, 0, 0, 0]


def test_a_schedule_sets_the_level_by_step(make: Any, env: Any) -> None:
    """Accuracy has no effect, and before the schedule's first step, the level is `start`."""
    curriculum = make({"start": 2}, schedule={"2": 1, "4": 3})
    curriculum.update_levels(0)
    assert play(curriculum, env, [1, 1, 1, 1, 0, 0]) == [2, 1, 1, 3, 3, 3]


def test_a_level_change_is_printed_and_logged(make: Any, env: Any) -> None:
    """Metrics contain the level and, unless the window is empty, its accuracy."""
    printed: list[str] = []
    curriculum = make()
    curriculum.say = printed.append
    assert curriculum.metrics() == {"curriculum/chain_sum/level": 0.0}
    play(curriculum, env, [1, 0.5, 0, 0, 0.25])
    assert printed == [
        "step 2: chain_sum rises to level 1 (accuracy 0.75 over 2 prompts)",
        "step 4: chain_sum falls to level 0 (accuracy 0.00 over 2 prompts)",
    ]
    assert curriculum.metrics() == {"curriculum/chain_sum/level": 0.0, "curriculum/chain_sum/accuracy": 0.25}


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    accuracies=st.lists(st.floats(0, 1), max_size=20),
    window=st.integers(1, 4),
    step=st.integers(1, 3),
    start=st.integers(0, 3),
)
def test_levels_stay_within_bounds_and_wait_for_a_window(
    make: Any, env: Any, accuracies: list[float], window: int, step: int, start: int
) -> None:
    """For any accuracies, levels stay between 0 and the highest, change by at most one step, and wait for a full
    window."""
    curriculum = make({"start": start, "highest": 3}, window=window, step=step)
    levels = [start, *play(curriculum, env, accuracies)]
    assert all(0 <= level <= 3 for level in levels)
    changes = [i for i in range(1, len(levels)) if levels[i] != levels[i - 1]]
    assert all(later - earlier >= window for earlier, later in zip([0, *changes], changes, strict=False))
    assert all(abs(levels[i] - levels[i - 1]) <= step for i in changes)
    assert CurriculumState.model_validate_json(curriculum.state.model_dump_json()) == curriculum.state


def test_questions_match_the_level_and_come_from_the_training_split(make: Any, env: Any) -> None:
    """Questions have the size of the level, never repeat, and are prompted and graded like the environment's own."""
    curriculum = make({"start": 2})
    (old,) = rows_of(env, "chain_sum")
    rows = [curriculum.replace(number, [old])[0] for number in range(FIRST_ROWS + 20)]
    assert max(map(level_of, rows)) == (4, 3)
    assert len({row["question"] for row in rows}) == len(rows)
    assert all(split_of(row["info"]["problem"]) == "train" for row in rows)
    assert not {row["question"] for row in rows} & {row["question"] for row in env.eval_rows}
    row = rows[0]
    assert row["prompt"] == [old["prompt"][0], {"role": "user", "content": row["question"]}]
    own = {"entry": "", "config": "", "problem": ""}
    assert {**row["info"], **own} == {**old["info"], **own, "rg_level": "2"}
    [scored] = env.score([env.rollout(row, f"<answer>{row['answer']}</answer>")])
    assert scored.metrics["accuracy"] == 1.0


def test_options_override_each_other_in_order(env: Any) -> None:
    """The user's own options override the level's, which override the environment's."""
    sized = ReasoningGym(
        gym={"name": "chain_sum", "config": {"min_terms": 5, "max_terms": 5, "min_digits": 4, "max_digits": 4}},
        num_train_examples=4,
        num_eval_examples=1,
    )
    config = CurriculumConfig.model_validate({"tasks": ["chain_sum"]})
    own = {"name": "chain_sum", "config": {"min_digits": 3, "max_digits": 3}}
    rows = Curriculum(config, sized, 0, gym=own).replace(0, rows_of(sized, "chain_sum") * 4)
    assert {level_of(row) for row in rows} == {(2, 3)}
    with pytest.raises(InputError, match="the config of 'chain_sum' already sets all options that the task's levels"):
        Curriculum(config, sized, 0)


def test_only_selected_attributes_change(make: Any, env: Any) -> None:
    """Attributes that are not selected stay at level 0."""
    rows = make({"start": 3, "attributes": ["num_digits"]}).replace(0, rows_of(env, "chain_sum") * 40)
    assert {level_of(row)[0] for row in rows} == {2}
    assert max(level_of(row)[1] for row in rows) == 4


def test_rollouts_count_toward_the_level_of_their_questions(make: Any, env: Any) -> None:
    """A batch sampled ahead keeps its questions, and its accuracy does not count toward a level reached in the
    meantime."""
    curriculum = make(window=1)
    row = rows_of(env, "chain_sum")
    curriculum.replace(0, row)
    ahead = curriculum.replace(1, row)
    curriculum.measure(0, [1.0])
    curriculum.update_levels(1)
    state = CurriculumState.model_validate_json(curriculum.state.model_dump_json())
    assert (ahead[0]["info"]["rg_level"], state.tasks["chain_sum"].level) == ("0", 1)

    again = make(window=1)
    again.start(state)
    assert again.replace(1, row) == ahead
    for each in (curriculum, again):
        each.measure(1, [0.0])
        each.update_levels(2)
        assert (each.state.tasks["chain_sum"].level, each.state.tasks["chain_sum"].window) == (1, [])
    assert again.replace(2, row) == curriculum.replace(2, row)


def test_broken_levels_are_skipped() -> None:
    """Broken levels are skipped on the way up and on the way down, and a broken start level is replaced by one that
    works."""
    env = ReasoningGym(gym=["modulo_grid", "sokoban", "jugs"], num_train_examples=3, num_eval_examples=0)
    tasks = {"modulo_grid": {"start": 1}, "sokoban": {}, "jugs": {"start": 3}}
    config = CurriculumConfig.model_validate({"tasks": tasks, "window": 1})
    curriculum = Curriculum(config, env, 0, gym=list(tasks))
    assert {name: task.level for name, task in curriculum.state.tasks.items()} == {
        "modulo_grid": 2,
        "sokoban": 1,
        "jugs": 2,
    }
    for before, accuracy, after in ((0, 1.0, 2), (2, 0.0, 0)):
        state = {name: TaskState(level=task.level, levels=task.levels) for name, task in curriculum.state.tasks.items()}
        state["modulo_grid"] = TaskState(level=before, levels=[0, 2, 3, 4, 5], window=[accuracy])
        curriculum.start(CurriculumState(tasks=state))
        curriculum.update_levels(1)
        assert curriculum.state.tasks["modulo_grid"].level == after


def test_a_level_without_questions_becomes_the_ceiling() -> None:
    """The task table does not show that reasoning-gym rejects a rotation of 50, so the run continues at the level
    below."""
    env = ReasoningGym(gym="caesar_cipher", num_train_examples=4, num_eval_examples=0)
    config = {"tasks": {"caesar_cipher": {"attributes": ["rotation"], "start": 1}}, "window": 1}
    curriculum = Curriculum(CurriculumConfig.model_validate(config), env, 0, gym="caesar_cipher")
    printed: list[str] = []
    curriculum.say = printed.append
    task = curriculum.state.tasks["caesar_cipher"]
    curriculum.replace(0, [env.train_rows[0]])
    curriculum.measure(0, [1.0])
    curriculum.update_levels(1)
    assert (task.level, task.levels) == (2, [0, 1, 2, 3])
    (row,) = curriculum.replace(1, [env.train_rows[0]])
    assert row["info"]["rg_level"] == "1"
    assert (task.level, task.levels) == (1, [0, 1])
    assert re.match("caesar_cipher: level 2 has no questions; returning to level 1: .*rotation", printed[-1])

    config["tasks"]["caesar_cipher"]["start"] = 2  # type: ignore[index]
    with pytest.raises(InputError, match="rotation"):  # raised before training begins
        Curriculum(CurriculumConfig.model_validate(config), env, 0, gym="caesar_cipher").check()


def built(spec: Any) -> Callable[[int], Any]:
    return lambda n: build_rows(spec, "train", n, 0, on_few="error")


@pytest.mark.slow
def test_a_pool_grows_and_starts_over(env: Any) -> None:
    """All distinct questions occur once, then again from the start; a resumed run wraps around at the same question."""
    printed: list[str] = []
    spec = {"name": "leg_counting", "config": working_levels("leg_counting")[0]}
    pool = QuestionPool("leg_counting at level 0", built(spec), env.to_examples, say=printed.append)
    first = [pool[number]["question"] for number in range(20)]
    assert pool.end is not None
    assert 20 < pool.end < FIRST_ROWS
    assert len({pool[number]["question"] for number in range(pool.end)}) == pool.end
    assert [pool[pool.end + number]["question"] for number in range(20)] == first
    assert len(printed) == 1
    assert f"only {pool.end} distinct questions" in printed[0]
    shorter = QuestionPool("leg_counting", built(spec), env.to_examples, end=pool.end - 9, say=printed.append)
    assert shorter[0] == shorter[pool.end - 9]
    with pytest.raises(TooFewQuestionsError) as caught:
        build_rows(spec, "train", FIRST_ROWS, 0, on_few="error")
    assert caught.value.found == pool.end


def test_questions_that_are_too_long_are_excluded(env: Any) -> None:
    """A message is printed once per pool. If no question is short enough, an error is raised."""
    printed: list[str] = []
    spec = {"name": "chain_sum", "config": working_levels("chain_sum")[3]}

    def up_to(limit: int) -> Callable[[Any], list[dict[str, Any]]]:
        return lambda rows: [row for row in env.to_examples(rows) if len(row["question"]) <= limit]

    pool = QuestionPool("sums", built(spec), up_to(75), say=printed.append)
    assert all(len(pool[number]["question"]) <= 75 for number in range(2 * FIRST_ROWS))
    assert len(printed) == 1
    assert re.fullmatch(r"sums: \d+ of 128 questions are longer than max_prompt_length, and are excluded", printed[0])

    def short(rows: list[Any]) -> list[Any]:
        return [row for row in rows if len(row["question"]) < 200]

    rows = [{"question": "?" * size} for size in range(1, 4 * FIRST_ROWS + 1)]  # only later questions are too long
    later = QuestionPool("rows", lambda count: rows[:count], short, end=256, say=printed.append)
    assert later[150] == rows[150]
    assert later[250] == rows[250 - 199]
    assert printed[1:] == ["rows: 57 of 128 questions are longer than max_prompt_length, and are excluded"]
    with pytest.raises(
        InputError, match="sums: 128 of 128 questions are longer than max_prompt_length: raise max_prompt_length"
    ):
        QuestionPool("sums", built(spec), up_to(0))[0]


def test_a_task_with_a_level_of_its_own_is_refused(env: Any) -> None:
    config = CurriculumConfig.model_validate({"tasks": {"chain_sum": {}}})
    with pytest.raises(InputError, match=r"tasks\.chain_sum: its level is set by the curriculum"):
        Curriculum(config, env, 0, gym=[{"name": "chain_sum", "level": 1}])


def test_a_task_without_a_working_level_is_a_config_error() -> None:
    """The problem is reported with the key's path, before anything is loaded."""
    config = {"model": {"name": "tiny"}, "tasks": ["knight_swap"], "curriculum": {"tasks": ["knight_swap"]}}
    (problem,) = problems(TrainConfig.model_validate(config))
    assert problem.path == ("curriculum", "tasks", "knight_swap")
    assert problem.message.startswith("no level up to 4 works")
