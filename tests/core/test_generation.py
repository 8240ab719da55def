"""Generation in processes: the same rows from any number of processes, clear errors, no processes left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from audit.rows import draws
from run_code import run_code
from user_code import TASK
from worker_pools import is_running, until

from rg_env.core.data.dataset import build_rows
from rg_env.core.data.generation import Generation, Limits, RowRequest
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.user_code import import_user_code
from rg_env.errors import GenerationError, InputError


def requests(gym: Any, n: int, seed: int = 0) -> list[RowRequest]:
    """Requests for `n` training rows of each task."""
    return [RowRequest(task, seed, {"train": n}) for task in Mixture.parse(gym).tasks]


@pytest.fixture
def generation() -> Iterator[Callable[..., Generation]]:
    """A factory of generations that checks, after the test, that all of their processes have ended."""
    made: list[Generation] = []

    def make(*arguments: Any, **limits: Any) -> Generation:
        made.append(Generation(*arguments, limits=Limits(**limits)))
        return made[-1]

    yield make
    assert all(drawer.process.code is not None for each in made for drawer in each.drawers)


Make = Callable[..., Generation]


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_rows(generation: Make) -> None:
    """One process and three give equal rows. Six of these tasks depend on the hash seed."""
    gym = [
        "ransom_note",
        "isomorphic_strings",
        "polynomial_multiplication",
        "word_ladder",
        "codeio",
        "acre",
        "syllogism",
    ]
    one, three = generation(requests(gym, 30, 3), 1), generation(requests(gym, 30, 3), 3)
    assert one.run() == three.run()
    assert (len(one.drawers), len(three.drawers)) == (1, 3)


def test_little_work_takes_one_process(
    generation: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few quick rows do not start a process on every core, and a request for no rows starts none. If generation is
    slow, a line states how many rows are ready."""
    monkeypatch.setattr("rg_env.core.data.generation._FIRST_PROGRESS_S", 0.0)
    monkeypatch.setattr("rg_env.core.data.generation._PROGRESS_S", 0.0)
    monkeypatch.setattr("rg_env.core.data.generation._MORE_PROCESSES_S", 600.0)  # on a busy machine, draws are slow
    for n, processes in ((20, 1), (0, 0)):
        made = generation(requests("maze", n), 64)
        assert len(made.run()[0].get("train", [])) == n
        assert len(made.drawers) == processes
    assert "generating rows: 0 of 20\n" in capsys.readouterr().err


def test_slow_draws_take_more_processes(
    generation: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of processes follows from the time that the first draws took, and the time left is shown. The rows do
    not depend on it."""
    one = generation(requests("maze", 60), 1)
    expected = one.run()
    monkeypatch.setattr("rg_env.core.data.generation._MORE_PROCESSES_S", 0.0)
    monkeypatch.setattr("rg_env.core.data.generation._PROGRESS_S", 0.0)
    monkeypatch.setattr("rg_env.core.data.generation._FIRST_PROGRESS_S", 0.0)
    left_s = iter([7200 * 60.0])
    monkeypatch.setattr(Generation, "_seconds_left", lambda self: next(left_s, 90.0))
    more = generation(requests("maze", 60), 2)
    assert more.run() == expected
    assert (len(one.drawers), len(more.drawers)) == (1, 2)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "generating rows: 0 of 60, about 120 h left; to start sooner, request fewer questions"
    assert re.fullmatch(r"generating rows: \d+ of 60, about 2 min left", lines[0])


def test_the_time_left_follows_from_the_draws() -> None:
    """A walk that has not been measured counts as an average one."""
    both = Generation(requests(["maze", "gcd"], 75))
    first = both._walks[0]
    for index in first.plan():
        first.add(index, None)
    first.seconds = 4.0  # for 8 draws
    draws = [walk.to_draw() for walk in both._walks]
    assert both._seconds_left() == pytest.approx(0.5 * sum(draws))
    assert draws[1] >= 100  # three of four draws are for training


@pytest.mark.slow
def test_the_calling_process_stays_clean(tmp_path: Path) -> None:
    """The calling process does not import the library, prints nothing and needs no `__main__` guard; files in the
    working directory do not shadow modules."""
    code = "import sys; from rg_env.core.data.dataset import build_rows as b; b('codeio', 'train', 5, 0, cache=False);"
    code += "print('reasoning_gym' in sys.modules)"
    for name in ("random.py", "queue.py", "reasoning_gym.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    run = run_code(code, cwd=tmp_path)
    assert (run.stdout, run.stderr) == ("False\n", "")


def test_a_killed_process_is_a_clear_error(generation: Make) -> None:
    """If a process dies, for example killed by the kernel for its memory, generation raises an error of one line and
    ends the other processes."""
    made = generation(requests("futoshiki", 1000))

    def kill() -> None:
        assert until(lambda: bool(made.drawers), 120)
        os.kill(made.drawers[0].process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(GenerationError, match=r"ended \(out of memory\?\): signal 9 \(Killed\)") as caught:
        made.run()
    killer.join()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "silence_s", "message"),
    [
        (
            "while index: pass",
            600.0,
            r"'own_sums': draw 1 of seed 4 \(item seed \d+\) takes more than 6 s of CPU time wi",
        ),
        (
            "time.sleep(200 * index)",
            30.0,
            r"'own_sums': draw 1 of seed 4 \(item .*\) takes more than 30 s with config {}:",
        ),
        ("raise SystemExit('the reason')", 600.0, "a generation process ended: exit code 1: the reason"),
    ],
)
def test_draws_that_hang_or_exit_are_errors(
    generation: Make, write: Callable[..., Path], statement: str, silence_s: float, message: str
) -> None:
    """A draw has a limit on CPU time, so that a busy machine does not cause an error, and a limit on silence by the
    clock. No draw is skipped."""
    text = TASK.replace("rng = Random", f"{statement}\n        rng = Random")
    import_user_code([str(write("own_endless.py", text))])
    with pytest.raises(GenerationError, match=message):
        generation(requests("own_sums", 3, seed=4), draw_cpu_s=6, silence_s=silence_s).run()


@pytest.mark.slow
def test_a_limit_counts_each_draw_by_itself(generation: Make, write: Callable[..., Path]) -> None:
    """All draws together may use more CPU time than the limit of one draw, even if the process's own clock is behind
    the kernel's, as on busy virtual machines."""
    slow = "end = time.thread_time() + 0.6\n        while time.thread_time() < end: pass\n        rng = Random"
    text = TASK.replace("import time", "import time\ntime.process_time = lambda: 0.0")
    import_user_code([str(write("own_slow.py", text.replace("rng = Random", slow)))])
    (found,) = generation(requests("own_sums", 6), 1, draw_cpu_s=3).run()
    assert len(found["train"]) == 6


def test_a_draw_that_fails_gives_no_item() -> None:
    """A draw that fails under valid options is skipped (maze, draw 2745 of seed 0). Options that the library refuses,
    or under which every draw fails, are an error."""
    rows = build_rows("maze", "train", 2100, seed=0, cache=False)
    assert len(rows) == 2100
    for options in ({"min_dist": 0}, {"min_grid_size": 5, "max_grid_size": 5, "min_dist": 400, "max_dist": 500}):
        with pytest.raises(InputError, match="'maze' does not work with config"):
            build_rows({"name": "maze", "config": options}, "train", 5, seed=0, cache=False)


@pytest.mark.slow
def test_a_process_imports_only_its_task() -> None:
    """A process imports only the task that it draws from, unless the installed library differs from the task table."""
    code = """
import sys
from rg_env.core.tasks import library
from rg_env.core.tasks.task_table import load_table
library.import_only("maze", load_table()["maze"]["module"])
assert list(library.factory().DATASETS)[-1] == "maze" and "sympy" not in sys.modules
for task, entry in load_table().items():
    library.import_only(task, entry["module"])
    assert library.dataset_class(task)[0].__module__ == entry["module"], task
assert not hasattr(sys.modules["reasoning_gym"], "__version__")
library.import_only("gcd", "reasoning_gym.arithmetic.gone")
assert len(library.task_names()) == 105 and sys.modules["reasoning_gym"].__version__
"""
    run_code(code)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left(kind: signal.Signals) -> None:
    """No generation process is left after Ctrl-C, which raises KeyboardInterrupt, or after the parent is killed."""
    code = "from rg_env.core.data.dataset import build_rows; import signal;"
    code += "signal.signal(signal.SIGINT, signal.default_int_handler);"  # a shell's background jobs ignore SIGINT
    code += "build_rows(['futoshiki', 'knight_swap'], 'train', 2000, 0, cache=False, processes=2)"
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert until(lambda: len(psutil.Process(parent.pid).children()) == 2, 120)
    children = [child.pid for child in psutil.Process(parent.pid).children()]
    parent.send_signal(kind)
    _, errors = parent.communicate(timeout=120)
    assert errors.strip().endswith("KeyboardInterrupt" if kind == signal.SIGINT else "")
    assert until(lambda: not any(map(is_running, children)), 120)


@pytest.mark.parametrize("task", ["ransom_note", "time_intervals", "list_functions"])
def test_items_are_those_of_the_rows(task: str) -> None:
    """Items drawn in this process contain the training rows' entries. One of these tasks depends on the hash seed, one
    on a library fix, and one on the global random state."""
    rows = build_rows(task, "train", 5, seed=4, cache=False)
    drawn = [item for item in draws().items(task, 40, seed=4) if item.split("problem") == "train"]
    assert {row["info"]["entry"] for row in rows} <= {item.entry for item in drawn}


def test_items_follow_their_options() -> None:
    """Other options for the same task open another dataset, and invalid options are an error."""
    plain = draws().items("chain_sum", 3, config={"min_terms": 2, "max_terms": 2})
    longer = draws().items("chain_sum", 3, config={"min_terms": 9, "max_terms": 9})
    terms = [json.loads(item.entry)["metadata"]["difficulty"]["num_terms"] for item in plain + longer]
    assert terms == [[2, 2]] * 3 + [[9, 9]] * 3
    with pytest.raises(InputError, match="chain_sum"):
        draws().items("chain_sum", 1, config={"min_terms": -1})
