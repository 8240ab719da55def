"""A run to publish, made once, and a hub on loopback to publish it on."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pytest
from hub_runs import train
from hub_server import CANARY, HubServer
from huggingface_hub import file_download

from rg_env.training.hub.push import Asked, push


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps, on two tasks, with a held-out one and one under a label. Not to be changed."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(f"output.dir={folder}")
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A hub that huggingface_hub of this process and its children talks to; "me" may write by the token CANARY."""
    with HubServer() as server:
        server.tokens = {CANARY: ("me", True)}
        monkeypatch.setenv("HF_ENDPOINT", server.url)  # read when huggingface_hub is imported: for other processes
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        for module in (constants, file_download):
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", CANARY)
        yield server


@pytest.fixture
def pushed(hub: HubServer) -> Callable[..., tuple[str, list[str]]]:
    """Publishes a folder as me/legs: the address, and the lines that were told."""

    def call(path: Path, **asked: Any) -> tuple[str, list[str]]:
        lines: list[str] = []
        return push(Asked(path, **{"repo_id": "me/legs", **asked}), lines.append), lines

    return call
