"""Rows and splits. Sweeps over all 105 tasks are in the `slow` tier."""

import hashlib
import json
import re
from itertools import pairwise
from typing import Any, get_args

import pytest
from run_code import run_code

from rg_env.core.data import dataset
from rg_env.core.data.dataset import Distinct, SplitRequest, build_rows, build_splits, measured
from rg_env.core.data.splits import Split, question_hash, split_of
from rg_env.core.grading.scoring import score
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import shipped_table
from rg_env.errors import InputError, TooFewQuestionsError

QUICK = ["leg_counting", "chain_sum", "coin_flip", "list_functions", "word_ladder", "tower_of_hanoi"]


def _questions(rows: list[dataset.DrawnRow]) -> list[str]:
    return [row["question"] for row in rows]


def test_a_row_holds_all_that_scoring_needs() -> None:
    """A row is JSON: the question, the gold answer and an `info` of strings, one of which is the entire entry."""
    row = build_rows("leg_counting", "train", 1, seed=0)[0]
    assert json.loads(json.dumps(row)) == row
    assert set(row["info"]) == {"rg_task", "config", "entry", "problem", "share"}
    assert all(isinstance(value, str) for value in row["info"].values())
    entry = json.loads(row["info"]["entry"])
    assert (entry["question"], entry["answer"]) == (row["question"], row["answer"])
    assert row["info"]["share"] == "1/1"


@pytest.mark.parametrize(("seed", "eval_seed"), [(0, 0), (1, 2), (2, 1), (-3, 10**12)])
def test_splits_are_disjoint_for_any_seeds(seed: int, eval_seed: int) -> None:
    """No evaluation question is a training question, either under this pair of seeds or in a run whose `seed` is this
    `eval_seed`."""
    size = len(QUICK)
    train, evaluation, _ = build_splits(QUICK, 40 * size, 15 * size, seed, eval_seed)
    others = build_rows(QUICK, "train", 40 * size, seed=eval_seed)
    assert not set(_questions(evaluation)) & (set(_questions(train)) | set(_questions(others)))
    assert len({question_hash(q) for q in _questions(train + evaluation)}) == 55 * size
    assert {split_of(row["info"]["problem"]) for row in train} == {"train"}
    assert {split_of(row["info"]["problem"]) for row in evaluation} == {"eval"}


def test_mixtures_are_weighted_and_shuffled() -> None:
    """Counts follow the weights, and tasks are interleaved."""
    train = build_rows([{"name": "leg_counting", "weight": 3}, "chain_sum"], "train", 40, seed=1)
    tasks = [row["info"]["rg_task"] for row in train]
    assert (tasks.count("leg_counting"), tasks.count("chain_sum")) == (30, 10)
    assert tasks not in (sorted(tasks), sorted(tasks, reverse=True))
    assert {row["info"]["share"] for row in train} == {"30/40", "10/40"}


def test_rows_depend_on_the_seed_alone() -> None:
    """The same seed gives the same rows in another process; neighboring seeds share no rows."""
    code = (
        "from rg_env.core.data.dataset import build_rows; import hashlib, json;"
        "rows = build_rows(['leg_counting', 'maze', 'ransom_note'], 'train', 30, 5, cache=False);"
        "print(hashlib.sha256(json.dumps(rows).encode()).hexdigest())"
    )
    run = run_code(code, PYTHONHASHSEED="7")
    here = build_rows(["leg_counting", "maze", "ransom_note"], "train", 30, 5, cache=False)
    assert run.stdout.strip() == hashlib.sha256(json.dumps(here).encode()).hexdigest(), run.stderr
    sets = [set(_questions(build_rows("leg_counting", "train", 100, seed))) for seed in range(4)]
    assert all(len(a & b) == 0 for a, b in pairwise(sets))


def test_the_evaluation_set_is_frozen_across_training_seeds() -> None:
    """`seed` changes only the training rows, and `eval_seed` only the evaluation rows."""
    train, evaluation, manifest = build_splits("chain_sum", 20, 10, seed=0)
    other_train, same_eval, other = build_splits("chain_sum", 20, 10, seed=1)
    same_train, other_eval, _ = build_splits("chain_sum", 20, 10, seed=0, eval_seed=9)
    assert (same_train, same_eval) == (train, evaluation)
    assert manifest["splits"]["eval"] == other["splits"]["eval"]
    assert train != other_train
    assert evaluation != other_eval


@pytest.mark.parametrize("on_few", ["repeat", "cap"])
def test_a_task_with_too_few_questions(on_few: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluation rows are capped; training rows are repeated, or capped too. The manifest and a printed line say so, a
    repeated build equals the first, and no problem is in both splits."""
    gym = ["gcd", {"name": "tower_of_hanoi", "config": {"max_disks": 4, "max_pegs": 4}}]
    train, evaluation, manifest = build_splits(gym, 800, 200, seed=3, on_few=on_few)
    again = build_splits(gym, 800, 200, seed=3, on_few=on_few, cache=False, processes=1)
    assert again == (train, evaluation, manifest)
    own, held_out = ([r for r in rows if r["info"]["rg_task"] == "tower_of_hanoi"] for rows in (train, evaluation))
    distinct, count = len(set(_questions(own))), len(held_out)
    assert len(set(_questions(held_out))) == count < 100
    assert len(own) == (400 if on_few == "repeat" else distinct)
    assert distinct < 400
    assert not {row["info"]["problem"] for row in own} & {row["info"]["problem"] for row in held_out}
    assert {row["info"]["share"] for row in held_out} == {f"{count}/{100 + count}"}
    assert [manifest["splits"][split]["size"] for split in ("train", "eval")] == [len(train), len(evaluation)]
    printed = capsys.readouterr().out
    use = f"each is used {400 / distinct:.1f} times on average" if on_few == "repeat" else "all are used"
    assert f"task 'tower_of_hanoi' has {distinct} distinct training questions, not 400: {use}\n" in printed
    assert f"task 'tower_of_hanoi' has {count} distinct evaluation questions, not 100: all are used\n" in printed


def test_the_number_of_distinct_questions_is_known_without_drawing() -> None:
    """The table's numbers are those that drawing finds, and describe the same shortage."""
    mixture = Mixture.parse("tower_of_hanoi")
    for split in get_args(Split):
        request = SplitRequest(mixture, split, 200, 0)
        rows = build_rows("tower_of_hanoi", split, 200, 0)
        distinct = len({row["question"] for row in rows})
        found = measured(mixture.tasks[0])
        assert found is not None
        assert found.complete
        assert abs(found.at_least(split) - distinct) <= 2
        (expected,), (actual,) = request.expected_shortage(), request.shortage(rows)
        assert re.sub(r"[\d.]+ ", "N ", expected).replace("about ", "") == re.sub(r"[\d.]+ ", "N ", actual)
    with pytest.raises(TooFewQuestionsError, match=r"about .* distinct evaluation questions, not 100: request fewer"):
        SplitRequest(mixture, "eval", 100, 0, on_few="error").expected_shortage()
    assert SplitRequest(Mixture.parse(["maze", "gcd"]), "train", 9000, 0).expected_shortage() == []
    own = Mixture.parse({"name": "maze", "config": {"max_dist": 11}})
    assert SplitRequest(own, "train", 10, 0).expected_shortage() == [
        "not measured: how many distinct questions maze has with these options"
    ]


def test_a_lower_bound_follows_from_what_was_drawn_once_and_twice() -> None:
    """Without repetitions, 400 draws show that there are more than 80,000 questions."""
    found = Distinct(400, 300, 100, once=400, twice=0, complete=False)
    assert found.unseen == 400 * 399 / 2
    assert (found.described("train"), found.described("eval")) == ("over 60,000", "over 20,000")
    assert Distinct(2400, 63, 22, 0, 1, complete=True).described("eval") == "22"


def test_every_task_was_measured() -> None:
    """The table has the default options of each task."""
    for task in shipped_table():
        assert measured(Mixture.parse(task).tasks[0]), task


def test_a_task_with_too_few_questions_reports_how_many_it_has() -> None:
    with pytest.raises(
        InputError, match=r"'tower_of_hanoi'.*500 requested for the train split, \d+ found .* in [\d,]+ draws"
    ):
        build_rows("tower_of_hanoi", "train", 500, seed=0, on_few="error")


@pytest.mark.parametrize(
    ("gym", "message"),
    [
        ({"name": "leg_counting", "config": {"min_animals": 0}}, 'leg_counting.*"min_animals": 0.*min_animals must be'),
        ({"name": "leg_counting", "config": {"min_animals": "x"}}, "leg_counting.*work with config.*must be a number"),
        ({"name": "time_intervals", "config": {"min_time": "25 o'clock"}}, "time_intervals.*min_time"),
    ],
)
def test_bad_option_values_name_task_and_option(gym: Any, message: str) -> None:
    """The library's assertions and other errors become one line with the task and its options."""
    with pytest.raises(InputError, match=message) as caught:
        build_rows(gym, "train", 1, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("n", [-1, 1.5, True, "3"])
def test_bad_sizes_and_seeds_are_refused(n: Any) -> None:
    """The number of examples must be a whole number of at least 0, and the seed a whole number."""
    with pytest.raises(InputError, match="number of train examples"):
        build_rows("maze", "train", n, seed=0)
    with pytest.raises(InputError, match="seed must be a whole number"):
        build_rows("maze", "train", 1, seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="eval_seed must be a whole number"):
        build_splits(Mixture.parse("maze"), 1, 1, 0, None)  # type: ignore[arg-type]
    assert build_rows("maze", "train", 0, seed=0) == []


@pytest.mark.parametrize(
    "config",
    [
        {"name": "time_intervals", "config": {"min_date": "1990-01-01", "min_time": "08:00:00"}},
        {"name": "basic_arithmetic", "config": {"operators": ["+"]}},
        {"name": "arc_agi", "config": {"board_format_opts": {"row_delimiter": " ; "}}},
    ],
)
def test_options_work_in_json_form(config: Any) -> None:
    """Dates as text, tuples as lists and nested options as mappings are converted to the library's types."""
    row = build_rows(config, "train", 1, seed=0)[0]
    assert score(f"<answer>{row['answer']}</answer>", row["info"]).status == "correct"


def test_acre_continues_beyond_one_block() -> None:
    """Items beyond the library's dataset size come from the next block, which has other questions."""
    rows = build_rows("acre", "train", 500, seed=0)
    assert len(set(_questions(rows))) == 500


@pytest.mark.slow
def test_every_task_gives_the_same_rows_in_any_process() -> None:
    """All tasks give byte-identical rows under different hash seeds, time zones and numbers of processes."""
    code = """
import hashlib, json, sys
from rg_env.core.data.dataset import build_rows
from rg_env.core.tasks.task_table import load_table
rows = build_rows(sorted(load_table()), "train", 315, 3, cache=False, processes=int(sys.argv[1]))
print(json.dumps([[row["info"]["rg_task"], hashlib.sha256(json.dumps(row).encode()).hexdigest()] for row in rows]))
"""
    outputs = []
    for processes, hash_seed, zone in (("1", "1", "Asia/Tokyo"), ("2", "2", "America/Lima")):
        outputs.append(json.loads(run_code(code, processes, PYTHONHASHSEED=hash_seed, TZ=zone).stdout))
    assert {a[0] for a, b in zip(*outputs, strict=True) if a != b} == set()
