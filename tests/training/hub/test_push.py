"""What reaches a repository, and what does not: over HTTP, by the protocol of the Hub."""

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
import torch
from hub_runs import train
from hub_server import CANARY, HubServer
from huggingface_hub import constants
from safetensors.torch import load_file

from rg_env.errors import HubError, InputError
from rg_env.tiny import POLICY_DIR
from rg_env.training.hub import client
from rg_env.training.hub.push import Asked, preview

pytestmark = pytest.mark.slow
Pushed = Callable[..., tuple[str, list[str]]]
MODEL = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
RECORDS = {"run/config.yaml", "run/manifest.json", "run/metrics.jsonl", "run/eval_results/eval_step_0.json"}


def test_a_repository_gets_model_card_and_records(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """To the byte, in one commit, and nothing else that lies in the folder."""
    for name in (".env", "notes.txt", "wandb/secret.log", "checkpoint-4/evil.py", "tensorboard/x"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("not to be sent")
    url, lines = pushed(run)
    files = hub.repos["me/legs"].files()
    assert url == f"{hub.url}/me/legs"
    assert {*MODEL, *RECORDS, "README.md", "rg_env.json", "reward_curve.png"} <= set(files)
    assert not [
        path for path in files if "checkpoint" in path or "rollouts" in path or b"not to be sent" in files[path]
    ]
    for name in MODEL:
        assert files[name] == (run / "checkpoint-4" / name).read_bytes()
    assert files["run/metrics.jsonl"] == (run / "metrics.jsonl").read_bytes()
    assert len(hub.repos["me/legs"].branches["main"]) == 2, "the Hub's own commit, and one"
    assert not hub.repos["me/legs"].private
    assert lines[0] == "made me/legs"
    assert lines[1].startswith(f"sending {len(files) - 1} files, ")


def test_no_path_of_the_machine_is_published(hub: HubServer, pushed: Pushed, run: Path) -> None:
    pushed(run, optimizer_state="full")
    for path, content in hub.repos["me/legs"].files().items():
        assert str(run).encode() not in content, path
        assert b"/run/checkpoint" not in content or path == "README.md", path
        assert str(POLICY_DIR).encode() not in content, path
    assert b"\n  output_dir:" not in hub.repos["me/legs"].files()["run/arguments.yaml"]


def test_the_optimizers_state_comes_with_the_checkpoint(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """All but training_args.bin, a pickle that nothing reads; equal weights are sent once."""
    pushed(run / "checkpoint-2", optimizer_state="full", private=True)
    files = hub.repos["me/legs"].files()
    there = {path.name for path in (run / "checkpoint-2").iterdir()} - {"training_args.bin"}
    assert {path.rpartition("/")[2] for path in files if path.startswith("run/checkpoint-2/")} == there
    assert files["model.safetensors"] == files["run/checkpoint-2/model.safetensors"]
    weights = (run / "checkpoint-2/model.safetensors").stat().st_size
    assert [request.length for request in hub.sent()].count(weights) == 1
    assert hub.repos["me/legs"].private


def test_a_dry_run_sends_nothing_and_needs_no_token(
    hub: HubServer, run: Path, monkeypatch: pytest.MonkeyPatch, rg_env: Any, pushed: Pushed
) -> None:
    """It lists what a push sends, with sizes, and prints the card."""
    monkeypatch.delenv("HF_TOKEN")
    code, out, _ = rg_env("push", str(run), "--repo-id", "me/legs", "--dry-run", "--private")
    assert (code, hub.requests) == (0, [])
    monkeypatch.setenv("HF_TOKEN", CANARY)
    pushed(run, private=True)
    files = hub.repos["me/legs"].files()
    card = files["README.md"].decode()
    assert out.endswith(card)
    listed = dict(reversed(line.split()) for line in out.partition("\n\n")[0].splitlines()[1:])
    sizes = {path: f"{len(content):,}" for path, content in files.items()}
    assert listed == {path: size for path, size in sizes.items() if path != ".gitattributes"}
    total = sum(map(len, files.values())) - len(files[".gitattributes"])
    assert out.splitlines()[0] == f"{len(listed)} files, {total / 1e6:,.1f} MB, to me/legs, private; nothing was sent"


def test_a_dry_run_of_what_is_exported_first(pushed: Pushed, run: Path, hub: HubServer) -> None:
    """It lists all but the model's files, and the card is the one that is sent."""
    weights = load_file(run / "checkpoint-4/model.safetensors")
    torch.save(weights, run / "checkpoint-4/pytorch_model.bin")
    (run / "checkpoint-4/model.safetensors").unlink()
    shown = preview(Asked(run, "me/legs"))
    pushed(run)
    files = hub.repos["me/legs"].files()
    assert shown.endswith(files["README.md"].decode())
    listed = {line.split()[-1] for line in shown.partition("\n\n")[0].splitlines()[1:]}
    assert listed == {path for path in files if "/" in path} | {"README.md", "reward_curve.png", "rg_env.json"}
    assert shown.startswith(f"{len(listed)} files and the model's, ")
    assert "checkpoint-4 is exported first (rg-env export): the model's files are not known yet)" in shown


def test_what_a_card_will_not_say_is_told_in_time(pushed: Pushed, run: Path, tmp_path: Path) -> None:
    """Of an export that lies in no run, or under a name that tells no step; and how to mend it."""
    elsewhere = Path(shutil.copytree(POLICY_DIR, tmp_path / "elsewhere/model"))
    nameless = Path(shutil.copytree(POLICY_DIR, run / "half-2.0"))
    for folder, words in (
        (elsewhere, f"no run is known of {elsewhere}, so its card has no results: push the run, or "),
        (nameless, f"nothing tells the step of {nameless}, so its card has no results after training: call it "),
    ):
        assert f"\n({words}" in preview(Asked(folder, "me/legs"))
        assert pushed(folder, repo_id=f"me/{folder.name}")[1][0].startswith(words)
    assert preview(Asked(nameless, "me/legs")).find(f"call it {run}/checkpoint-N-half-2.0)") > 0
    named = nameless.rename(run / "checkpoint-4-half-2.0")
    assert not [line for line in pushed(named, repo_id="me/named")[1] if "results" in line]


def test_an_earlier_step_in_the_place_of_a_later_one_is_told(pushed: Pushed, run: Path) -> None:
    told = "step 2 takes the place of a later one, step 4"
    assert told not in pushed(run)[1]
    assert told in pushed(run / "checkpoint-2")[1]
    assert told not in pushed(run / "checkpoint-2")[1]


def test_a_lora_runs_checkpoint_names_no_folder_of_the_machine(hub: HubServer, pushed: Pushed, tmp_path: Path) -> None:
    """Not in the card that PEFT writes into each, either."""
    run = tmp_path / "lora"
    train(f"output.dir={run}", "lora={r: 2}", "training.max_steps=1", "evaluation.before=false", "evaluation.every=0")
    assert str(POLICY_DIR) in (run / "checkpoint-1/README.md").read_text(), "PEFT names it"
    pushed(run, optimizer_state="full")
    files = hub.repos["me/legs"].files()
    assert "run/checkpoint-1/adapter_model.safetensors" in files
    assert not [path for path, content in files.items() if str(POLICY_DIR).encode() in content]
    assert b"- adapters, tokenizer and configuration: at the top" in files["README.md"]


def test_the_same_run_is_pushed_again(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """Also from elsewhere, and with more or less; what was sent before and is not now goes, what others added stays."""
    pushed(run / "checkpoint-2", optimizer_state="full")
    repo = hub.repos["me/legs"]
    repo.branches["main"].append(hub.commit(repo.branches["main"], {**repo.files(), "LICENSE": b"theirs"}))
    moved = run.rename(run.with_name("elsewhere"))
    _, lines = pushed(moved)
    files = repo.files()
    assert files["LICENSE"] == b"theirs"
    assert not [path for path in files if "checkpoint" in path]
    assert files["model.safetensors"] == (moved / "checkpoint-4/model.safetensors").read_bytes()
    assert any("taking away what was pushed earlier" in line for line in lines)
    assert json.loads(files["rg_env.json"])["step"] == 4
    there = "all of it was there already: nothing has changed"
    commits = len(repo.branches["main"])
    assert there not in lines
    assert pushed(moved)[1][-1] == there
    assert len(repo.branches["main"]) == commits


def test_a_card_that_was_edited_there_stays(hub: HubServer, pushed: Pushed, run: Path) -> None:
    pushed(run)
    repo = hub.repos["me/legs"]
    mine = repo.files()["README.md"] + b"\nWhat I found besides.\n"
    repo.branches["main"].append(hub.commit(repo.branches["main"], {**repo.files(), "README.md": mine}))
    for _ in range(2):
        _, lines = pushed(run / "checkpoint-2")
        assert lines[0].startswith("README.md was edited on the Hub and stays")
        assert repo.files()["README.md"] == mine
    assert repo.files()["model.safetensors"] == (run / "checkpoint-2/model.safetensors").read_bytes()


@pytest.mark.parametrize("files", [{"model.bin": b"theirs"}, {"README.md": b"# mine"}], ids=["a model", "a card"])
def test_other_content_is_not_overwritten(hub: HubServer, pushed: Pushed, run: Path, files: dict[str, bytes]) -> None:
    """A branch of its own holds the run and nothing else."""
    repo = hub.add("me/legs", files)
    with pytest.raises(InputError, match=r"me/legs holds other files \(.*which is not overwritten.*--revision NAME"):
        pushed(run)
    assert repo.files().keys() == {".gitattributes", *files}
    assert not hub.sent()
    url, _ = pushed(run, revision="legs/v2")
    assert url.endswith("/me/legs/tree/legs/v2")
    assert repo.files().keys() == {".gitattributes", *files}
    assert repo.files("legs/v2").keys() >= {*MODEL, "rg_env.json"}
    assert files.items().isdisjoint(repo.files("legs/v2").items())
    pushed(run / "checkpoint-2", revision="legs/v2")


def test_another_run_is_not_overwritten(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """Not even one from the same config: its times differ."""
    pushed(run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    first = json.loads(lines[0]) | {"time/evaluation": 12.5}
    (run / "metrics.jsonl").write_text("".join([json.dumps(first) + "\n", *lines[1:]]))
    with pytest.raises(InputError, match=r"me/legs holds another run, which is not overwritten"):
        pushed(run)


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
    weights = (run / "checkpoint-4/optimizer.pt").stat().st_size
    first = len(hub.sent())
    hub.fail("POST", "/commit/")
    with pytest.raises(HubError, match=r"broke off.*no file of me/legs was changed.*rg-env push .*state full$"):
        pushed(run, optimizer_state="full")
    assert hub.repos["me/legs"].files() == before
    done = len(hub.sent())
    assert weights in [request.length for request in hub.sent()[first:]]
    pushed(run, optimizer_state="full")
    assert len(hub.sent()) == done, "every large file was there"
    assert (
        hub.repos["me/legs"].files()["run/checkpoint-4/optimizer.pt"]
        == (run / "checkpoint-4/optimizer.pt").read_bytes()
    )


def test_a_connection_dropped_in_mid_file(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """Once: it is sent again, within the push. And again, with an address that is no longer good: the next push sends
    that file, and none of those that had arrived."""
    hub.fail("PUT", "/lfs/")
    pushed(run / "checkpoint-2")
    assert "README.md" in hub.repos["me/legs"].files()
    hub.fail("PUT", "/lfs/", status=403)
    with pytest.raises(HubError, match=r"the Hub's storage answered 403; no file of me/legs was changed"):
        pushed(run, optimizer_state="full")
    stored, sent = set(hub.objects), len(hub.sent())
    pushed(run, optimizer_state="full")
    again = {request.path.rpartition("/")[2] for request in hub.sent()[sent:]}
    assert again, "what was refused"
    assert not again & stored


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
        (lambda hub: hub.fail("POST", "batch", 401, CANARY), InputError, r"does not take the token \(401\): \*\*\*"),
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
    assert "signed-address" not in f"{caught.value}{caplog.text}"
    hub.tokens = tokens
    code, out, err = rg_env("push", str(run), "--repo-id", "me/legs")
    assert (code, err) == (0, "")
    assert CANARY not in out
    assert all(CANARY.encode() not in content for content in hub.repos["me/legs"].files().values())


def test_a_user_in_the_endpoint_is_refused(
    hub: HubServer, pushed: Pushed, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their password would go in the place of the token; it is not shown."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url.replace("//", "//user:canary-word@"))
    with pytest.raises(InputError, match="HF_ENDPOINT has a user in it") as caught:
        pushed(run)
    assert "canary-word" not in str(caught.value)
    assert not hub.requests


def test_the_token_goes_to_the_hub_alone(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """Not to the storage, whose addresses are signed."""
    pushed(run)
    assert hub.sent()
    assert not [request for request in hub.sent() if request.authorized]
    assert all(request.authorized for request in hub.sent("POST"))


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


def test_a_file_with_a_key_in_it_is_not_sent(
    hub: HubServer, pushed: Pushed, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that a system prompt, or a model, repeats."""
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5, "note": CANARY}) + "\n")
    with pytest.raises(InputError, match=r"run/metrics.jsonl holds the value of \$HF_TOKEN: take it out") as caught:
        pushed(run)
    assert CANARY not in str(caught.value)
    assert not hub.repos or not hub.sent()
    monkeypatch.setenv("MY_API_KEY", "abcdefghijklmnopqrst")
    monkeypatch.delenv("HF_TOKEN")
    (run / "checkpoint-4/chat_template.jinja").write_text("abcdefghijklmnopqrst")
    with pytest.raises(InputError, match=r"chat_template.jinja holds the value of \$MY_API_KEY"):
        preview(Asked(run, "me/legs"))


def test_a_private_push_shows_nothing_to_all(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """Into a repository that is public."""
    pushed(run)
    with pytest.raises(InputError, match="me/legs exists and is public: make it private in its settings"):
        pushed(run, private=True)


def test_a_model_folder_alone(hub: HubServer, pushed: Pushed, tmp_path: Path) -> None:
    """With a card that claims nothing; again from the same weights, not from others."""
    folder = Path(shutil.copytree(POLICY_DIR, tmp_path / "model"))
    pushed(folder)
    files = hub.repos["me/legs"].files()
    assert b"nothing that was measured is known" in files["README.md"]
    assert not [path for path in files if path.startswith("run/")]
    pushed(folder)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="holds another run"):
        pushed(folder)


def test_the_licence_is_looked_up_on_the_hub(hub: HubServer, pushed: Pushed, run: Path, rg_env: Any) -> None:
    """In the card of the base model; a dry run asks nobody, and says so."""
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("name: tiny", "name: org/base", 1))
    card = b"---\nlicense: other\nlicense_name: base-1\nlicense_link: https://org.example/licence\n---\n# base\n"
    hub.add("org/base", {"README.md": card})
    shown = rg_env("push", str(run), "--repo-id", "me/legs", "--dry-run")[1]
    assert "(the licence of org/base is looked up when it is sent)" in shown
    assert hub.requests == []
    pushed(run)
    found = hub.repos["me/legs"].files()["README.md"].decode()
    for line in ("license: other", "license_name: base-1", "base_model: org/base", "base_model_relation: finetune"):
        assert f"\n{line}\n" in found
    assert "Licence of the base model: `other` (base-1), as its card on the Hub says." in found
    hub.fail("GET", "org/base", 500)
    pushed(run)
    found = hub.repos["me/legs"].files()["README.md"].decode()
    assert "Its licence is not known from its files" in found
    assert "\nlicense:" not in found


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


def test_nothing_that_a_link_leads_to_elsewhere_is_sent(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """Such as somebody's key, under a name that is sent; a link within the run is followed."""
    secret = run.parent / "id_rsa"
    secret.write_text("not to be sent")
    (run / "checkpoint-4/NOTICE").symlink_to(run / "manifest.json")
    for name in ("checkpoint-4/LICENSE", "reward_curve.png", "eval_results/eval_step_9.json", "checkpoint-4/scaler.pt"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret)
        with pytest.raises(InputError, match=rf"{name} leads to {secret}, which is elsewhere"):
            pushed(run, optimizer_state="full")
        (run / name).unlink()
    assert not hub.repos
    pushed(run)
    assert hub.repos["me/legs"].files()["NOTICE"] == (run / "manifest.json").read_bytes()


def test_a_model_in_the_hubs_cache_is_sent(hub: HubServer, pushed: Pushed, tmp_path: Path) -> None:
    """Its files are links to where the cache keeps them."""
    blobs, folder = tmp_path / "models--a--b/blobs", tmp_path / "models--a--b/snapshots/abc"
    shutil.copytree(POLICY_DIR, blobs)
    folder.mkdir(parents=True)
    for file in blobs.iterdir():
        (folder / file.name).symlink_to(f"../../blobs/{file.name}")
    pushed(folder)
    assert hub.repos["me/legs"].files()["model.safetensors"] == (blobs / "model.safetensors").read_bytes()


def test_of_a_checkpoint_only_its_own_files_are_sent(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """With the optimizer's state, too."""
    for name in ("id_rsa", "secrets.json", "nohup.out", "run.sh", "wandb/debug.log", "__pycache__/x.pyc", ".env"):
        (run / "checkpoint-4" / name).parent.mkdir(exist_ok=True)
        (run / "checkpoint-4" / name).write_text("not to be sent")
    shards = run / "checkpoint-4/global_step4/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    shards.parent.mkdir()
    shards.write_bytes(b"a shard")
    pushed(run, optimizer_state="full")
    files = hub.repos["me/legs"].files()
    assert not [path for path, content in files.items() if content == b"not to be sent"]
    assert files[f"run/{shards.relative_to(run)}"] == b"a shard"


@pytest.mark.parametrize(
    "key",
    [
        "hf_" + "abCD" * 8 + "ef", "ghp_" + "a1B2" * 9, "AKIA" + "ABCD1234" * 2, "sk-proj-" + "a1B2" * 10,
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)  # fmt: skip
def test_what_looks_like_a_key_is_not_sent(hub: HubServer, pushed: Pushed, run: Path, key: str) -> None:
    """Though no variable has it: as an option of a config, or in an answer."""
    with (run / "config.yaml").open("a") as file:
        file.write(f"\nnotes: '{key}'\n")
    with pytest.raises(InputError, match=r"^run/config.yaml holds what looks like a key \(.{5}\.\.\.\)") as told:
        pushed(run)
    assert key not in str(told.value)
    assert not hub.repos


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
@pytest.mark.parametrize("pattern", [r"models/me/legs(\?|$)", "repos/create", "preupload", "objects/batch", "/commit/"])
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
