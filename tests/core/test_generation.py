"""Generation in processes: the same rows from any number of them, clear errors, and none left behind."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rg_env.core.data import generation, items
from rg_env.core.data.dataset import build_rows, build_splits
from rg_env.core.data.generation import Request, RowProcess, child_environment, generate
from rg_env.core.tasks.mixture import Mixture
from rg_env.errors import GenerationError, InputError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RowProcess]]:
    """The generation processes that are started; all have ended after the test."""
    processes: list[RowProcess] = []

    class Noted(RowProcess):
        def __init__(self, sources: Mapping[str, str]) -> None:
            super().__init__(sources)
            processes.append(self)

    monkeypatch.setattr(generation, "RowProcess", Noted)
    yield processes
    assert processes
    assert all(process._process.returncode is not None for process in processes)


def test_any_number_of_processes_gives_the_same_rows(
    started: list[RowProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process or three, and chunks of any size: byte-identical rows. Six of these tasks depend on the hash seed."""
    gym = [
        "ransom_note",
        "isomorphic_strings",
        "polynomial_multiplication",
        "word_ladder",
        "codeio",
        "acre",
        "syllogism",
    ]
    one = build_splits(gym, 120, 60, seed=3, eval_seed=3, cache=False, processes=1)
    assert len(started) == 1
    monkeypatch.setattr(generation, "_WORTH_A_PROCESS_S", 1e-9)
    monkeypatch.setattr(generation, "_MAX_CHUNK", 7)
    assert build_splits(gym, 120, 60, seed=3, eval_seed=3, cache=False, processes=3) == one
    assert len(started) == 4


@pytest.mark.slow
def test_codeio_does_not_depend_on_what_was_drawn_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snippets leave nothing behind that another snippet sees: chunks in other processes give the same rows."""
    one = build_rows("codeio", "train", 60, seed=3, cache=False, processes=1)
    monkeypatch.setattr(generation, "_WORTH_A_PROCESS_S", 1e-9)
    monkeypatch.setattr(generation, "_CHUNK_S", 0.01)
    monkeypatch.setattr(generation, "_FIRST_CHUNK", 3)
    assert build_rows("codeio", "train", 60, seed=3, cache=False, processes=2) == one


def test_a_terminal_sees_a_bar_only_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is printed in the first three seconds; then a terminal shows how many rows there are, a file nothing."""
    outputs = []
    for is_terminal, steps in ((True, 5), (True, 35), (False, 35)):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda shown=is_terminal: shown)
        monkeypatch.setattr(sys, "stderr", stream)
        with generation._progress(60) as show:
            for found in range(steps):
                show(found)
                time.sleep(0.1)
        outputs.append(stream.getvalue())
    assert (outputs[0], outputs[2]) == ("", "")
    assert "generating rows" in outputs[1]
    assert "/60" in outputs[1]


def test_little_work_takes_one_process(started: list[RowProcess]) -> None:
    """A few quick rows do not start a process on every core, and asking for none starts none."""
    assert generate([Request(Mixture.parse("maze").tasks[0], 0, {"train": 0, "eval": 0})]) == [{}]
    assert started == []
    build_rows("maze", "train", 20, seed=0, cache=False, processes=64)
    assert len(started) == 1


def test_the_users_process_stays_clean() -> None:
    """The library is not imported where the rows are wanted, nothing is printed, and no `__main__` guard is needed."""
    code = "import sys; from rg_env.core.data.dataset import build_rows as b; b('codeio', 'train', 5, 0, cache=False);"
    code += "print('reasoning_gym' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert (run.stdout, run.stderr) == ("False\n", "")


def test_files_in_the_working_directory_shadow_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's random.py or rg_env.py is not imported in its place."""
    for name in ("random.py", "queue.py", "reasoning_gym.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert len(build_rows("maze", "train", 2, seed=0, cache=False)) == 2


def test_secrets_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and tokens are not in the processes' environment; the hash seed is fixed there."""
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "GH_PAT", "DATABASE_URL", "PYTHONOPTIMIZE"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("PYTHONHASHSEED", "12")
    environment = child_environment()
    assert "hidden" not in environment.values()
    assert (environment["PYTHONHASHSEED"], environment["PATH"]) == ("0", os.environ["PATH"])


def test_a_killed_process_is_a_clear_error(started: list[RowProcess]) -> None:
    """A process that dies, as one the kernel ends for its memory, ends the build with one line, and the others."""
    timer = threading.Timer(0.3, lambda: os.kill(started[0]._process.pid, signal.SIGKILL))
    timer.start()
    with pytest.raises(GenerationError, match=r"was killed by SIGKILL \(out of memory\?\)") as caught:
        build_rows("futoshiki", "train", 1000, seed=0, cache=False)
    timer.join()
    assert "\n" not in str(caught.value)


def test_a_crash_tells_its_last_line(started: list[RowProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process says when it fails is in the error."""
    monkeypatch.setattr(generation, "_PROGRAM", "raise ImportError('no numpy')")
    with pytest.raises(GenerationError, match="ended with code 1: ImportError: no numpy"):
        build_rows("maze", "train", 5, seed=0, cache=False)


def test_a_draw_that_takes_too_long_is_an_error(started: list[RowProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """It names task, seed, item and what to do; nothing is skipped in silence."""
    monkeypatch.setattr(generation, "DRAW_LIMIT_S", 0.3)
    spec = {"name": "zebra_puzzles", "config": {"num_people": 7, "num_characteristics": 7}}
    with pytest.raises(GenerationError, match=r"'zebra_puzzles': draw \d+ of seed 4 \(item seed \d+\) takes more than"):
        build_rows(spec, "train", 300, seed=4, cache=False)


def test_draws_on_the_list_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listed draw gives no item, under this config and this version of the library only."""
    listed = tmp_path / "slow.json"
    entry = '{"task": "maze", "config": {}, "reasoning-gym": "%s", "seeds": [%d]}'
    seed = items.item_seed(5, 1)
    listed.write_text("[" + entry % (items.version("reasoning-gym"), seed) + "," + entry % ("0.0.1", seed + 1) + "]")
    monkeypatch.setattr(items, "SLOW_DRAWS", listed)
    items._slow_draws.cache_clear()
    try:
        assert items.slow_seeds("maze", {}) == {seed}
        assert items.slow_seeds("maze", {"min_dist": 6}) == frozenset()
        stream = items.ItemStream("maze", {}, 5)
        assert [stream.draw(index) is None for index in range(3)] == [False, True, False]
    finally:
        items._slow_draws.cache_clear()


def test_errors_of_options_come_through(started: list[RowProcess]) -> None:
    """What the library refuses, when constructed and when used, is the `InputError` it was."""
    with pytest.raises(InputError, match=r"'maze' does not work with config \{\"min_dist\": 0\}"):
        build_rows({"name": "maze", "config": {"min_dist": 0}}, "train", 1, seed=0, cache=False)


def test_a_draw_that_fails_gives_no_item(started: list[RowProcess]) -> None:
    """The library's own failures under good options are passed over (maze, draw 2745 of seed 0); options under which
    every draw fails are an error."""
    rows = build_rows("maze", "train", 2100, seed=0, cache=False)
    assert len(rows) == 2100
    spec = {"name": "maze", "config": {"min_grid_size": 5, "max_grid_size": 5, "min_dist": 400, "max_dist": 500}}
    with pytest.raises(InputError, match="'maze' does not work with config"):
        build_rows(spec, "train", 5, seed=0, cache=False)


def test_importing_one_task_is_enough() -> None:
    """A process imports the task that it draws from and no other, unless the library is another than the table's."""
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
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    """After Ctrl-C no generation process is left, and the user sees a KeyboardInterrupt."""
    code = "from rg_env.core.data.dataset import build_rows; print('go', flush=True);"
    code += "build_rows(['futoshiki', 'knight_swap'], 'train', 2000, 0, cache=False, processes=2)"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert parent.stdout is not None
    parent.stdout.readline()
    children = _wait_for_children(parent.pid, 2)
    os.killpg(parent.pid, signal.SIGINT)
    try:
        _, errors = parent.communicate(timeout=30)
    finally:  # where SIGINT is ignored, as below a shell's background job, it would go on for hours
        parent.kill()
    assert errors.strip().endswith("KeyboardInterrupt")
    assert not any(_alive(child) for child in children)


def test_processes_end_with_a_killed_parent() -> None:
    """A parent that is killed leaves none behind."""
    code = "from rg_env.core.data.dataset import build_rows;"
    code += "build_rows(['futoshiki', 'knight_swap'], 'train', 2000, 0, cache=False, processes=2)"
    parent = subprocess.Popen([sys.executable, "-c", code])
    children = _wait_for_children(parent.pid, 2)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while any(_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_alive(child) for child in children)


def _wait_for_children(parent: int, count: int) -> list[int]:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if len(children) >= count:
            return [int(child) for child in children]
        time.sleep(0.05)
    raise AssertionError("no children")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
