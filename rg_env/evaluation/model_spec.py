"""How a model is written in a word: a name, or `NAME@URL` of an endpoint; and what it is called by."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from rg_env.core.run_folder import checkpoint_step
from rg_env.errors import InputError

SECRET = "holds a password, or a query: a key goes into an environment variable, named as key_variable"


def split_address(text: str) -> dict[str, str]:
    """`MODEL`, or `MODEL@URL` of an endpoint, as an entry of `models`."""
    model, at, url = text.rpartition("@http")
    return {"model": model, "url": f"http{url}"} if at else {"model": text}


def name_of(text: str) -> str:
    """What a model of a list is called: the name of its folder, with that of its run for a checkpoint."""
    model = split_address(text)["model"]
    parts = Path(model).parts
    if len(parts) > 1 and checkpoint_step(Path(parts[-1])) is not None:
        return "/".join(parts[-2:])
    return parts[-1] if parts and os.path.isdir(model) else model


def has_secret(url: str) -> bool:
    """Or what else may be a secret, and would stand in all files."""
    return bool({"@", "?", "#"} & set(url))


def check_url(url: str) -> None:
    """Raise `InputError` unless `url` may be that of an endpoint."""
    if has_secret(url):
        raise InputError(SECRET)
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not url.isprintable() or " " in url:
        raise InputError("is no address of an endpoint: such as http://127.0.0.1:8000/v1")
