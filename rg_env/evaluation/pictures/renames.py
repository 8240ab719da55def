"""Other names in pictures: `A=B` as it is typed, or a JSON file of them.

new_names(["checkpoint-100=ours"], Path("names.json"), known=["checkpoint-100", "base"], kind="model")
"""

import difflib
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rg_env.errors import InputError, unknown_name
from rg_env.evaluation.results import no_key_twice


def new_names(typed: Sequence[str], file: Path | None, known: Sequence[str], kind: str) -> dict[str, str]:
    """New names by old ones, all at once: `A=B B=A` swaps two.

    Names may hold "=" themselves: `A` is then that beginning of the text that is a known name.

    Args:
        known: all names that there are.
        kind: what they are the names of.

    Raises:
        InputError: what is typed has no "=", or is not clear; the file cannot be read; an old name is not known (the
            nearest is named) or stands twice; a new one is empty, or would be that of two.
    """
    names: dict[str, str] = {}
    for where, old, new in [*(_typed(text, known, kind) for text in typed), *_from_file(file)]:
        if old not in known:
            error = unknown_name(kind, old, known)
            raise type(error)(f"{where}: {error}")
        if not new.strip():
            raise InputError(f"{where}: the new name of {old!r} is empty")
        if names.get(old, new) != new:
            raise InputError(f"{where}: {old!r} is already renamed to {names[old]!r}")
        names[old] = new
    owners: dict[str, str] = {}
    for name in known:
        new = names.get(name, name)
        if new in owners:
            raise InputError(
                f"{owners[new]!r} and {name!r} would both be {new!r}: the names of a picture have to differ"
            )
        owners[new] = name
    return names


def _typed(text: str, known: Collection[str], kind: str) -> tuple[str, str, str]:
    """Where, the old name, and the new one."""
    where = f"--rename {text}"
    splits = [(text[:place], text[place + 1 :]) for place, each in enumerate(text) if each == "="]
    if not splits:
        raise InputError(f"{where}: give it as OLD=NEW (files stand before the options)")
    fit = [split for split in splits if split[0] in known]
    if len(fit) > 1:
        raise InputError(f"{where}: this can mean the {kind} {fit[0][0]!r} or {fit[1][0]!r}; say it by --rename-file")
    old, new = fit[0] if fit else max(splits, key=lambda split: _likeness(split[0], known))
    return where, old, new


def _likeness(name: str, known: Collection[str]) -> float:
    return max((difflib.SequenceMatcher(None, name, each).ratio() for each in known), default=0.0)


def _from_file(file: Path | None) -> Iterator[tuple[str, str, str]]:
    if file is None:
        return
    try:
        values = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=no_key_twice)
    except OSError as error:
        raise InputError(f"--rename-file {file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--rename-file {file} is not JSON: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not all(isinstance(new, str) for new in values.values()):
        raise InputError(f'--rename-file {file} has to hold new names by old ones: {{"OLD": "NEW"}}')
    for old, new in values.items():
        yield f"--rename-file {file}", old, new
