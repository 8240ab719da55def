"""Environments with the wheel: one for each supported release of Verifiers, and two for training."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import requires, version
from importlib.util import find_spec
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


Make = Callable[[Release | str], Path]
"""Function that returns the `bin` folder of the environment of a release, or of one for training, given by name."""
RELEASES = (
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
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    return wheel


BUILT = ("cellpylib", "deepspeed", "pycosat", "zss")
"""Requirements without wheels on the index."""


def install(requirements: Path, wheel: Path, *options: object) -> None:
    """Install `wheel` and the packages that `requirements` lists, without resolving them again.

    Packages in `BUILT` come from uv's cache if it has them. Online, uv would ask the index whether
    they changed, and some mirrors always answer yes, so that each environment would take 20 CPU seconds to build them.
    """
    install = ("pip", "install", "-q", "--no-deps", *options)
    found = re.findall(rf"^(?:{'|'.join(BUILT)})==[^ ;]+", requirements.read_text(), re.MULTILINE)
    with contextlib.suppress(AssertionError):  # not in the cache yet
        uv("--directory", requirements.parent, *install, "--offline", *found)
    uv("--directory", requirements.parent, *install, "-r", requirements, wheel)


def make_environment(release: Release, wheel: Path, folder: Path) -> None:
    """Create an environment with `release` and `wheel`.

    Packages have the versions that the release's project locks, so the environment is reproducible. Without a project,
    they have the newest compatible versions, as with `pip install`.
    """
    uv("venv", "-q", "--python", sys.executable, folder)
    python = ("--python", folder / "bin" / "python")
    if release.project:
        which = ("--project", release.project, "--no-default-groups", "--no-emit-package", "rg-env")
        (folder / "requirements.txt").write_text(uv("export", "-q", "--frozen", "--no-hashes", *which))
        install(folder / "requirements.txt", wheel, *python)
        uv("pip", "check", "-q", *python)
    else:
        uv("pip", "install", "-q", *python, f"verifiers=={release.version}", wheel)


TRAINING = {"newest": "highest", "lowest": "lowest-direct"}
"""uv's strategies to choose versions for training, by name."""


def make_training_environment(name: str, wheel: Path, folder: Path) -> None:
    """Create an environment with `wheel`, its extra `train` and pytest.

    Packages have the newest versions, as with `pip install`, or the lowest that pyproject.toml allows. The lock file,
    overrides and constraints of this project do not apply.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    tools = [f"{each}=={version(each)}" for each in ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")]
    (lowest_torch,) = (each.replace(">=", "==") + ".*" for each in needed if each.startswith("torch>="))
    # liger-kernel has no bound on triton, and the newest triton would require the newest torch.
    more = [lowest_torch] if name == "lowest" else []
    uv("venv", "-q", "--python", sys.executable, folder)
    (folder / "needed.in").write_text("\n".join([*needed, *tools, *more]))
    # With the metadata of the installed versions, uv does not have to build packages to resolve their requirements.
    known = [(each, version(each), json.dumps(requires(each) or [])) for each in BUILT if find_spec(each)]
    lines = '[[dependency-metadata]]\nname = "{}"\nversion = "{}"\nrequires-dist = {}\n'
    (folder / "uv.toml").write_text("".join(lines.format(*each) for each in known))
    # setup.sh installs torch for the CPU if PyTorch's own index can be reached.
    backend = ("--torch-backend", "cpu") if "+cpu" in version("torch") else ()
    options = ("--python", folder / "bin" / "python", *backend)
    found = folder / "requirements.txt"
    resolve = ("pip", "compile", "-q", "--resolution", TRAINING[name], *options)
    uv("--directory", folder, *resolve, "-o", found, "needed.in")  # outside the checkout, whose settings uv would apply
    install(found, wheel, *options)
