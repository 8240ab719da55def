"""What a push says where it cannot be, or breaks off: one line, and the repository as it was."""

import json
import logging
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hub_server
import pytest
from hub_server import CANARY, STORAGE_CANARY, HubServer

from rg_env.errors import HubError, InputError
from rg_env.publish.hub import client
from rg_env.tiny import POLICY_DIR

pytestmark = pytest.mark.slow
Pushed = Callable[..., tuple[str, list[str]]]


def test_a_branch_left_by_a_push_that_broke_off_is_taken_up(hub: HubServer, pushed: Pushed, run: Path) -> None:
    hub.add("me/legs", {"model.bin": b"theirs"})
    hub.fail("POST", "/commit/")
    with pytest.raises(HubError):
        pushed(run, revision="mine")
    assert b"theirs" in hub.repos["me/legs"].files("mine").values()
    pushed(run, revision="mine")
    assert b"theirs" not in hub.repos["me/legs"].files("mine").values()
    assert b"theirs" in hub.repos["me/legs"].files().values()


def test_an_upload_that_breaks_off_goes_on(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """The repository stays as it was; the command that the error names sends only what is missing."""
    pushed(run / "checkpoint-2", optimizer_state="full")
    before = hub.repos["me/legs"].files()
    state = (run / "checkpoint-4/optimizer.pt").read_bytes()
    hub.fail("POST", "/commit/")
    with pytest.raises(HubError, match=r"broke off.*no file of me/legs was changed.*rg-env push .*state full$"):
        pushed(run, optimizer_state="full")
    assert hub.repos["me/legs"].files() == before
    done = len(hub.sent())
    assert state in hub.objects.values()
    pushed(run, optimizer_state="full")
    assert len(hub.sent()) == done, "every large file was there"
    assert hub.repos["me/legs"].files()["run/checkpoint-4/optimizer.pt"] == state


def test_a_connection_dropped_in_mid_file(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """Once: it is sent again, within the push. And again, with an address that is no longer good: the next push sends
    that file, and none of those that had arrived."""
    hub.fail("POST", "/xorbs/")
    pushed(run / "checkpoint-2")
    assert "README.md" in hub.repos["me/legs"].files()
    hub.fail("POST", "/xorbs/", status=403)
    with pytest.raises(HubError, match=r"the Hub's storage answered 403; no file of me/legs was changed"):
        pushed(run, optimizer_state="full")
    stored, sent = {*hub.xorbs}, len(hub.sent())
    chunks = {chunk for xorb in hub.xorbs.values() for chunk in xorb}
    pushed(run, optimizer_state="full")
    again = {request.path.rpartition("/")[2] for request in hub.sent()[sent:]}
    assert again, "what was refused"
    assert not again & stored
    assert not chunks & {chunk for xorb in again for chunk in hub.xorbs[xorb]}


def test_a_repository_that_changes_meanwhile(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """What somebody else commits during the upload is not lost."""
    pushed(run / "checkpoint-2")
    hub.fail("POST", "/commit/", status=412)
    with pytest.raises(HubError, match="me/legs was changed by somebody else meanwhile"):
        pushed(run)


@pytest.mark.parametrize(
    ("prepare", "error", "words"),
    [
        (lambda hub: hub.tokens.clear(), InputError, r"does not take the token \(401\).*HF_TOKEN in .env"),
        (lambda hub: hub.tokens.update({CANARY: ("me", False)}), InputError, r"may not write to me/legs \(403\)"),
        (lambda hub: hub.tokens.update({CANARY: ("you", True)}), InputError, r"may not write to me/legs \(403\)"),
        (lambda hub: hub.fail("POST", "create", 409, "taken"), InputError, r"exists already.*\(409\): taken"),
        (lambda hub: hub.fail("GET", "models", 500, CANARY), HubError, r"the Hub answered 500: \*\*\*; no file"),
        (lambda hub: hub.fail("GET", "models", 429), HubError, r"asks to wait .* \(429\)"),
        (lambda hub: hub.fail("GET", "models"), HubError, r"the connection to http://127.*failed or broke off"),
        (lambda hub: hub.fail("POST", "validate", 400, "bad head"), HubError, "the Hub answered 400: bad head"),
        (lambda hub: hub.fail("POST", "validate", -200), HubError, "does not answer as the Hub does: is HF_ENDPOINT"),
        (lambda hub: hub.fail("GET", "xet", 401, CANARY), InputError, r"does not take the token \(401\): HF_TOKEN"),
        (lambda hub: hub.fail("POST", "preupload", 403), InputError, r"may not write to me/legs \(403\)"),
    ],
    ids=["unknown token", "read only", "another's", "taken", "500", "429", "dropped", "400", "no JSON", "401", "403"],
)  # fmt: skip
def test_what_the_hub_refuses_is_one_line(
    hub: HubServer,
    run: Path,
    rg_env: Any,
    prepare: Callable[[HubServer], None],
    error: type[Exception],
    words: str,
    caplog: pytest.LogCaptureFixture,
    pushed: Pushed,
) -> None:
    """Without the token in it, in a log, or in a cause; and the next push succeeds, if it may."""
    tokens = dict(hub.tokens)
    prepare(hub)
    with caplog.at_level(logging.DEBUG), pytest.raises(error, match=words) as caught:
        pushed(run)
    assert "\n" not in str(caught.value)
    assert CANARY not in f"{caught.value}{caplog.text}"
    assert STORAGE_CANARY not in f"{caught.value}{caplog.text}"
    hub.tokens = tokens
    code, out, err = rg_env("push", str(run), "--repo-id", "me/legs")
    assert (code, err) == (0, "")
    assert CANARY not in out
    assert all(CANARY.encode() not in content for content in hub.repos["me/legs"].files().values())


def test_a_user_in_the_endpoint_is_refused(
    hub: HubServer, pushed: Pushed, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their password would go in the place of the token; it is not shown."""
    monkeypatch.setattr(client.constants, "ENDPOINT", hub.url.replace("//", "//user:canary-word@"))
    with pytest.raises(InputError, match="HF_ENDPOINT has a user in it") as caught:
        pushed(run)
    assert "canary-word" not in str(caught.value)
    assert not hub.requests


def test_a_hub_that_is_not_there_or_hangs(
    hub: HubServer, pushed: Pushed, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"the connection to http://127.0.0.1:9 failed"):
        pushed(run)
    monkeypatch.setattr(client.constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(client, "TIMEOUTS", (1.0, 0.2))
    with hub.lock, pytest.raises(HubError, match=r"does not answer: is the network there\?"):
        pushed(run)


def test_bad_input_is_one_line(hub: HubServer, run: Path, rg_env: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Exit code 2, before anything is asked of the Hub."""
    (tmp_path / "empty").mkdir()
    half = Path(shutil.copytree(run / "checkpoint-4", tmp_path / "half"))
    (half / "model.safetensors").write_bytes((half / "model.safetensors").read_bytes()[:-100])
    no_config = Path(shutil.copytree(run, tmp_path / "damaged"))
    (no_config / "manifest.json").write_text("{")
    bare = Path(shutil.copytree(run, tmp_path / "bare"))
    for folder in bare.glob("checkpoint-*"):
        shutil.rmtree(folder)
    exported = Path(shutil.copytree(run / "checkpoint-4", run / "checkpoint-4-export"))
    (exported / "trainer_state.json").unlink()
    good, no_path = ["--repo-id", "me/legs"], ["--repo-id", "legs"]
    for arguments, words in (
        ([str(tmp_path / "nowhere"), *good], "does not exist: give the folder of a run"),
        ([str(run / "config.yaml"), *good], "is a file: give the folder of a run"),
        ([str(tmp_path / "empty"), *good], "is neither a run nor a model"),
        ([str(half), *good], "model.safetensors is damaged, or cannot be read"),
        ([str(no_config), *good], "manifest.json is damaged"),
        ([str(bare), *good], "is a run without a checkpoint-N"),
        ([str(exported), *good, "--optimizer-state", "full"], "has no state that training goes on from"),
        ([str(POLICY_DIR), *good, "--optimizer-state", "full"], "has no state that training goes on from"),
        ([str(run), *no_path], "--repo-id 'legs' is no repository: USER/NAME"),
        ([str(run), "--repo-id", "me/legs/more"], "is no repository"),
        ([str(run), "--repo-id", "me/../legs"], "is no repository"),
        ([str(run), "--repo-id", "me/le\ngs"], "is no repository"),
        ([str(run), *good, "--revision", "refs/pr/1"], "is a commit or a reference"),
        ([str(run), *good, "--revision", "a b"], "is no name of a branch"),
        ([str(run) + "\0", *good], "does not exist"),
    ):
        code, out, err = rg_env("push", *arguments)
        assert (code, out) == (2, ""), arguments
        assert words in err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    monkeypatch.delenv("HF_TOKEN")
    code, _, err = rg_env("push", str(run), *good)
    assert (code, err) == (2, f"error: there is no Hugging Face token: {client.LOGIN}\n")
    assert hub.requests == []
    monkeypatch.setenv("HF_TOKEN", CANARY)
    hub.fail("GET", "models")
    code, _, err = rg_env("push", str(run), *good)
    assert code == 1
    assert err.endswith(f"This goes on: rg-env push {run} --repo-id me/legs\n")


def answered(monkeypatch: pytest.MonkeyPatch, hub: HubServer, pattern: str, content: bytes) -> None:
    """Requests that match `pattern` get `content`, with status 200."""
    real = hub_server._Handler._answer

    def answer(self: Any) -> None:
        if not re.search(pattern, self.path):
            return real(self)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return self._send(200, content)

    for name in ("do_GET", "do_POST", "do_HEAD", "do_PUT"):
        monkeypatch.setattr(hub_server._Handler, name, answer)


@pytest.mark.parametrize("content", [b"null", b"[]", b"{}", b'{"id": 3, "siblings": [1]}', b"[" * 10**5, b"<html>"])
@pytest.mark.parametrize(
    "pattern",
    [r"models/me/legs(\?|$)", "repos/create", "preupload", "xet-write-token", "/xorbs/", "/shards", "/commit/"],
)
def test_answers_of_another_server_are_one_line(
    hub: HubServer, run: Path, rg_env: Any, monkeypatch: pytest.MonkeyPatch, pattern: str, content: bytes
) -> None:
    """Whatever the library looks for in them."""
    answered(monkeypatch, hub, pattern, content)
    code, _, err = rg_env("push", str(run), "--repo-id", "me/legs")
    assert code == 1
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert CANARY not in err


@pytest.mark.parametrize("look", [True, False], ids=["seen", "unseen"])
def test_a_commit_whose_answer_is_lost_may_have_arrived(
    hub: HubServer, pushed: Pushed, run: Path, monkeypatch: pytest.MonkeyPatch, look: bool
) -> None:
    """It is looked up; where that fails, it is not said that nothing was changed, and the same command finds it."""
    real = hub_server._Handler.commit

    def commit(self: Any, *given: Any) -> None:
        monkeypatch.setattr(self, "_json", lambda *_: self.connection.shutdown(socket.SHUT_RDWR), raising=False)
        real(self, *given)
        self.close_connection = True
        if not look:
            hub.fail("GET", "models", 500)

    with monkeypatch.context() as lost:
        lost.setattr(hub_server._Handler, "commit", commit)
        if look:
            assert pushed(run)[0] == f"{hub.url}/me/legs"
        else:
            with pytest.raises(
                HubError, match="broke off while it made the commit; and whether it arrived is not known"
            ):
                pushed(run)
    assert "model.safetensors" in hub.repos["me/legs"].files()
    sent = len(hub.sent())
    pushed(run)
    assert len(hub.sent()) == sent


def test_the_token_goes_to_no_other_server(
    hub: HubServer, pushed: Pushed, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the Hub, or what stands for it, says that something is elsewhere."""
    real = hub_server._Handler._answer
    with HubServer() as other:

        def answer(self: Any) -> None:
            if self.hub is other or "/preupload/" not in self.path:
                return real(self)
            self.rfile.read(int(self.headers["Content-Length"]))
            return self._send(307, b"", Location=f"{other.url}{self.path}")

        for name in ("do_GET", "do_POST"):
            monkeypatch.setattr(hub_server._Handler, name, answer)
        with pytest.raises((HubError, InputError)):
            pushed(run)
        assert other.requests
        assert not [request for request in other.requests if request.authorized]


def test_damaged_files_are_one_line_or_left_out(hub: HubServer, pushed: Pushed, run: Path, rg_env: Any) -> None:
    """Also where a parser gives up, where a folder stands for a file, or a file for a checkpoint."""
    (run / "checkpoint-4/trainer_state.json").write_text("[" * 10**5)
    (run / "checkpoint-9").touch()
    file = run / "eval_results/eval_step_4.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "questions": [3, {"part": "training", "tasks": 3}, {"part": "training"}]}))
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    pushed(run)
    assert "run/metrics.jsonl" not in hub.repos["me/legs"].files()
    for arguments in ([str(run / "checkpoint-4")], ["x" * 5000]):
        weights = run / "checkpoint-4/model.safetensors"
        weights.unlink(missing_ok=True)
        weights.with_name("model.safetensors.index.json").write_text("[" * 10**5)
        code, _, err = rg_env("push", *arguments, "--repo-id", "me/legs")
        assert (code, err.count("\n")) == (2, 1)


def test_a_token_that_cannot_be_one_is_told(hub: HubServer, run: Path, rg_env: Any, monkeypatch: Any) -> None:
    """Before anything is asked."""
    monkeypatch.setenv("HF_TOKEN", "hf_Жabcdefghijklmnopqrst")
    code, _, err = rg_env("push", str(run), "--repo-id", "me/legs")
    assert (code, hub.requests) == (2, [])
    assert err == f"error: the Hugging Face token has characters that no token has: {client.LOGIN}\n"


def test_a_repository_that_another_push_makes_meanwhile(
    hub: HubServer, pushed: Pushed, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of somebody else: the same command goes on."""
    create = hub_server._Handler.create

    def both(self: Any, body: bytes) -> None:
        hub.add("me/legs", {})
        create(self, body)

    with monkeypatch.context() as racing:
        racing.setattr(hub_server._Handler, "create", both)
        with pytest.raises(
            HubError, match=r"me/legs was made by somebody else meanwhile; no file .* This goes on: rg-env"
        ):
            pushed(run)
    pushed(run)
    assert "model.safetensors" in hub.repos["me/legs"].files()
