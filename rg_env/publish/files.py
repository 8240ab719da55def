"""The files that a repository gets, and what is never published.

README.md, rg_env.json         the card, and which run this is (see `repository`)
config.json, *.safetensors, …  the model with its tokenizer, or adapters
reward_curve.png               of the run
run/                           the run's own files; with the optimizer state also the checkpoint and rollouts.jsonl, so
                               that training can resume from it
checkpoint-N/                  with the optimizer state of another trainer: its shards, as they are

Only files that match the lists here are sent: no logs, no folders of trackers, no programs, and nothing behind a link
that leaves the published folders. Folders of this machine are removed from configs, and a text with a key or token in
it is refused.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.run_folder import RunFolder, read_json, read_yaml
from rg_env.errors import InputError
from rg_env.evaluation.config import TINY
from rg_env.publish.checkpoint import Checkpoint

CURVE = RunFolder(Path()).curve_file.name
Files = dict[str, Path | bytes]
"""Path in the repository -> a file, or its content."""

_MODEL = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "adapter_config.json", "adapter_model*.safetensors", "adapter_model.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json",
    "LICENSE*", "LICENCE*", "NOTICE*",
)  # fmt: skip
_STATE = (
    *_MODEL, "pytorch_model*.bin", "pytorch_model.bin.index.json", "trainer_state.json", "resume.json",
    "resume_state_*.pt", "previous_policy_*.safetensors", "curriculum.json", "optimizer.pt", "scaler.pt",
    "scheduler.pt", "rng_state*.pth", "**/latest", "**/*_states.pt", "**/.metadata", "**/*.distcp",
    "**/fsdp_config.json", "**/model_world_size_*.pt", "**/optim_world_size_*.pt", "**/extra_state_world_size_*.pt",
)  # fmt: skip
"""What training resumes from: a run of ours, and other trainers."""
_TEXTS = (".json", ".jsonl", ".yaml", ".jinja", ".txt", ".md")
_FOLDERS = (("output", "dir"), ("training", "output_dir"), ("training", "logging_dir"))
"""Config keys that name folders of this machine."""
_PATH = re.compile(r"/[^/\s]+/\S+")
"""Not "/", which is an operator, nor "/no_think", which is a prompt."""
_PROSE = ("prompt", "environment", "system_prompt", "preamble")
_SECRET_NAMES = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_KEYS = re.compile(
    rb"\bhf_[A-Za-z]{34}\b|\bgh[opsu]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{60,}|\bAKIA[0-9A-Z]{16}\b"
    rb"|\bsk-(?:ant-|proj-|or-v1-)?[A-Za-z0-9_-]{32,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Tokens and keys that can be recognized by their form."""


def published_files(checkpoint: Checkpoint, *, full: bool) -> Files:
    """All files but the card and the marker. `full`: with what training resumes from.

    Raises:
        InputError: a file is damaged, or is a link to a file elsewhere.
    """
    return dict(_published(checkpoint, full))


def check_secrets(files: Files, token: str | None = None) -> None:
    """Raise `InputError` if a text contains `token`, the value of a variable whose name ends in KEY, TOKEN, SECRET or
    PASSWORD, or something that looks like a key."""
    secrets = {f"${name}": value for name, value in os.environ.items() if name.upper().endswith(_SECRET_NAMES)}
    secrets |= {"the Hub's token": token or ""}
    for path, content in files.items():
        if not path.endswith(_TEXTS):
            continue
        text = content if isinstance(content, bytes) else content.read_bytes()
        for name, value in secrets.items():
            if len(value) >= 16 and value.encode(errors="surrogateescape") in text:
                raise InputError(f"{path} contains the value of {name}: remove it; nothing was sent")
        if key := _KEYS.search(text):
            start = key[0][:5].decode()
            raise InputError(f"{path} contains what looks like a key ({start}...): remove it; nothing was sent")


def publishable(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of a config or of results, without folders of this machine and without `hub`.

    Of other paths only the last part stays. Whoever trains with the config of somebody else must not publish to their
    repository.
    """
    plain: dict[str, Any] = _without_paths({key: value for key, value in values.items() if key != "hub"})
    for section, key in _FOLDERS:
        if isinstance(part := plain.get(section), dict):
            part.pop(key, None)
    return plain


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: each if key in _PROSE else _without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    if isinstance(value, str) and _PATH.fullmatch(value):
        return os.path.basename(value.rstrip("/"))
    return value


def _published(checkpoint: Checkpoint, full: bool) -> Iterator[tuple[str, Path | bytes]]:
    folder, run, state = checkpoint.folder, checkpoint.run, checkpoint.state
    roots = [each.resolve() for each in (folder, state, run and run.path) if each]
    roots += [root.parents[1] / "blobs" for root in roots if root.parent.name == "snapshots"]  # the Hub's own cache
    for file in _matching(folder, _MODEL, roots):
        yield file.name, _model_file(checkpoint, file)
    for file in run.files() if run else ():
        _check_link(file, roots)
        if run and file != run.curve_file and (full or file != run.rollouts_file):
            yield f"run/{file.relative_to(run.path).as_posix()}", _record(run, file)
        elif run and file == run.curve_file:
            yield CURVE, file
    if full and state:
        for file in _matching(state, _STATE, roots):
            yield f"{checkpoint.state_path}/{file.relative_to(state).as_posix()}", _model_file(checkpoint, file)


def _matching(folder: Path, patterns: Sequence[str], roots: Sequence[Path]) -> Iterator[Path]:
    for file in dict.fromkeys(file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()):
        _check_link(file, roots)
        yield file


def _check_link(file: Path, roots: Sequence[Path]) -> None:
    if not any(file.resolve().is_relative_to(root) for root in roots):
        raise InputError(f"{file} is a link to {file.resolve()}, which is elsewhere: copy the file to send it")


def _model_file(checkpoint: Checkpoint, file: Path) -> Path | bytes:
    """Adapters name their base model, which may be a folder of this machine."""
    if file.name != "adapter_config.json":
        return file
    values = publishable(read_json(file))
    if checkpoint.base.on_hub or checkpoint.base.name == TINY:
        values["base_model_name_or_path"] = checkpoint.base.name
    return _json(values)


def _record(run: RunFolder, file: Path) -> bytes:
    """The content of a run's file, read now: a live run appends. Evaluations name the folder of their model."""
    if file.suffix == ".yaml":
        return to_yaml(publishable(read_yaml(file))).encode()
    if file == run.results_file:
        return _json(publishable(read_json(file)))
    if file.parent == run.path:
        return file.read_bytes()
    values = read_json(file)
    for model in (model for task in values["tasks"].values() for model in task["models"].values()):
        model["source"] = _without_paths(model["source"])
    return _json(values)


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode(errors="backslashreplace")
