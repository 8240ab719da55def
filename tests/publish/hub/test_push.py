"""What reaches a repository, and what does not: over HTTP, by the protocol of the Hub."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_runs import train
from hub_server import CANARY, HubServer
from safetensors.torch import load_file

from rg_env.errors import InputError
from rg_env.publish.hub.push import preview
from rg_env.tiny import POLICY_DIR
from rg_env.training.hub_uploads import PushRequest

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
    """All that training resumes from, and no file of anything else's; equal weights are sent once."""
    there = {path.name for path in (run / "checkpoint-2").iterdir()}
    for name in ("curriculum.json", "previous_policy_0.safetensors", "training_args.bin"):
        (run / "checkpoint-2" / name).write_text("{}")
    pushed(run / "checkpoint-2", optimizer_state="full", private=True)
    files = hub.repos["me/legs"].files()
    there |= {"curriculum.json", "previous_policy_0.safetensors"}
    assert {path.rpartition("/")[2] for path in files if path.startswith("run/checkpoint-2/")} == there
    assert files["model.safetensors"] == files["run/checkpoint-2/model.safetensors"]
    chunks = [chunk for xorb in hub.xorbs.values() for chunk in xorb]
    assert len(chunks) == len(set(chunks))
    assert len(hub.sent()) == len(hub.xorbs), "none twice"
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
    shown = preview(PushRequest(run, "me/legs"))
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
        assert f"\n({words}" in preview(PushRequest(folder, "me/legs"))
        assert pushed(folder, repo_id=f"me/{folder.name}")[1][0].startswith(words)
    assert preview(PushRequest(nameless, "me/legs")).find(f"call it {run}/checkpoint-N-half-2.0)") > 0
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


def test_the_token_goes_to_the_hub_alone(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """Not to the storage, which has a token of its own."""
    pushed(run)
    assert hub.sent()
    storage = [request for request in hub.requests if re.match(r"/v\d/", request.path)]
    assert not [request for request in storage if request.authorized]
    assert all(request.authorized for request in hub.requests if request.method == "POST" and request not in storage)


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
        preview(PushRequest(run, "me/legs"))


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
