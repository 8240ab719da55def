"""Setup for all tests: the process is prepared like rg_env's programs, before torch is imported."""

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure; in CI hypothesis's own profile says the same, and takes the same examples each time.
settings.register_profile("default", settings.get_profile("default"), deadline=None,
                          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
if settings.get_current_profile_name() == "default":
    settings.load_profile("default")

# Rows that tests build are kept apart from the user's, for all test processes; their key holds the code's hash.
os.environ.setdefault("RG_ENV_CACHE", str(Path(tempfile.gettempdir()) / f"rg-env-tests-{os.environ.get('USER', '')}"))
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # see rg_env.commands.prepare_process
# Test processes share the cores: with all threads in each, they wait for one another more than they compute.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

# A shell's background jobs ignore Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rg_env(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process; returns its exit code, standard output and standard error."""
    from rg_env.cli.main import run
    from rg_env.commands import run_command

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            run_command(lambda: run(arguments))
        return int(caught.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets environment variables for a test; None removes one."""

    def change(**variables: str | None) -> None:
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return change
