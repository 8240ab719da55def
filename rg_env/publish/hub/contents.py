"""Which files a repository gets, and what stands in them.

README.md, rg_env.json         the card, and which run this is
config.json, *.safetensors, …  the model with its tokenizer, or adapters
reward_curve.png               of the run
run/                           the run's own files, and with the optimizer's state the checkpoint
                               and rollouts.jsonl: a folder to go on in

Only what is named here is sent, whatever else lies beside it: no logs, no folders of services, no programs, and nothing
that a link leads to elsewhere. Folders of the machine are taken out of configs, and a file with a key or token in it is
refused.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.json_values import read_json
from rg_env.errors import InputError
from rg_env.evaluation.config import TINY
from rg_env.publish.hub.card import CURVE
from rg_env.publish.hub.record import Record, publishable, read_yaml
from rg_env.publish.hub.subject import Subject

_MODEL = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "adapter_config.json", "adapter_model*.safetensors", "adapter_model.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json",
    "LICENSE*", "LICENCE*", "NOTICE*",
)  # fmt: skip
_RUN = ("metrics.jsonl", "manifest.json", "eval_results/eval_step_*.json")
_STATE = (
    *_MODEL, "pytorch_model*.bin", "pytorch_model.bin.index.json", "trainer_state.json", "resume.json",
    "resume_state_*.pt", "previous_policy_*.safetensors", "curriculum.json", "optimizer.pt", "scaler.pt",
    "latest", "global_step*/*_states.pt",
)  # fmt: skip
"""What training resumes from."""
_TEXTS = (".json", ".jsonl", ".yaml", ".jinja", ".txt", ".md")
_SECRET_NAMES = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_KEYS = re.compile(
    rb"\bhf_[A-Za-z]{34}\b|\bgh[opsu]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{60,}|\bAKIA[0-9A-Z]{16}\b"
    rb"|\bsk-(?:ant-|proj-|or-v1-)?[A-Za-z0-9_-]{32,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
"""Tokens and keys that are known by their looks."""


@dataclass(frozen=True)
class Entry:
    """A file of the repository."""

    path: str
    source: Path | bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


def entries(subject: Subject) -> list[Entry]:
    """All but the card and the marker, the model's first. Raises `InputError`: a file cannot be read."""
    found = [*_model(subject)]
    if subject.record is not None:
        run = subject.record.folder
        if (run / CURVE).is_file():
            found.append(Entry(CURVE, _own(subject, run / CURVE)))
        found += _run(subject, subject.record)
    return found


def check_secrets(found: list[Entry], token: str | None = None) -> None:
    """Raise `InputError` where a text holds the value of a variable that looks like a key, the Hub's token, or what
    has the form of a key."""
    secrets = {f"${name}": value for name, value in os.environ.items() if _is_secret(name, value)}
    secrets |= {"the Hub's token": token} if token else {}
    for entry in found:
        if not entry.path.endswith(_TEXTS):
            continue
        content = entry.source if isinstance(entry.source, bytes) else entry.source.read_bytes()
        for name, value in secrets.items():
            if value.encode() in content:
                raise InputError(f"{entry.path} holds the value of {name}: take it out; nothing was sent")
        if key := _KEYS.search(content):
            shown = f"{key[0][:5].decode()}..."
            raise InputError(f"{entry.path} holds what looks like a key ({shown}): take it out; nothing was sent")


def _is_secret(name: str, value: str) -> bool:
    return len(value) >= 16 and any(name.upper().endswith(end) for end in _SECRET_NAMES)


def _model(subject: Subject) -> Iterator[Entry]:
    folder = subject.source.folder
    for file in sorted(folder.iterdir()):
        if file.is_file() and any(fnmatchcase(file.name, pattern) for pattern in _MODEL):
            yield Entry(file.name, _of_model(subject, file))


def _own(subject: Subject, file: Path) -> Path:
    """`file`. Raises `InputError` where a link leads out of the folders that are published, as to somebody's keys."""
    record, source = subject.record, subject.source
    roots = [source.folder, *([record.folder] if record else []), *([source.checkpoint] if source.checkpoint else [])]
    roots = [root.resolve() for root in roots]
    roots += [root.parents[1] / "blobs" for root in roots if root.parent.name == "snapshots"]  # the Hub's own cache
    if not any(file.resolve().is_relative_to(root) for root in roots):
        raise InputError(f"{file} leads to {file.resolve()}, which is elsewhere: put the file itself there to send it")
    return file


def _of_model(subject: Subject, file: Path) -> Path | bytes:
    """Adapters name their base model, which may be a folder of this machine. Raises as `_own`."""
    _own(subject, file)
    if file.name != "adapter_config.json":
        return file
    values = read_json(file) or {}
    name = subject.base.name if subject.base.on_hub or subject.base.name == TINY else None
    changed = publishable(values) | ({"base_model_name_or_path": name} if name else {})
    return file if changed == values else _json(changed)


def _run(subject: Subject, record: Record) -> Iterator[Entry]:
    run = record.folder
    yield Entry("run/config.yaml", to_yaml(record.config).encode())
    if (run / "arguments.yaml").is_file():
        yield Entry("run/arguments.yaml", to_yaml(record.arguments).encode())
    for file in sorted(run.glob("*_from_step_*.yaml")):
        if (values := read_yaml(file)) is not None:
            yield Entry(f"run/{file.name}", to_yaml(publishable(values)).encode())
    results = run / "train_results.json"
    if results.is_file() and (values := read_json(results)) is not None:
        yield Entry("run/train_results.json", _json(publishable(values)))
    full = subject.optimizer_state == "full"
    for pattern in (*_RUN, *(["rollouts.jsonl"] if full else [])):
        for file in filter(Path.is_file, sorted(run.glob(pattern))):
            content = _own(subject, file).read_bytes()  # it may grow meanwhile
            yield Entry(f"run/{file.relative_to(run).as_posix()}", content)
    if full:
        yield from _checkpoint(subject)


def _checkpoint(subject: Subject) -> Iterator[Entry]:
    folder = subject.source.checkpoint
    assert folder is not None
    for file in sorted(folder.rglob("*")):
        inner = file.relative_to(folder).as_posix()
        if file.is_file() and any(fnmatchcase(inner, pattern) for pattern in _STATE):
            yield Entry(f"run/checkpoint-{subject.source.step}/{inner}", _of_model(subject, file))


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode(errors="backslashreplace")
