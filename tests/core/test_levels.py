"""Levels of difficulty."""

import re
from typing import Any

import pytest
from task_table import probe_levels

from rg_env.cli.describe import one_task
from rg_env.core.tasks import library
from rg_env.core.tasks.mixture import Mixture, TaskSpec
from rg_env.core.tasks.task_table import load_table, options_at, resolve_levels, working_levels
from rg_env.errors import InputError, UnknownNameError

WITHOUT = {"acre", "gsm_symbolic", "list_functions"}


def test_a_level_becomes_options() -> None:
    """`level` sets all attributes, `levels` single ones, and explicit options win over both."""
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


def test_working_levels_leave_out_the_broken() -> None:
    """Of the whole task; single attributes have levels of their own."""
    assert working_levels("modulo_grid") == [0, 2, 3, 4, 5]
    assert working_levels("knight_swap") == working_levels("acre") == []
    assert working_levels("modulo_grid", ["size_x"]) == [0, 1, 2, 3]
    assert options_at("modulo_grid", 5, ["size_x"]) == resolve_levels("modulo_grid", None, {"size_x": 3})
    assert options_at("modulo_grid", 2) == resolve_levels("modulo_grid", 2, None)
    with pytest.raises(UnknownNameError, match="did you mean 'size_x'"):
        working_levels("modulo_grid", ["sizex"])


def test_parsing_a_mixture_again_changes_nothing() -> None:
    """A parsed spec parses to itself, and keeps its level."""
    mixture = Mixture.parse([{"name": "maze", "level": 1}, {"name": "gcd", "levels": {"value": 1}}])
    assert Mixture.parse(mixture) == mixture
    assert Mixture.parse([TaskSpec.model_validate(task) for task in mixture.model_dump()["tasks"]]) == mixture


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "maze", "level": 4}, r"'maze': level must be a whole number from 0 to 3, not 4"),
        ({"name": "maze", "level": -1}, r"from 0 to 3, not -1"),
        ({"name": "maze", "level": True}, r"from 0 to 3, not True"),
        ({"name": "maze", "level": "2"}, r"from 0 to 3, not '2'"),
        ({"name": "maze", "levels": 2}, r"levels must be a mapping"),
        ({"name": "maze", "levels": {"dst": 1}}, "unknown level attribute of task 'maze' 'dst': did you mean 'dist'"),
        ({"name": "maze", "levels": {"dist": 4}}, r"levels\['dist'\] must be a whole number from 0 to 3"),
        ({"name": "acre", "level": 0}, r"'acre' has no levels: set its options with config"),
        ({"name": "survo", "level": 2}, r"'survo': level 2 does not work in reasoning-gym .*AssertionError: max_empty"),
        ({"name": "knight_swap", "level": 0}, r"level 0 does not work.*min_nodes"),
        ({"name": "sokoban", "level": 0}, r"level 0 does not work.*over 8 s"),
    ],
)
def test_bad_levels_are_told_in_one_line(spec: Any, message: str) -> None:
    """Levels out of range, broken ones, and levels of a task without a curriculum."""
    with pytest.raises(InputError, match=message) as caught:
        Mixture.parse(spec)
    assert "\n" not in str(caught.value)


def test_the_table_says_what_the_librarys_curricula_say() -> None:
    """For every task and every level the options are those of the library's own `set_global_level`."""
    factory = library.factory()
    for task, entry in load_table().items():
        assert bool(entry["levels"]) == (task not in WITHOUT)
        for level in range(max((len(steps) for steps in entry["levels"].values()), default=0)):
            if str(level) in entry["broken_levels"]:
                continue
            curriculum = factory.create_curriculum(task)
            curriculum.set_global_level(level)
            _, config_cls = library.dataset_class(task)
            defaults = config_cls()
            ours = {
                k: library.from_plain(v, getattr(defaults, k)) for k, v in resolve_levels(task, level, None).items()
            }
            expected = curriculum.generate_configuration()
            assert {k: _listed(v) for k, v in ours.items()} == {k: _listed(getattr(expected, k)) for k in ours}, task


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_broken_levels_are_broken() -> None:
    """What the table calls broken by an assertion, or for want of questions, is broken in the installed library."""
    shipped = {task: entry["broken_levels"] for task, entry in load_table().items() if entry["broken_levels"]}
    assert set(shipped) == {
        "caesar_cipher",
        "jugs",
        "knight_swap",
        "modulo_grid",
        "propositional_logic",
        "rubiks_cube",
        "sokoban",
        "survo",
        "zebra_puzzles",
    }
    quick = [t for t, whys in shipped.items() if all(re.match("AssertionError|0 questions", w) for w in whys.values())]
    assert probe_levels(quick) == {task: shipped[task] for task in quick}


def test_a_task_is_described_with_its_levels() -> None:
    """`rg-env tasks NAME` names attributes, their highest level, and what does not work."""
    text = one_task("caesar_cipher")
    assert "  words: 3" in text
    assert "level 2 does not work: AssertionError" in text


def test_a_broken_level_is_refused_however_it_is_spelt() -> None:
    """As `level`, or attribute by attribute; what differs from it is not."""
    steps = load_table()["zebra_puzzles"]["levels"]
    for spec in ({"level": 5}, {"levels": dict.fromkeys(steps, 5)}):
        with pytest.raises(InputError, match="level 5 does not work"):
            Mixture.parse({"name": "zebra_puzzles", **spec})
    Mixture.parse({"name": "zebra_puzzles", "level": 5, "levels": dict.fromkeys(steps, 0)})
