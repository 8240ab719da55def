"""The files that a repository gets, and what is never published.

README.md, rg_env.json         the card, and which run this is (see `repository`)
config.json, *.safetensors, …  the model with its tokenizer, or adapters
reward_curve.png               of the run
run/                           the run's own files; with the optimizer state also the checkpoint and rollouts.jsonl, so
                               that training can resume from it

Only files that match the lists here are sent: no logs, no folders of trackers, no programs, and nothing behind a link
that leaves the published folders. Folders of this machine are removed from configs, and a text with a key or token in
it is refused.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.run_folder import read_json, read_yaml
from rg_env.errors import InputError
from rg_env.evaluation.config import TINY
from rg_env.publish.hub.source import Source

CURVE = "reward_curve.png"
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
    "latest", "global_step*/*_states.pt",
)  # fmt: skip
"""What training resumes from."""
_RECORDS = ("metrics.jsonl", "manifest.json", "eval_results/eval_step_*.json")
_CONFIGS = ("config.yaml", "arguments.yaml", "*_from_step_*.yaml", "train_results.json")
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


def published_files(source: Source, *, full: bool) -> Files:
    """All files but the card and the marker. `full`: with what training resumes from.

    Raises:
        InputError: a file is damaged, or is a link to a file elsewhere.
    """
    return dict(_published(source, full))


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


def _published(source: Source, full: bool) -> Iterator[tuple[str, Path | bytes]]:
    for file in _matching(source, source.folder, _MODEL):
        yield file.name, _model_file(source, file)
    if (run := source.run) is None:
        return
    for file in _matching(source, run.path, (CURVE,)):
        yield CURVE, file
    for file in _matching(source, run.path, _CONFIGS):
        yield f"run/{file.name}", _config_file(file)
    for file in _matching(source, run.path, (*_RECORDS, *(["rollouts.jsonl"] if full else []))):
        content = _evaluation_file(file) if file.parent != run.path else file.read_bytes()  # now: a live run appends
        yield f"run/{_inner(file, run.path)}", content
    if full and source.checkpoint:
        for file in _matching(source, source.checkpoint, _STATE):
            inner = _inner(file, source.checkpoint)
            yield f"run/checkpoint-{source.step}/{inner}", _model_file(source, file)


def _matching(source: Source, folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    roots = [folder, source.folder, *([source.run.path] if source.run else [])]
    roots = [root.resolve() for root in roots]
    roots += [root.parents[1] / "blobs" for root in roots if root.parent.name == "snapshots"]  # the Hub's own cache
    for pattern in patterns:
        for file in sorted(folder.glob(pattern)):
            if not file.is_file():
                continue
            if not any(file.resolve().is_relative_to(root) for root in roots):
                raise InputError(f"{file} is a link to {file.resolve()}, which is elsewhere: copy the file to send it")
            yield file


def _inner(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix()


def _model_file(source: Source, file: Path) -> Path | bytes:
    """Adapters name their base model, which may be a folder of this machine."""
    if file.name != "adapter_config.json":
        return file
    values = publishable(read_json(file))
    if source.base.on_hub or source.base.name == TINY:
        values["base_model_name_or_path"] = source.base.name
    return _json(values)


def _config_file(file: Path) -> bytes:
    if file.suffix == ".json":
        return _json(publishable(read_json(file)))
    return to_yaml(publishable(read_yaml(file))).encode()


def _evaluation_file(file: Path) -> bytes:
    """An evaluation names the folder that its model was loaded from."""
    values = read_json(file)
    for task in values["tasks"].values():
        task["models"] = {
            name: {**each, "source": _without_paths(each["source"])} for name, each in task["models"].items()
        }
    return _json(values)


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode(errors="backslashreplace")
