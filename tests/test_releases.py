"""The built wheel beside another release of verifiers, in an environment of its own (needs uv and the registry)."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import importlib.util, json, sys
import rg_env
assert not {"torch", "verifiers", "reasoning_gym"} & set(sys.modules)
import verifiers as vf
env = vf.load_environment("rg-env", gym="leg_counting", num_train_examples=4, num_eval_examples=4)
row = env.get_dataset()[0]
print(json.dumps({"verifiers": vf.__version__, "torch": importlib.util.find_spec("torch") is not None,
                  "roles": [m["role"] for m in row["prompt"]], "rows": len(env.get_dataset())}))
"""


@pytest.mark.network
@pytest.mark.parametrize("release", ["0.3.1", "0.1.9.post3", "0.1.5.post0"])
def test_the_wheel_works_without_torch(tmp_path: Path, release: str) -> None:
    """`import rg_env` is light, and `vf.load_environment("rg-env")` gives rows."""
    uv = shutil.which("uv")
    if not uv:
        pytest.skip("uv is not on the PATH")
    subprocess.run([uv, "build", "--wheel", "--out-dir", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([uv, "pip", "install", "-q", "--python", python, f"verifiers=={release}", str(wheel)], check=True)
    result = subprocess.run(
        [python, "-W", "ignore", "-c", SCRIPT], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["torch"] is False
    assert found["roles"] == ["system", "user"]
    assert found["rows"] == 4
