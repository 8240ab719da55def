"""Set up all tests: prepare the process like rg_env's programs, before torch is imported."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail tests. In CI, hypothesis's own profile ensures this and always uses the same examples.
settings.register_profile("default", settings.get_profile("default"), deadline=None,
                          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
if settings.get_current_profile_name() == "default":
    settings.load_profile("default")

# Importing all tests creates a million objects that stay, and a fifth of the time went to garbage collections.
gc.set_threshold(100_000)  # as in rg_env.commands.prepare_process
# All test processes share a cache of rows, separate from the user's cache; its keys include the code's hash.
os.environ.setdefault("RG_ENV_CACHE", str(Path(tempfile.gettempdir()) / f"rg-env-tests-{os.environ.get('USER', '')}"))
os.environ.setdefault("XDG_STATE_HOME", f"{os.environ['RG_ENV_CACHE']}-state")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # see rg_env.commands.prepare_process
# Test processes share the cores; if each used all threads, they would wait for one another more than they compute.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

# A shell's background jobs ignore Ctrl-C; without this, so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m "slow ..."`, do not import modules without slow tests, which are half of them. Each worker would."""
    if not str(config.option.markexpr).startswith("slow") or not collection_path.match("test_*.py"):
        return None
    return True if "stack" not in collection_path.parts and "slow" not in collection_path.read_text() else None


LONGEST = (
    "test_processes", "test_trl_training", "test_sweep_command", "test_grpo_loop", "test_uploads", "test_end_to_end",
    "test_fsdp2", "test_real_shards", "test_actor_critic", "test_generation", "test_notebook", "test_dataset",
    "test_main_job",
)  # fmt: skip
"""Modules with tests that take half a minute or more."""


@pytest.hookimpl(trylast=True)  # after the tests that are not selected are removed
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--dist worksteal`, which gives each worker a part of the tests in order, let each part begin with some of
    the longest modules, so that no worker runs one alone at the end."""
    if "worksteal" not in getattr(config, "workerinput", {}).get("mainargv", ()):
        return
    slow = [[item for item in items if item.path.stem == name] for name in LONGEST]
    rest = [item for item in items if item.path.stem not in LONGEST]
    ordered: list[pytest.Item] = []
    for number in range(workers):
        first = [item for module in slow[number::workers] for item in module]
        end = len(items) * (number + 1) // workers - len(ordered) - len(first)
        ordered += first + rest[: max(0, end)]
        del rest[: max(0, end)]
    items[:] = ordered + rest


def pytest_collection_finish() -> None:
    """Exempt the objects of imported modules from garbage collections, such as the one before each training run."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def kept_drawers() -> Iterator[None]:
    """Rows that tests build in this process come from processes that are started once."""
    from kept_drawers import drawers_are_kept

    with drawers_are_kept():
        yield


@pytest.fixture(autouse=True)
def independent_of_other_tests() -> Iterator[None]:
    """Tasks and rewards that a test registers are unknown to the next test, and random weights do not depend on the
    order of tests."""
    from user_code import nothing_left

    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    with nothing_left():
        yield


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that begin with `forked_python.PYTHON` start without importing the libraries."""
    from forked_python import serve_forks
    from shared_folders import shared_folder

    with serve_forks(shared_folder(tmp_path_factory)):
        yield


@pytest.fixture
def rg_env(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command in this process and returns its exit code, stdout and stderr."""
    from rg_env.cli.main import run
    from rg_env.commands import run_command

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            run_command(lambda: run([str(argument) for argument in arguments]))
        return int(caught.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def error_of(rg_env: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Return a function that runs the command, which must exit with code 2, and returns the one line that it prints."""

    def call(*arguments: str) -> str:
        code, printed, error = rg_env(*arguments)
        assert (code, printed, error.count("\n")) == (2, "", 1), error
        return error

    return call


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets environment variables for a test; None removes a variable."""

    def change(**variables: str | None) -> None:
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return change
