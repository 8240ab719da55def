"""The licence of a base model, by its own card or configuration. What is not said there is not known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.config import yaml12
from rg_env.core.json_values import dict_of, read_json, text_of
from rg_env.errors import InputError
from rg_env.evaluation.config import TINY


@dataclass(frozen=True)
class Licence:
    """What is known of it, under the names of a card's head."""

    id: str | None = None
    """Such as "apache-2.0"; "other" with a name and a link."""
    name: str | None = None
    link: str | None = None
    told_by: str | None = None
    """Where it stands, in words."""


UNKNOWN = Licence()


def licence_of(base: str | None, folder: Path | None = None, hub: Any = None) -> Licence:
    """That of the model `base`.

    Args:
        folder: where the base model lies, if it is one of this machine.
        hub: asked for the card of a model on the hub (an `HfApi`); None: nobody is asked.
    """
    if base == TINY:
        return Licence("apache-2.0", told_by="the package that it comes with")
    if folder is not None:
        return _of_folder(folder)
    if base is None or hub is None:
        return UNKNOWN
    try:
        head = hub.model_info(base, timeout=10).card_data
        values = {} if head is None else head.to_dict()
    except Exception:  # whatever it is, the licence is not known then, and the card says so
        return UNKNOWN
    return _of_head(values, "its card on the Hub")


def _of_folder(folder: Path) -> Licence:
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
        if text.startswith("---\n"):
            found = _of_head(dict_of(yaml12.load(text[4:].partition("\n---")[0])), "its own card")
            if found.id:
                return found
    except (OSError, ValueError, yaml.YAMLError):  # no card, or a damaged one: its configuration may say
        pass
    try:
        return _of_head(dict_of(read_json(folder / "config.json")), "its config.json")
    except InputError:  # it is not there
        return UNKNOWN


def _of_head(values: dict[str, Any], told_by: str) -> Licence:
    found = values.get("license")
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    if not (licence := text_of(found)):
        return UNKNOWN
    return Licence(licence, text_of(values.get("license_name")), text_of(values.get("license_link")), told_by)
