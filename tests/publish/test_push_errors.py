"""Tests of failed pushes: each reports a one-line error, and the same command resumes the upload."""

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hub_server import CANARY, STORAGE_CANARY, HubServer
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from rg_env.errors import HubError, InputError
from rg_env.publish import push as push_module
from rg_env.tiny import POLICY_DIR

pytestmark = pytest.mark.slow
Pushed = Callable[..., tuple[str, list[str]]]


def test_an_upload_that_fails_is_resumed(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """The repository is unchanged, and the command in the error sends only what is missing."""
    pushed(run / "checkpoint-2", optimizer_state="full")
    before = hub.repos["me/legs"].files()
    state = (run / "checkpoint-4/optimizer.pt").read_bytes()
    hub.fail("POST", "/commit/")
    with pytest.raises(HubError, match=r"uploading to http:.* failed.*; the same .*: \S*rg-env push .*full"):
        pushed(run, optimizer_state="full")
    assert hub.repos["me/legs"].files() == before
    done = len(hub.sent())
    assert state in hub.objects.values()
    pushed(run, optimizer_state="full")
    assert len(hub.sent()) == done, "every large file was there"
    assert hub.repos["me/legs"].files()["run/checkpoint-4/optimizer.pt"] == state


def test_a_push_to_a_new_branch_is_resumed(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """A new branch starts with the files of the main branch, which the push replaces."""
    hub.add("me/legs", {"model.bin": b"theirs"})
    hub.fail("POST", "/commit/")
    with pytest.raises(HubError):
        pushed(run, revision="mine")
    assert b"theirs" in hub.repos["me/legs"].files("mine").values()
    pushed(run, revision="mine")
    assert b"theirs" not in hub.repos["me/legs"].files("mine").values()
    assert b"theirs" in hub.repos["me/legs"].files().values()


@pytest.mark.parametrize(
    ("prepare", "error", "words"),
    [
        (lambda hub: hub.tokens.clear(), InputError, r"refused access to me/legs \(401.*HF_TOKEN in .env"),
        (lambda hub: hub.tokens.update({CANARY: ("me", False)}), InputError, r"refused access to me/legs \(403"),
        (lambda hub: hub.fail("POST", "create", 409, "taken"), InputError, r"refused access to me/legs \(409: taken\)"),
        (lambda hub: hub.fail("GET", "models", 500, CANARY), HubError, r"with an error \(500: \*\*\*\); the same"),
        (lambda hub: hub.fail("GET", "models"), HubError, r"uploading to http://127.* failed \(.*: check the network"),
        (lambda hub: hub.fail("POST", "validate", 400, "bad head"), HubError, "Invalid metadata in README.md"),
        (lambda hub: hub.fail("GET", "xet", 401, CANARY), (InputError, HubError), "401"),
        (lambda hub: hub.fail("GET", "models/me/legs$", 200, b"<html>"), HubError, r"uploading to http://127.* failed"),
        (lambda hub: hub.fail("POST", "/commit/", 200, b'{"id": 3}'), HubError, r"uploading to http://127.* failed"),
    ],
    ids=["unknown token", "read only", "taken", "500", "dropped", "400", "401", "other server", "other response"],
)
def test_refusals_are_one_line(
    hub: HubServer, run: Path, prepare: Any, error: Any, words: str, caplog: pytest.LogCaptureFixture, pushed: Pushed
) -> None:
    """Neither the message nor a log contains a token, and the next push succeeds once it is permitted."""
    tokens = dict(hub.tokens)
    prepare(hub)
    with caplog.at_level(logging.DEBUG), pytest.raises(error, match=words) as caught:
        pushed(run)
    assert "\n" not in str(caught.value)
    for secret in (CANARY, STORAGE_CANARY):
        assert secret not in f"{caught.value}{caplog.text}"
    hub.tokens = tokens
    _, lines = pushed(run)
    assert CANARY not in "".join(lines)
    assert all(CANARY.encode() not in content for content in hub.repos["me/legs"].files().values())


def test_a_refusal_while_files_are_sent_without_xet(
    hub: HubServer, pushed: Pushed, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub wraps the refusal in another error."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        response = httpx2.Response(403, request=httpx2.Request("PUT", "http://localhost/lfs"), text="no space left")
        raise RuntimeError("Error while uploading 'x' to the Hub.") from HfHubHTTPError("no", response=response)

    monkeypatch.setattr(HfApi, "create_commit", refuse)
    with pytest.raises(InputError, match=r"refused access to me/legs \(403"):
        pushed(run)


def test_a_hub_that_hangs(hub: HubServer, pushed: Pushed, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_module, "TIMEOUT_S", 0.2)
    with hub.lock, pytest.raises(HubError, match=r"uploading to http://127.* failed \(ReadTimeout"):
        pushed(run)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"HF_ENDPOINT": "http://user:canary-word@127.0.0.1:9"}, "HF_ENDPOINT contains a username"),
        ({"HF_TOKEN": "hf_Жabcdefghijklmnopqrst"}, "no Hugging Face token found, or the token contains"),
        ({"HF_TOKEN": ""}, "no Hugging Face token found.* set HF_TOKEN in .env, or run `hf auth login`"),
    ],
    ids=["user", "token", "no token"],
)
def test_unusable_hubs_and_tokens(hub: HubServer, trained: Path, variables: dict[str, str], words: str) -> None:
    """Unusable settings are refused before any request, and secrets are not printed."""
    command = [sys.executable, "-m", "rg_env.cli.main", "push", str(trained), "--repo-id", "me/legs"]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=trained.parent)
    assert done.returncode == 2
    assert re.match(f"error: {words}", done.stderr)
    assert done.stderr.count("\n") == 1
    assert "canary-word" not in done.stderr
    assert hub.requests == []


def test_bad_input_is_one_line(hub: HubServer, run: Path, error_of: Any, tmp_path: Path) -> None:
    """Bad input exits with code 2 before any request."""
    half = Path(shutil.copytree(run / "checkpoint-4", run / "torn"))
    shutil.copytree(POLICY_DIR, run / "half")
    (half / "model.safetensors").write_bytes((half / "model.safetensors").read_bytes()[:-100])
    damaged = Path(shutil.copytree(run, tmp_path / "damaged"))
    (damaged / "manifest.json").write_text("{")
    for path, options, words in (
        ("x" * 5000, [], "is not an existing folder"),
        (half, [], "torn/model.safetensors cannot be read: "),
        (damaged, [], "manifest.json is damaged"),
        (run / "half", ["--optimizer-state", "full"], "has no training state to resume from"),
        (run, ["--repo-id", "legs"], "--repo-id 'legs' is not a repository name: use USER/NAME"),
        (run, ["--repo-id", "me/le\ngs"], "is not a repository"),
        (run, ["--revision", "refs/pr/1"], "is a commit or a reference"),
    ):
        assert words in error_of("push", str(path), "--repo-id", "me/legs", *options)
    assert hub.requests == []


def test_the_token_is_sent_only_to_the_hub(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """The token is sent neither to the storage, which has its own, nor to a server that the Hub redirects to."""
    pushed(run)
    storage = [request for request in hub.requests if re.match(r"/v\d/", request.path)]
    assert storage
    assert not [request for request in storage if request.authorized]
    assert all(request.authorized for request in hub.requests if request.method == "POST" and request not in storage)
    with HubServer() as other:
        hub.fail("POST", "/preupload/", 307, b"", location=other.url)
        with pytest.raises((HubError, InputError)):
            pushed(run / "checkpoint-2")
        assert other.requests
        assert not [request for request in other.requests if request.authorized]


def test_the_command_needs_no_torch(hub: HubServer, trained: Path, tmp_path: Path) -> None:
    """The push command does not import torch. HF_ENDPOINT and HF_TOKEN come from the environment, also for the example
    script."""
    code = f"import sys; from rg_env.cli.main import run; c = run(['push', {str(trained)!r}, '--repo-id', 'me/legs'])"
    code += "; sys.exit(c or int('torch' in sys.modules))"
    example = Path(__file__).parents[2] / "examples/publish.py"
    for program, url in (
        (["-c", code], f"{hub.url}/me/legs"),
        ([str(example), str(trained), "me/legs", "--revision", "other"], f"{hub.url}/me/legs/tree/other"),
    ):
        done = subprocess.run([sys.executable, *program], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == url
    assert "model.safetensors" in hub.repos["me/legs"].files("other")
