"""Tasks, mixtures, and levels of difficulty."""

import datetime
import json
import re
from typing import Any

import pytest
from data_files import data
from hypothesis import given
from hypothesis import strategies as st
from task_table import generate_table, probe_levels, render

from rg_env.cli.tasks import one_task
from rg_env.core.tasks import library
from rg_env.core.tasks.mixture import Mixture, TaskSpec
from rg_env.core.tasks.task_table import TABLE_FILE, load_table, resolve_levels, working_levels
from rg_env.errors import InputError, UnknownNameError


def test_a_name_a_mapping_and_a_list_are_accepted() -> None:
    """The three forms of `gym`, and a `Mixture` itself, give a checked mixture."""
    one = Mixture.parse("leg_counting")
    assert one.tasks == (TaskSpec(name="leg_counting"),)
    two = Mixture.parse([{"name": "chain_sum", "weight": 2, "config": {"max_terms": 3}}, "leg_counting"])
    assert two.names == ["chain_sum", "leg_counting"]
    assert (two.tasks[0].weight, two.tasks[0].config_json) == (2.0, '{"max_terms": 3}')
    for mixture in (two, Mixture.parse([{"name": "maze", "level": 1}, {"name": "gcd", "levels": {"value": 1}}])):
        assert Mixture.parse(mixture) == mixture
    assert Mixture.parse({"name": "maze"}) == Mixture.parse("maze")


def test_dates_in_a_config_become_text() -> None:
    """A config is kept in JSON form, as in `info`."""
    mixture = Mixture.parse({"name": "time_intervals", "config": {"min_date": datetime.date(2000, 1, 2)}})
    assert mixture.tasks[0].config == {"min_date": "2000-01-02"}


@pytest.mark.parametrize(("gym", "message"), data("bad_mixtures"))
def test_bad_input_is_a_one_line_error(gym: Any, message: str) -> None:
    """The `InputError` gives the location of the mistake; unknown names raise `UnknownNameError`."""
    with pytest.raises(InputError, match=message) as caught:
        Mixture.parse(gym)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UnknownNameError) == str(caught.value).startswith("unknown")


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6), st.integers(6, 500))
def test_counts_follow_the_weights(weights: list[float], n: int) -> None:
    """Counts sum to n, leave no task out, and are within one of the exact share unless that is below one row."""
    names = ["maze", "chain_sum", "gcd", "lcm", "sudoku", "products"]
    mixture = Mixture.parse([{"name": name, "weight": weight} for name, weight in zip(names, weights, strict=False)])
    counts = mixture.counts(n)
    assert sum(counts) == n
    assert min(counts) >= 1
    if min(n * weight / sum(weights) for weight in weights) >= 1:
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - n * weight / sum(weights)) <= 1 + 1e-6


def test_fewer_rows_than_tasks_is_an_error() -> None:
    """No task of a mixture is silently left without rows, but a mixture may have no rows at all."""
    mixture = Mixture.parse(["maze", "gcd"])
    with pytest.raises(InputError, match="at least 2"):
        mixture.counts(1)
    assert mixture.counts(0) == [0, 0]


def test_the_table_matches_the_library() -> None:
    """The shipped table has every task except `composite`, and is byte-identical to one generated from the installed
    library."""
    table = load_table()
    assert (len(table), "composite" in table) == (105, False)
    assert all("seed" not in entry["options"] and "size" not in entry["options"] for entry in table.values())
    assert render(generate_table()) == TABLE_FILE.read_text(encoding="utf-8")


# Levels of difficulty

WITHOUT = {"acre", "gsm_symbolic", "list_functions"}


def test_a_level_becomes_options() -> None:
    """`level` sets all attributes, `levels` sets single ones, and explicit options override both."""
    level = Mixture.parse({"name": "maze", "level": 2, "config": {"min_dist": 7}}).tasks[0]
    assert level.level == 2
    assert level.config == {**resolve_levels("maze", 2, None), "min_dist": 7}
    both = Mixture.parse({"name": "maze", "level": 2, "levels": {"dist": 0}}).tasks[0]
    assert both.levels == {"dist": 0}
    assert both.config["max_dist"] == resolve_levels("maze", 0, None)["max_dist"]
    assert both.config["max_grid_size"] == level.config["max_grid_size"]
    one = Mixture.parse({"name": "maze", "levels": {"dist": 3}}).tasks[0]
    assert one.config["max_grid_size"] == resolve_levels("maze", 0, None)["max_grid_size"]
    assert resolve_levels("maze", None, None) == {}


def test_one_thread_at_a_time_imports_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters of warnings are those of all threads, so one thread would restore them while another imports."""
    library.factory()  # other packages use filters when they are imported
    held: list[bool] = []
    monkeypatch.setattr("warnings.simplefilter", lambda *_: held.append(library._IMPORT.locked()))
    library.factory()
    assert held == [True, True]


def test_working_levels_leave_out_the_broken() -> None:
    """The level applies to the whole task; single attributes have their own levels."""
    working, of_size = working_levels("modulo_grid"), working_levels("modulo_grid", ["size_x"])
    assert (list(working), list(of_size)) == ([0, 2, 3, 4, 5], [0, 1, 2, 3])
    assert working_levels("knight_swap") == working_levels("acre") == {}
    assert of_size[3] == resolve_levels("modulo_grid", None, {"size_x": 3})
    assert working[2] == resolve_levels("modulo_grid", 2, None)
    with pytest.raises(UnknownNameError, match="did you mean 'size_x'"):
        working_levels("modulo_grid", ["sizex"])


def test_levels_match_the_librarys_curricula() -> None:
    """For every task and level, the options are those of the library's own `set_global_level`."""
    factory = library.factory()
    for task, entry in load_table().items():
        assert bool(entry["levels"]) == (task not in WITHOUT)
        for level in range(max((len(steps) for steps in entry["levels"].values()), default=0)):
            if str(level) in entry["broken_levels"]:
                continue
            curriculum = factory.create_curriculum(task)
            curriculum.set_global_level(level)
            ours = resolve_levels(task, level, None)
            expected = vars(curriculum.generate_configuration())
            assert ours == json.loads(json.dumps({key: expected[key] for key in ours}, default=library.to_plain)), task


@pytest.mark.slow
def test_broken_levels_are_broken() -> None:
    """Levels that the table lists as broken by an assertion, or by a lack of questions, are broken in the installed
    library."""
    shipped = {task: entry["broken_levels"] for task, entry in load_table().items() if entry["broken_levels"]}
    assert " ".join(sorted(shipped)) == (
        "caesar_cipher jugs knight_swap modulo_grid propositional_logic rubiks_cube sokoban survo zebra_puzzles"
    )
    quick = [t for t, whys in shipped.items() if all(re.match("AssertionError|0 questions", w) for w in whys.values())]
    assert probe_levels(quick) == {task: shipped[task] for task in quick}


def test_a_task_is_described_with_its_levels() -> None:
    """`rg-env tasks NAME` prints attributes, their highest level, and levels that do not work."""
    text = one_task("caesar_cipher")
    assert "  words: 3" in text
    assert "level 2 does not work: AssertionError" in text


def test_a_broken_level_is_refused_in_any_form() -> None:
    """A broken level is refused both as `level` and attribute by attribute; it is accepted if `levels` overrides its
    attributes."""
    steps = load_table()["zebra_puzzles"]["levels"]
    for spec in ({"level": 5}, {"levels": dict.fromkeys(steps, 5)}):
        with pytest.raises(InputError, match="level 5 does not work"):
            Mixture.parse({"name": "zebra_puzzles", **spec})
    Mixture.parse({"name": "zebra_puzzles", "level": 5, "levels": dict.fromkeys(steps, 0)})
