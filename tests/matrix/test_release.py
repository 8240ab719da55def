"""The script that makes a release, without the uploads."""

import os
import subprocess
from pathlib import Path

import pytest
from release_environments import ROOT, find_uv

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone of this checkout, including changes that are not committed."""
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "clone"], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = tmp_path / "clone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
            target.chmod((ROOT / name).stat().st_mode)
    return tmp_path / "clone"


def release(checkout: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    uv = find_uv()
    assert uv
    variables = {**os.environ, "PATH": f"{os.environ['PATH']}:{Path(uv).parent}"}
    command = [checkout / ".ci" / "release", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_a_dry_run_builds_and_checks_but_changes_nothing(checkout: Path) -> None:
    def state() -> str:
        return subprocess.check_output(["git", "status", "--porcelain"], cwd=checkout, text=True)

    before = state()
    done = release(checkout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASSED") == 2
    assert "dry run: would tag v" in done.stdout
    assert state() == before
    assert not subprocess.check_output(["git", "tag"], cwd=checkout)


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("CHANGELOG.md", "## [0.1.0]", "## [0.0.9]", "CHANGELOG.md has no section [0.1.0]"),
        ("CITATION.cff", "version: 0.1.0", "version: 0.0.9", "CITATION.cff has another version"),
    ],
)
def test_versions_must_agree(checkout: Path, file: str, old: str, new: str, reason: str) -> None:
    (checkout / file).write_text((checkout / file).read_text().replace(old, new))
    done = release(checkout)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr


def test_the_owner_is_replaced_everywhere(checkout: Path) -> None:
    """An unusable name is refused."""
    refused = release(checkout, "--owner", "a b")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert release(checkout, "--owner", "someone").returncode == 0
    left = subprocess.run(["git", "grep", "-l", "github.com/OWNER/", "--", ":!.ci/release"], cwd=checkout, check=False)
    assert left.returncode == 1
    assert "github.com/someone/rg_env" in (checkout / "README.md").read_text()
    assert not list(checkout.rglob("*.bak"))
