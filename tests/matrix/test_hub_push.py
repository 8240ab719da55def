"""`prime env push` with the real client and a local server instead of the Hub, so nothing is published.

How the Hub processes an upload is not tested. Needs uv, git and the registry.
"""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import LoopbackServer
from release_checks import run
from release_environments import Make, release_of, uv
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PRIME = "prime==0.18.0"

pytestmark = [
    pytest.mark.network,
    pytest.mark.full_matrix,
    pytest.mark.skipif(not shutil.which("git"), reason="needs git"),
]


class Hub(LoopbackServer):
    """Server that receives uploads from `prime`.

    Attributes:
        posted: JSON bodies by path.
        stored: data received by PUT, by path.
    """

    def __init__(self) -> None:
        super().__init__(
            [
                Route("/api/v1/environmentshub/{path:path}", self._post, methods=["POST"]),
                Route("/{path}", self._put, methods=["PUT"]),
            ]
        )
        self.posted: dict[str, Any] = {}
        self.stored: dict[str, bytes] = {}

    async def _post(self, request: Request) -> JSONResponse:
        path = request.path_params["path"]
        self.posted[path] = json.loads(await request.body() or b"null")
        replies: dict[str, dict[str, Any]] = {
            "resolve": {"id": "E", "owner": {"name": "someone"}, "created": True},
            "E/wheels": {"wheel_id": "W", "upload_url": f"{self.address}/wheel"},
            "E/versions": {"version_id": "V", "upload_url": f"{self.address}/source"},
        }
        return JSONResponse({"data": replies.get(path, {"success": path.endswith("/finalize")})})

    async def _put(self, request: Request) -> JSONResponse:
        self.stored[request.url.path] = await request.body()
        return JSONResponse({})


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def prime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prime")
    uv("venv", "-q", "--python", sys.executable, folder)
    uv("pip", "install", "-q", "--python", folder / "bin" / "python", PRIME)
    return folder / "bin" / "prime"


def known_to_git() -> set[str]:
    """Return the checkout's files, including new ones, that .gitignore does not exclude."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return {name for name in names if (ROOT / name).is_file()}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the checkout with typical private files: keys, an environment, runs, caches."""
    folder = tmp_path / "rg-env"
    for name in known_to_git():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in (".env", ".venv/lib/x.py", "outputs/run/rollouts.jsonl", "logs/run/vllm.log", "wandb/run/secret.json",
                 "runs/a.json", "rg_env/__pycache__/x.pyc", "dist/old.whl"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("private")
    return folder


def push(prime: Path, checkout: Path, hub: Hub, *options: str) -> str:
    home = checkout.parent / "home"  # keeps `prime` from reading the user's login and changing their settings
    home.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PRIME_")}
    variables |= {"HOME": str(home), "PRIME_API_BASE_URL": hub.address, "PRIME_API_KEY": "none"}
    variables |= {"PRIME_DISABLE_VERSION_CHECK": "1", "UV_CACHE_DIR": uv("cache", "dir").strip()}
    command = [str(prime), "env", "push", "--path", str(checkout), "--plain", *options]
    done = subprocess.run(command, env=variables, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_client_uploads_the_wheel_and_archive_with_metadata(prime: Path, checkout: Path, hub: Hub) -> None:
    out = push(prime, checkout, hub, "--visibility", "PRIVATE")
    assert "Successfully pushed someone/rg-env" in out
    assert hub.posted["resolve"] == {"name": "rg-env", "visibility": "PRIVATE"}
    wheel, source = hub.posted["E/wheels"], hub.posted["E/versions"]
    assert {"E/wheels/W/finalize", "E/versions/V/finalize"} <= hub.posted.keys()

    project = PROJECT["project"]
    for sent in (wheel, source):
        assert sent["semantic_version"] == project["version"]
        assert sent["metadata"]["tags"] == project["tags"]
        assert sent["metadata"]["description"] == project["description"]
        assert sent["metadata"]["license"] == "Apache-2.0"
        assert sent["metadata"]["dependencies"] == project["dependencies"]
        assert sent["metadata"]["python_requires"] == project["requires-python"]
        assert re.fullmatch("[0-9a-f]{64}", sent["content_hash"])
        assert sent["runtime_hint"] == "VERIFIERS_V0", "from the lower bound on verifiers; --runtime overrides it"
    assert wheel["content_hash"] == source["content_hash"]
    assert wheel["sha256"] == hashlib.sha256(hub.stored["/wheel"]).hexdigest()
    assert source["sha256"] == hashlib.sha256(hub.stored["/source"]).hexdigest()

    names = zipfile.ZipFile(io.BytesIO(hub.stored["/wheel"])).namelist()
    assert {"rg_env/__init__.py", "rg_env/pyproject.toml", "rg_env/core/tasks/task_table.json"} <= set(names)
    assert wheel["filename"] == f"rg_env-{project['version']}-py3-none-any.whl"
    assert wheel["size"] == len(hub.stored["/wheel"])


def test_the_archive_contains_no_private_files(prime: Path, checkout: Path, hub: Hub, tmp_path: Path) -> None:
    """A wheel built from the archive, as `prime env install` does for private environments, equals the uploaded one."""
    out = push(prime, checkout, hub, "--runtime", "v1")
    assert "verifiers v1 (from --runtime)" in " ".join(out.split())
    assert hub.posted["E/wheels"]["runtime_hint"] == "VERIFIERS_V1"
    with tarfile.open(fileobj=io.BytesIO(hub.stored["/source"])) as archive:
        archive.extractall(tmp_path / "pulled", filter="data")
    pulled = tmp_path / "pulled"
    names = {path.relative_to(pulled).as_posix() for path in pulled.rglob("*") if path.is_file()}
    assert names <= known_to_git()
    assert {"README.md", "pyproject.toml", "rg_env/__init__.py"} <= names
    assert (pulled / "README.md").read_bytes() == (ROOT / "README.md").read_bytes()
    uv("build", "-q", "--wheel", "--out-dir", tmp_path / "wheel", pulled)
    (rebuilt,) = (tmp_path / "wheel").glob("*.whl")

    def modules(wheel: Any) -> dict[str, int]:
        entries = zipfile.ZipFile(wheel).infolist()
        return {entry.filename: entry.CRC for entry in entries if ".dist-info/" not in entry.filename}

    assert modules(rebuilt) == modules(io.BytesIO(hub.stored["/wheel"]))


@pytest.mark.parametrize(
    ("version", "module"), [("0.1.9.post3", "verifiers.scripts.eval"), ("0.3.1", "verifiers.legacy.scripts.eval")]
)
def test_vf_eval_takes_its_sizes_from_the_wheel(environment: Make, tmp_path: Path, version: str, module: str) -> None:
    code = f"import json; from {module} import get_env_eval_defaults as f; print(json.dumps(f('rg-env')))"
    done = run(environment(release_of(version)) / "python", "-W", "ignore", "-c", code, cwd=tmp_path)
    assert json.loads(done.stdout.splitlines()[-1]) == PROJECT["tool"]["verifiers"]["eval"]
