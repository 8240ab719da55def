"""Server, ports, limits, disk and logins."""

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from doctor_cases import GIB, VLLM, is_like

from rg_env.jobs.doctor import AskedRun, Check, accounts, machine
from rg_env.jobs.doctor.model import checkpoint_count


class _Server(BaseHTTPRequestHandler):
    """Answers `/health`, `/v1/models` and `/get_world_size` as vLLM does."""

    owner, world = "vllm", True

    def do_GET(self) -> None:
        entry = {"id": "served", "owned_by": self.owner, "max_model_len": 512}
        answers = {"/health": {}, "/v1/models": {"data": [entry]}}
        if self.world:
            answers["/get_world_size"] = {"world_size": 2}
        self.send_response(200 if self.path in answers else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path)).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Starts a server of a kind on a free port."""
    servers = []

    def start(**attributes: Any) -> int:
        server = HTTPServer(("127.0.0.1", 0), type("Handler", (_Server,), attributes))
        servers.append(server)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_who_answers_at_the_servers_port(serve: Callable[..., int]) -> None:
    """Nobody, the right server, another model, too short a context, another kind of server."""

    def look(port: int, model: str = "served", tokens: int = 512) -> Check:
        return machine.check_server(AskedRun(engine="vllm", vllm_port=port), model, tokens)[0]

    good = serve()
    is_like(look(good), "ok", "serves 'served', 512 tokens, 2 workers")
    is_like(look(good, model="mine"), "failed", "serves 'served', not 'mine'", "rg-env vllm mine")
    is_like(look(good, tokens=600), "failed", "takes 512 tokens", "--max-model-len 600")
    is_like(look(serve(owner="rg-env")), "failed", "no vLLM server", "another --vllm-port")
    is_like(look(serve(world=False)), "failed", "takes no weights", "another --vllm-port")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    is_like(look(port), "warning", "nothing listens", f"rg-env vllm served --host 127.0.0.1 --port {port}")
    away = AskedRun(engine="vllm", vllm_host="nowhere.invalid")
    is_like(machine.check_server(away, "served", 1)[0], "warning", "nothing listens", "check --vllm-host")
    assert machine.check_server(AskedRun(), None, 1)[0].status == "skipped"


def test_ports_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever listens there now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(machine, "LAUNCH_PORT", port)
        is_like(machine.check_ports(AskedRun(processes=2)), "warning", f"{port}: something else listens", "a free one")
    is_like(machine.check_ports(AskedRun(processes=2)), "ok", f"{port} free")
    assert machine.check_ports(AskedRun()).status == "skipped"


def test_open_files() -> None:
    """Each rollout in flight holds a connection."""
    is_like(machine.check_open_files(1024, 4096, 0), "ok", "limit 1024")
    is_like(machine.check_open_files(1024, 1048576, 1024), "failed", "needs 1536", "ulimit -n 65536")
    is_like(machine.check_open_files(1024, 4096, 1024), "failed", "needs 1536", "ulimit -n 4096")
    is_like(machine.check_open_files(1024, 1024, 1024), "failed", "needs 1536", "administrator")
    is_like(machine.check_open_files(-1, -1, 1024), "ok", "no limit")


def test_shared_memory() -> None:
    """Docker's 64 MB are too few for several processes."""
    is_like(machine.check_shared_memory(64 * 2**20, VLLM), "warning", "67 MB", "--shm-size")
    is_like(machine.check_shared_memory(64 * 2**20, AskedRun()), "ok", "67 MB")
    is_like(machine.check_shared_memory(8 * GIB, VLLM), "ok", "8.6 GB")
    is_like(machine.check_shared_memory(None, VLLM), "skipped", "no /dev/shm")


def test_room_for_checkpoints(tmp_path: Path) -> None:
    """One must fit; all should."""
    free = shutil.disk_usage(tmp_path).free
    run = AskedRun(output_dir=str(tmp_path / "run"))
    is_like(machine.check_output(run, 1000, 3), "ok", "3 checkpoints")
    is_like(machine.check_output(run, free // 2, 3), "warning", "not all fit", "save_total_limit")
    is_like(machine.check_output(run, 2 * free, 1), "failed", "will not fit", "another output folder")
    (tmp_path / "file").touch()
    is_like(
        machine.check_output(AskedRun(output_dir=str(tmp_path)), 1, 1), "failed", "not empty", "another output folder"
    )
    assert checkpoint_count({"max_steps": 250, "save_steps": 100}) == 3
    assert checkpoint_count({"max_steps": 250, "save_steps": 0}) == 1


@pytest.fixture
def no_logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("no_logins")
def test_wandb_is_needed_where_it_is_reported_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a key in the environment or in netrc's file, which is never quoted, damaged as it may be."""
    is_like(accounts.check_wandb({"report_to": "none"}), "ok", "no login")
    for wanted in ("wandb", ["tensorboard", "wandb"]):
        is_like(accounts.check_wandb({"report_to": wanted}), "failed", "no login", "wandb login")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user passwerd s3cr3t-of-mine\n")
    assert "s3cr3t" not in accounts.check_wandb({"report_to": "wandb"}).line()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password s3cr3t-of-mine\n")
    is_like(accounts.check_wandb({"report_to": "wandb"}), "ok", "a login is there")
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    is_like(accounts.check_wandb({"report_to": "wandb"}), "ok", "offline")
