"""Tests of what is uploaded to a repository, and what never is, over HTTP with the Hub's protocol."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_runs import train
from hub_server import CANARY, HubServer
from huggingface_hub import snapshot_download
from peft import PeftModel
from transformers import AutoModelForCausalLM

from rg_env.errors import InputError
from rg_env.publish.push import PushRequest, preview
from rg_env.tiny import POLICY_DIR

pytestmark = pytest.mark.slow
Pushed = Callable[..., tuple[str, list[str]]]
MODEL = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
PRIVATE = b"not to be sent"
RECORDS = {"run/config.yaml", "run/manifest.json", "run/metrics.jsonl", "run/eval_results/eval_step_0.json"}


def write_private(run: Path) -> None:
    for name in (".env", "notes.txt", "wandb/secret.log", "checkpoint-4/evil.py", "checkpoint-2/id_rsa",
                 "checkpoint-2/secrets.json", "checkpoint-2/nohup.out", "checkpoint-2/wandb/debug.log"):  # fmt: skip
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(PRIVATE)


def test_a_repository_gets_model_card_and_records(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """The files arrive byte for byte in one commit, without other files of the folder."""
    write_private(run)
    url, lines = pushed(run)
    files = hub.repos["me/legs"].files()
    assert url == f"{hub.url}/me/legs"
    assert {*MODEL, *RECORDS, "README.md", "rg_env.json", "reward_curve.png"} <= set(files)
    assert not [path for path in files if "checkpoint" in path or "rollouts" in path or PRIVATE in files[path]]
    for name in MODEL:
        assert files[name] == (run / "checkpoint-4" / name).read_bytes()
    assert files["run/metrics.jsonl"] == (run / "metrics.jsonl").read_bytes()
    assert len(hub.repos["me/legs"].branches["main"]) == 2, "the Hub's own commit, and one"
    assert not hub.repos["me/legs"].private
    assert lines[0] == "creating me/legs"
    assert lines[1].startswith(f"sending {len(files) - 1} files (")


def test_the_optimizer_state_is_sent_with_the_checkpoint(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """All files needed to resume training are sent, without other files or local paths; equal weights are sent once."""
    there = {path.name for path in (run / "checkpoint-2").iterdir()}
    write_private(run)
    for name in ("curriculum.json", "previous_policy_0.safetensors", "training_args.bin"):
        (run / "checkpoint-2" / name).write_text("{}")
    shard = run / "checkpoint-2/global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    shard.parent.mkdir()
    shard.write_bytes(b"a shard")
    pushed(run / "checkpoint-2", optimizer_state="full", private=True)
    files = hub.repos["me/legs"].files()
    there |= {"curriculum.json", "previous_policy_0.safetensors", shard.name}
    assert PRIVATE not in files.values()
    assert {path.rpartition("/")[2] for path in files if path.startswith("run/checkpoint-2/")} == there
    assert files["model.safetensors"] == files["run/checkpoint-2/model.safetensors"]
    chunks = [chunk for xorb in hub.xorbs.values() for chunk in xorb]
    assert len(chunks) == len(set(chunks))
    assert len(hub.sent()) == len(hub.xorbs), "none twice"
    assert hub.repos["me/legs"].private
    for path, content in files.items():  # no local paths
        assert str(run).encode() not in content, path
        assert b"/run/checkpoint" not in content or path == "README.md", path
        assert str(POLICY_DIR).encode() not in content, path
    assert b"\n  output_dir:" not in files["run/arguments.yaml"]


def test_a_dry_run_needs_no_token(hub: HubServer, run: Path, environ: Any, rg_env: Any, pushed: Pushed) -> None:
    """The dry run lists the files that a push sends, with their sizes, and prints the card."""
    environ(HF_TOKEN=None)
    code, out, _ = rg_env("push", str(run), "--repo-id", "me/legs", "--dry-run", "--private")
    assert (code, hub.requests) == (0, [])
    environ(HF_TOKEN=CANARY)
    pushed(run, private=True)
    files = hub.repos["me/legs"].files()
    card = files["README.md"].decode()
    assert out.endswith(card)
    listed = dict(reversed(line.split()) for line in out.partition("\n\n")[0].splitlines()[1:])
    sizes = {path: f"{len(content):,}" for path, content in files.items()}
    assert listed == {path: size for path, size in sizes.items() if path != ".gitattributes"}
    total = sum(map(len, files.values())) - len(files[".gitattributes"])
    sent = f"{len(listed)} files, {total / 1e6:,.1f} MB"
    assert out.splitlines()[0] == f"{sent}, would be sent to me/legs, private; nothing was sent"


def test_a_lora_checkpoint_is_sent_without_local_paths(hub: HubServer, pushed: Pushed, tmp_path: Path) -> None:
    """PEFT's own card in each checkpoint contains the base model's path, which must not be published. PEFT loads the
    downloaded adapters."""
    run = tmp_path / "lora"
    train(f"output.dir={run}", "lora={r: 2}", "training.max_steps=1", "evaluation.before=false", "evaluation.every=0")
    assert str(POLICY_DIR) in (run / "checkpoint-1/README.md").read_text(), "PEFT names it"
    pushed(run, optimizer_state="full")
    files = hub.repos["me/legs"].files()
    assert "run/checkpoint-1/adapter_model.safetensors" in files
    assert not [path for path, content in files.items() if str(POLICY_DIR).encode() in content]
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "tiny"
    for text in ("- adapters, tokenizer and configuration: in the top folder", "library_name: peft",
                 "PeftModel.from_pretrained(model"):  # fmt: skip
        assert text.encode() in files["README.md"]
    folders = snapshot_download("me/legs", endpoint=hub.url, local_dir=tmp_path / "legs"), run / "checkpoint-1"
    models = [PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(POLICY_DIR), each) for each in folders]
    downloaded, trained = (model(torch.tensor([[5, 6, 7]])).logits for model in models)
    assert torch.equal(downloaded, trained)


def test_the_same_run_can_be_pushed_again(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """The run may have moved or have fewer files: rg-env's earlier files are deleted and others are kept. A different
    run is refused."""
    pushed(run / "checkpoint-2", optimizer_state="full")
    repo = hub.repos["me/legs"]
    repo.commit({**repo.files(), "LICENSE": b"theirs"})
    moved = run.rename(run.with_name("elsewhere"))
    _, lines = pushed(moved)
    files = repo.files()
    assert files["LICENSE"] == b"theirs"
    assert not [path for path in files if "checkpoint" in path]
    assert files["model.safetensors"] == (moved / "checkpoint-4/model.safetensors").read_bytes()
    assert any(line.startswith("deleting earlier files") for line in lines)
    assert json.loads(files["rg_env.json"])["step"] == 4
    there = "everything is up to date, so nothing was sent"
    commits = len(repo.branches["main"])
    assert not [line for line in lines if "replaces" in line]
    assert there not in lines
    assert pushed(moved)[1][-1] == there
    assert len(repo.branches["main"]) == commits
    assert "step 2 replaces the later step 4" in pushed(moved / "checkpoint-2")[1]
    with pytest.raises(InputError, match="me/legs exists and is public: make it private in its settings"):
        pushed(moved, private=True)
    metrics = (moved / "metrics.jsonl").read_text().splitlines(keepends=True)
    other = json.dumps(json.loads(metrics[0]) | {"time/evaluation": 12.5}) + "\n"
    (moved / "metrics.jsonl").write_text("".join([other, *metrics[1:]]))
    with pytest.raises(InputError, match=r"me/legs contains another run, which rg-env does not overwrite"):
        pushed(moved)  # same config, but different times


def test_a_card_that_was_edited_on_the_hub_is_kept(hub: HubServer, pushed: Pushed, run: Path) -> None:
    pushed(run)
    repo = hub.repos["me/legs"]
    mine = repo.files()["README.md"] + b"\nWhat I found besides.\n"
    repo.commit({**repo.files(), "README.md": mine})
    for _ in range(2):
        _, lines = pushed(run / "checkpoint-2")
        assert lines[0].startswith("README.md was edited on the Hub and is kept")
        assert repo.files()["README.md"] == mine
    assert repo.files()["model.safetensors"] == (run / "checkpoint-2/model.safetensors").read_bytes()


@pytest.mark.parametrize("files", [{"model.bin": b"theirs"}, {"README.md": b"# mine"}], ids=["a model", "a card"])
def test_other_content_is_not_overwritten(hub: HubServer, pushed: Pushed, run: Path, files: dict[str, bytes]) -> None:
    """With --revision, a branch is created that has only the run's files."""
    repo = hub.add("me/legs", files)
    with pytest.raises(InputError, match=r"me/legs contains other files \(.*does not overwrite.*--revision NAME"):
        pushed(run)
    assert repo.files().keys() == {".gitattributes", *files}
    assert not hub.sent()
    url, _ = pushed(run, revision="legs/v2")
    assert url.endswith("/me/legs/tree/legs/v2")
    assert repo.files().keys() == {".gitattributes", *files}
    assert repo.files("legs/v2").keys() >= {*MODEL, "rg_env.json"}
    assert files.items().isdisjoint(repo.files("legs/v2").items())
    pushed(run / "checkpoint-2", revision="legs/v2")


def test_a_model_without_a_run_is_refused(pushed: Pushed, tmp_path: Path) -> None:
    """Its card would be empty, so the error names the command that uploads the folder."""
    folder = Path(shutil.copytree(POLICY_DIR, tmp_path / "model"))
    with pytest.raises(InputError, match=f"no run was found for {folder}, .*`hf upload me/legs {folder}`"):
        pushed(folder)


def test_the_license_is_looked_up_on_the_hub(hub: HubServer, pushed: Pushed, run: Path, rg_env: Any) -> None:
    """The license is read from the base model's card; a dry run only reports that it will be looked up."""
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("name: tiny", "name: org/base", 1))
    card = b"---\nlicense: other\nlicense_name: base-1\nlicense_link: https://org.example/license\n---\n# base\n"
    hub.add("org/base", {"README.md": card})
    shown = rg_env("push", str(run), "--repo-id", "me/legs", "--dry-run")[1]
    assert "(the license of org/base will be looked up on upload)" in shown
    assert hub.requests == []
    pushed(run)
    found = hub.repos["me/legs"].files()["README.md"].decode()
    for line in ("license: other", "license_name: base-1", "base_model: org/base", "base_model_relation: finetune"):
        assert f"\n{line}\n" in found
    assert "License of the base model: `other` (`base-1`), as stated by the base model's card on the Hub." in found
    hub.fail("GET", "org/base", 500)
    pushed(run)
    found = hub.repos["me/legs"].files()["README.md"].decode()
    assert "The license of the base model cannot be determined from its files" in found
    assert "\nlicense:" not in found


def test_links_to_other_folders_are_refused(hub: HubServer, pushed: Pushed, run: Path) -> None:
    """A link could publish a key under a harmless name. Links within the run are followed."""
    secret = run.parent / "id_rsa"
    secret.write_text("not to be sent")
    (run / "checkpoint-4/NOTICE").symlink_to(run / "manifest.json")
    for name in ("checkpoint-4/LICENSE", "reward_curve.png", "eval_results/eval_step_9.json", "checkpoint-4/scaler.pt"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret)
        with pytest.raises(InputError, match=rf"{name} is a link to {secret}, which is outside the published folders"):
            pushed(run, optimizer_state="full")
        (run / name).unlink()
    assert not hub.repos
    pushed(run)
    assert hub.repos["me/legs"].files()["NOTICE"] == (run / "manifest.json").read_bytes()


KEYS = ("hf_" + "abCD" * 8 + "ef", "ghp_" + "a1B2" * 9, "AKIA" + "ABCD1234" * 2, "sk-proj-" + "a1B2" * 10,
        "-----BEGIN OPENSSH PRIVATE KEY-----")  # fmt: skip


def test_keys_are_not_sent(hub: HubServer, pushed: Pushed, run: Path, environ: Callable[..., None]) -> None:
    """Strings that look like keys and values of secret variables are neither sent nor quoted in errors."""
    config = (run / "config.yaml").read_text()
    for key in KEYS:
        (run / "config.yaml").write_text(f"{config}\nnotes: '{key}'\n")
        with pytest.raises(InputError, match="appears to contain a key") as error:
            pushed(run)
        assert key not in str(error.value)
    (run / "config.yaml").write_text(config)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5, "note": CANARY}) + "\n")
    with pytest.raises(InputError, match=r"run/metrics.jsonl contains the value of \$HF_TOKEN: remove it") as error:
        pushed(run)
    assert CANARY not in str(error.value)
    assert not hub.repos
    environ(MY_API_KEY="abcdefghijklmnopqrst", HF_TOKEN=None)
    (run / "checkpoint-4/chat_template.jinja").write_text("abcdefghijklmnopqrst")
    with pytest.raises(InputError, match=r"chat_template.jinja contains the value of \$MY_API_KEY"):
        preview(PushRequest(run, "me/legs"))
