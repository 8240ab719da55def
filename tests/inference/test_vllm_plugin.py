"""The plugin's entry point registers one backend and never prevents a program from starting."""

import subprocess
import sys
from pathlib import Path

import pytest

NEW = """
registered = []
class WeightTransferEngineFactory:
    @staticmethod
    def register_engine(name, *place):
        if any(name == known[0] for known in registered):
            raise ValueError("registered already")
        registered.append((name, *place))
"""
CALL = """
import sys; sys.path.insert(0, sys.argv[1])
from rg_env.inference.vllm.plugin import register
register(); register()
from vllm.distributed import weight_transfer
print(getattr(weight_transfer, "registered", None))
"""


@pytest.mark.parametrize(
    ("text", "registered"),
    [
        ("raise ImportError", None),
        ("", "None"),  # vLLM before 0.32 has no factory
        (NEW, "[('rg_env_shm', 'rg_env.inference.vllm.backend', 'SharedMemoryEngine')]"),
    ],
    ids=["none", "old", "new"],
)
def test_the_backend_is_registered_once(tmp_path: Path, text: str, registered: str | None) -> None:
    """vLLM calls plugins in every process, in some more than once, and rejects names that are already registered."""
    folder = tmp_path / "vllm" / "distributed"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):  # takes precedence over an installed vLLM
        (package / "__init__.py").touch()
    (folder / "weight_transfer.py").write_text(text)
    call = CALL if registered else CALL.split("from vllm")[0]
    done = subprocess.run([sys.executable, "-c", call, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{registered}\n" if registered else "", "")
