"""Fixtures of the tests of publishing: models to export, a run to publish, and a local stand-in for the Hub."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import huggingface_hub.constants as constants
import pytest
import torch
from checkpoint_files import save_whole
from filelock import FileLock
from hub_runs import train
from hub_server import CANARY, HubServer
from huggingface_hub.utils._xet import abort_xet_session
from model_families import SERVED, random_model
from shared_folders import shared_folder
from training_fixtures import *  # noqa: F403  fixtures

from rg_env.errors import RGEnvError
from rg_env.publish.export import ExportRequest, export
from rg_env.publish.push import PushRequest, push


@pytest.fixture
def make_model() -> Callable[..., Any]:
    """Return a function that makes a small model with random weights of the given configuration."""

    def make(config: Any = SERVED["qwen2, tied"], seed: int = 0) -> Any:
        return random_model(config, seed, dtype=torch.float32).eval()

    return make


@pytest.fixture
def saved(make_model: Callable[..., Any], tmp_path: Path) -> Path:
    """A model folder."""
    return save_whole(tmp_path / "run" / "checkpoint-5", make_model())


@pytest.fixture
def exported() -> Callable[..., tuple[Path, list[str]]]:
    """Return a function that exports a folder and returns the new folder and the progress lines."""

    def call(path: Path, **request: Any) -> tuple[Path, list[str]]:
        lines: list[str] = []
        return export(ExportRequest(path, **request), lines.append), lines

    return call


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., Any]:
    """Return a context manager that requires its block to raise a one-line error and to leave no files."""

    @contextlib.contextmanager
    def check(words: str, kind: type[Exception] = RGEnvError) -> Iterator[None]:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(kind, match=words) as caught:
            yield
        assert "\n" not in str(caught.value)
        assert sorted(tmp_path.rglob("*")) == before

    return check


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train four steps on two tasks, with a held-out task and a labeled one. Tests must not change this folder, which
    all workers of pytest-xdist share."""
    folder = shared_folder(tmp_path_factory) / "trained" / "run"
    with FileLock(f"{folder.parent}.lock"):
        if not folder.exists():
            train(f"output.dir={folder}")
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """Copy the trained run into a folder that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def hub(environ: Callable[..., None], tmp_path: Path) -> Iterator[HubServer]:
    """Serve the Hub to huggingface_hub in this process and its children; "me" may write with the token CANARY."""
    with HubServer() as server:
        server.tokens = {CANARY: ("me", True)}
        # Child processes read the environment when they import huggingface_hub, which this process has already done.
        environ(**server.environment, HF_HOME=str(tmp_path / "hf"), HF_TOKEN=CANARY)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
        folders = {"HF_TOKEN_PATH": str(tmp_path / "no-token"), "HF_HUB_CACHE": str(tmp_path / "hf")}
        here = patch.multiple(constants, ENDPOINT=server.url, HUGGINGFACE_CO_URL_TEMPLATE=template, **folders)
        abort_xet_session()  # a new session reads the environment
        with here:
            yield server


@pytest.fixture
def pushed(hub: HubServer) -> Callable[..., tuple[str, list[str]]]:
    """Return a function that publishes a folder as me/legs and returns the URL and the progress lines."""

    def call(path: Path, **request: Any) -> tuple[str, list[str]]:
        lines: list[str] = []
        return push(PushRequest(path, **{"repo_id": "me/legs", **request}), lines.append), lines

    return call
