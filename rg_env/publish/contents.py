"""Select the files to publish, and keep secrets and local paths out of them.

README.md, rg_env.json         the model card, and the run's marker (see `push`)
config.json, *.safetensors, …  model with its tokenizer, or adapters
reward_curve.png               the run's learning curve
run/                           files from the run; if the optimizer state is included, also rollouts.jsonl and the
                               checkpoint, from which training can resume

Only the files listed by `RunFolder.files` and those that match the patterns in this module are uploaded, so logs,
tracker folders and programs are excluded. Paths to local folders are removed from configs. A link to a file outside the
published folders is an error, and so is a text file that contains a key or token.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.run_folder import RunFolder, read_json, read_yaml
from rg_env.errors import InputError
from rg_env.publish.checkpoint import TOKENIZER, Checkpoint, check_links
from rg_env.tiny import TINY

CURVE = RunFolder(Path()).curve_file.name
Files = dict[str, Path | bytes]
"""Files, or their contents, by path in the repository."""

_MODEL = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "adapter_config.json", "adapter_model*.safetensors", "adapter_model.safetensors.index.json",
    *TOKENIZER, "LICENSE*", "LICENCE*", "NOTICE*",
)  # fmt: skip
_STATE = (
    *_MODEL, "trainer_state.json", "resume.json", "resume_state_*.pt", "previous_policy_*.safetensors",
    "curriculum.json", "optimizer.pt", "scaler.pt", "latest", "**/*_states.pt", "**/.metadata", "**/*.distcp",
)  # fmt: skip
"""Patterns for the files of a checkpoint with training state."""
_TEXTS = (".json", ".jsonl", ".yaml", ".jinja", ".txt", ".md")
_FOLDERS = (("output", "dir"), ("training", "output_dir"), ("training", "logging_dir"))
"""Config keys that name local folders."""
_PATH = re.compile(r"/[^/\s]+/\S+")
"""Pattern for absolute paths with at least two parts, unlike "/" (an operator) or "/no_think" (a prompt)."""
_PROSE = ("prompt", "environment", "system_prompt", "preamble")
_SECRET_NAMES = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_KEYS = re.compile(
    rb"\bhf_[A-Za-z]{34}\b|\bgh[opsu]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{60,}|\bAKIA[0-9A-Z]{16}\b"
    rb"|\bsk-(?:ant-|proj-|or-v1-)?[A-Za-z0-9_-]{32,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Pattern for tokens and keys with a recognizable format."""


def published_files(checkpoint: Checkpoint, *, full: bool) -> Files:
    """Collect all files to publish, except the card and the marker. `full` adds the rollouts and the training state.

    Raises:
        InputError: a file is damaged, or links to a file outside the published folders.
    """
    folder, run = checkpoint.folder, checkpoint.run
    assert run is not None
    found = {file.name: file for file in _matching(folder, _MODEL)}
    for file in run.files():
        if file == run.curve_file:
            found[CURVE] = file
        elif full or file != run.rollouts_file:
            found[f"run/{file.relative_to(run.path).as_posix()}"] = file
    if full:
        for file in _matching(folder, _STATE):
            found[f"{checkpoint.state_path}/{file.relative_to(folder).as_posix()}"] = file
    check_links(found.values(), folder, run.path)
    return {path: _content(checkpoint, run, file) for path, file in found.items()}


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()]


def _content(checkpoint: Checkpoint, run: RunFolder, file: Path) -> Path | bytes:
    """Return `file` or, if the file may contain local paths, its contents without these paths. A run's files are read
    immediately because a run in progress appends to them."""
    if file.name == "adapter_config.json":
        values = publishable(read_json(file))
        if checkpoint.base.on_hub or checkpoint.base.name == TINY:
            values["base_model_name_or_path"] = checkpoint.base.name
    elif file not in run.files():
        return file
    elif file.suffix == ".yaml":
        return to_yaml(publishable(read_yaml(file))).encode()
    elif file == run.results_file:
        values = publishable(read_json(file))
    elif file.parent == run.path:
        return file.read_bytes()
    else:  # the file contains an evaluation
        values = read_json(file)
        for model in (model for task in values["tasks"].values() for model in task["models"].values()):
            model["source"] = _without_paths(model["source"])
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def check_secrets(files: Files, token: str | None = None) -> None:
    """Raise `InputError` if a text file contains `token`, the value of an environment variable whose name ends in KEY,
    TOKEN, SECRET or PASSWORD, or a string that looks like a key. Values with fewer than 16 characters are ignored."""
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
            raise InputError(f"{path} appears to contain a key ({start}...): remove it; nothing was sent")


def publishable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `values` of a config or of results, without paths to local folders and without the `hub` section.

    Other absolute paths are reduced to their last component. `hub` is removed so that others who train with the config
    do not publish to the author's repository.
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
