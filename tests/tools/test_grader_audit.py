"""Tests of the tool that measures the graders."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from audit.__main__ import AUDIT_FILE, write

from rg_env.cli.tasks import AUDIT_HEADER, audit_line
from rg_env.core.grading.audit import Audit, kept

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.slow
def test_one_task_is_measured() -> None:
    """The result is printed on one line under the header, and the shipped file is unchanged."""
    before = AUDIT_FILE.read_bytes()
    options = ["chain_sum", "--items", "5", "--seeds", "1", "--rows", "20", "--processes", "1"]
    command = [sys.executable, "-m", "tools.audit", *options]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    header, measured, *_ = done.stdout.splitlines()
    assert header == AUDIT_HEADER
    assert measured.startswith("chain_sum ")
    assert measured.split()[2:9:6] == ["5/5", "5/5"]  # gold answers and problem keys
    assert AUDIT_FILE.read_bytes() == before


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Results of other tasks are kept, but examples are not saved."""
    path = tmp_path / "audit.json"
    path.write_text('{\n  "gcd": {"items": 7}\n}\n')
    write([Audit("maze", items=5, constant=0.123456, constant_reply="'é'", examples=["x"])], path)
    assert kept(path) == {
        "gcd": Audit("gcd", items=7),
        "maze": Audit("maze", items=5, constant=0.1235, constant_reply="'é'"),
    }
    assert list(json.loads(path.read_text())) == ["gcd", "maze"]


def test_a_guessable_task_is_marked() -> None:
    """A star follows the accuracy of the best constant answer."""
    assert "0.31*" in audit_line(Audit("gcd", constant=0.31))
    assert "0.29 " in audit_line(Audit("gcd", constant=0.29))
    assert "*" not in audit_line(Audit("gcd", constant=0.29))
