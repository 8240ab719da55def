"""What a model folder has in addition to weights: configuration, tokenizer, chat template, generation settings."""

import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from rg_env.core.run_folder import RunFolder, read_json
from rg_env.core.text import reason_of
from rg_env.errors import InputError
from rg_env.inference.models import TINY, describe_model
from rg_env.publish.export.locate import Checkpoint
from rg_env.tiny import POLICY_DIR

_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_NEEDED = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")
"""Every tokenizer has one of them."""


class Companions:
    """Where configuration and tokenizer come from: the checkpoint itself, else the model that it was trained from.

    Args:
        base: the model that it was trained from: a folder, or a name on the hub; default: what the checkpoint says.

    Raises:
        InputError: there is no configuration, or no tokenizer.
    """

    def __init__(self, checkpoint: Checkpoint, base: str | None = None):
        self._checkpoint = checkpoint
        self.base = base or _adapted(checkpoint) or _trained_from(checkpoint)
        folders = [] if checkpoint.kind == "adapter" else list(checkpoint.companions)
        origin = POLICY_DIR if self.base == TINY else Path(self.base) if self.base else None
        bases = [origin] if origin and origin.is_dir() else []
        self._config = self._first([*folders, *bases], ("config.json",), "config.json, which describes the model")
        folders = list(checkpoint.companions) if checkpoint.kind == "adapter" else folders
        self._tokenizer = self._first([*folders, *bases], _NEEDED, "tokenizer (tokenizer.json, tokenizer.model, ...)")

    def _first(self, folders: Sequence[Path], names: Sequence[str], what: str) -> Path | None:
        """The first folder with such a file; None: the model on the hub has them."""
        for folder in folders:
            if any((folder / name).is_file() for name in names):
                return folder
        if self.base is None or Path(self.base).exists():
            searched = f", nor has {self.base}" if self.base else ""
            raise InputError(
                f"{self._checkpoint.folder} has no {what}{searched}: name the model that it was trained from, "
                "--base NAME_OR_FOLDER"
            )
        return None

    @property
    def base_name(self) -> str:
        """The base model as `from_pretrained` takes it."""
        return str(POLICY_DIR) if self.base == TINY else str(self.base)

    def config(self) -> Any:
        """The configuration of transformers. Raises `InputError` if it cannot be read."""
        if self._config is None:
            return describe_model(self.base_name).config
        try:
            return AutoConfig.from_pretrained(self._config, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # damaged files raise anything
            raise InputError(f"{self._config / 'config.json'} cannot be read: {reason_of(error)}") from error

    def dtype_name(self) -> str | None:
        """The dtype that the run loaded the weights in, else the configuration's: "bfloat16"."""
        model = _run_config(self._checkpoint).get("model")
        asked = model.get("dtype") if isinstance(model, dict) else None
        if asked in ("float32", "bfloat16"):
            return str(asked)
        found = getattr(self.config(), "dtype", None)
        return None if found is None else str(found).removeprefix("torch.")

    def tokenizer(self) -> Any:
        """Raises `InputError` if it cannot be loaded."""
        logging.disable_progress_bar()
        if self._tokenizer is None:
            return describe_model(self.base_name).tokenizer
        try:
            return AutoTokenizer.from_pretrained(self._tokenizer, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise InputError(f"the tokenizer of {self._tokenizer} cannot be loaded: {reason_of(error)}") from error

    def write(self, folder: Path, dtype: str | None) -> None:
        """Copy everything into `folder`; `dtype` is that of the weights for config.json, None for adapters, which have
        no configuration.

        Raises:
            InputError: the generation settings are damaged.
        """
        if dtype is not None:
            self._write_config(folder, dtype)
        if self._tokenizer is None:
            describe_model(self.base_name).tokenizer.save_pretrained(folder)
            return
        for name in _TOKENIZER:
            if (self._tokenizer / name).is_file():
                shutil.copyfile(self._tokenizer / name, folder / name)

    def _write_config(self, folder: Path, dtype: str) -> None:
        if self._config is None:
            config = self.config()
            config.dtype = dtype
            config.save_pretrained(folder)
            with contextlib.suppress(OSError):  # it has none
                GenerationConfig.from_pretrained(self.base_name, local_files_only=True).save_pretrained(folder)
            return
        values = json.loads((self._config / "config.json").read_text(encoding="utf-8"))
        keys = [key for key in ("dtype", "torch_dtype") if key in values] or ["torch_dtype"]
        values |= dict.fromkeys(keys, dtype)
        (folder / "config.json").write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for place in (*self._checkpoint.companions, self._config):
            file = place / "generation_config.json"
            if file.is_file():
                try:  # transformers ignores a damaged one, but vLLM does not start
                    GenerationConfig.from_pretrained(place, local_files_only=True)
                except Exception as error:
                    raise InputError(f"{file} cannot be read: {reason_of(error)}") from error
                shutil.copyfile(file, folder / file.name)
                break


def _adapted(checkpoint: Checkpoint) -> str | None:
    """The base model that the adapters name."""
    if checkpoint.kind != "adapter":
        return None
    found = read_json(checkpoint.weights / "adapter_config.json").get("base_model_name_or_path")
    return str(found) if found else None


def _trained_from(checkpoint: Checkpoint) -> str | None:
    model = _run_config(checkpoint).get("model")
    name = model.get("name") if isinstance(model, dict) else model
    return name if isinstance(name, str) and name else None


def _run_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config of its run; empty if there is none that can be read."""
    try:
        return RunFolder(checkpoint.run or checkpoint.folder.parent).config()
    except InputError:
        return {}
