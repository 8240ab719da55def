"""The supported releases of Verifiers, and environments with one of them and the wheel."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "tests" / "matrix"


@dataclass(frozen=True)
class Release:
    """One release of Verifiers."""

    version: str
    apis: tuple[str, ...]
    project: Path | None = None
    """Folder of the project whose locked versions CI installs; None if CI does not test this release."""


Make = Callable[[Release], Path]
"""Function that returns the `bin` folder of a release's environment."""
RELEASES = (
    Release("0.1.2.post1", ("v0",)),
    Release("0.1.5.post0", ("v0",)),
    Release("0.1.6.post0", ("v0",), MATRIX / "verifiers-0.1.6"),
    Release("0.1.9.post3", ("v0",)),
    Release("0.1.12", ("v0",)),
    Release("0.1.14", ("v0",)),
    Release("0.2.1", ("v0", "v1")),
    Release("0.3.1", ("v0", "v1"), MATRIX / "verifiers-0.3.1"),
    Release("0.4.0", ("v1",), ROOT),
)


def release_of(version: str) -> Release:
    return next(each for each in RELEASES if each.version == version)


def find_uv() -> str | None:
    """Return the uv that setup.sh would find: on the PATH, among the user's own programs, or in the checkout."""
    places = (Path.home() / ".local" / "bin" / "uv", ROOT / ".uv-bootstrap" / "bin" / "uv")
    return shutil.which("uv") or next((str(place) for place in places if shutil.which(place)), None)


def uv(*arguments: object, **variables: str) -> str:
    """Run uv with additional environment variables and return its output; a failure is raised with uv's own message."""
    found = find_uv()
    assert found, "uv is not installed: ./setup.sh does it"
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [found, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env={**own, **variables}, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Build the package's wheel with the installed hatchling, because `uv build` would download it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(release: Release, wheel: Path, folder: Path) -> None:
    """Create an environment with `release` and `wheel`.

    Packages have the versions that the release's project locks, so the environment is reproducible. Without a project,
    they have the newest compatible versions, as with `pip install`.
    """
    uv("venv", "-q", "--python", sys.executable, folder)
    install = ("pip", "install", "-q", "--python", folder / "bin" / "python")
    if release.project:
        which = ("--project", release.project, "--no-default-groups", "--no-emit-package", "rg-env")
        (folder / "requirements.txt").write_text(uv("export", "-q", "--frozen", "--no-hashes", *which))
        uv(
            *install, "--no-deps", "-r", folder / "requirements.txt", wheel
        )  # resolving again would take most of the time
        uv("pip", "check", "-q", "--python", folder / "bin" / "python")
    else:
        uv(*install, f"verifiers=={release.version}", wheel)
