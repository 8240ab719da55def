"""`docs/configuration.md`, made from the schema: every key of a config, with type, default and meaning.

python -m rg_env.training.config_docs     # writes docs/configuration.md in the working folder; a test keeps it equal
"""

import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from rg_env.core.config import Section
from rg_env.training.config import TrainConfig

HEAD = """# Configuration

What `rg-env train CONFIG` reads, made from the schema by `python -m rg_env.training.config_docs`.

```bash
rg-env train configs/train/tiny.yaml                                  # a run
rg-env train configs/train/tiny.yaml training.learning_rate=2e-6      # with another value
rg-env train configs/train/tiny.yaml --dry-run                        # what it comes to, in under a second
```

- `extends: base.yaml` or `extends: [a.yaml, b.yaml]` (relative to the file itself) begins with what those files say.
  Later ones win, and the file itself last; mappings are merged key by key, anything else is replaced; `null` takes a
  key away, back to its default.
- `section.key=value` on the command line replaces what stands there; the value is YAML.
- A config holds no secrets: keys of services (`WANDB_API_KEY`, `HF_TOKEN`) are read from the environment, or `.env`.
- Every mistake is told before anything starts, all of them together: path, value, file and line, remedy.
- A key that changes nothing beside the others, such as `engine.port` beside `engine.kind: embedded`, is no mistake. The
  plan (`--dry-run`) and the start of a run name it: `without effect: engine.port (engine.kind: embedded)`.
"""


def render() -> str:
    """The document."""
    plain = [name for name, field in TrainConfig.model_fields.items() if not _sections(field.annotation)]
    parts = [HEAD, "## At the top\n\n" + _table(TrainConfig, plain)]
    for name, field in TrainConfig.model_fields.items():
        for schema in _sections(field.annotation):
            entry = get_origin(_plain(field.annotation)) is dict
            parts += _described(f"`{name}.NAME`" if entry else f"`{name}`", schema, field.description)
    return "\n".join(parts)


def _described(title: str, schema: type[Section], description: str | None) -> list[str]:
    text = " ".join((schema.__doc__ or "").split())
    if description:
        text = f"{' '.join(description.split())} {text}"
    nested = [name for name, field in schema.model_fields.items() if _sections(field.annotation)]
    plain = [name for name in schema.model_fields if name not in nested]
    parts = [f"## {title}\n\n{text}\n\n{_table(schema, plain)}"]
    for name in nested:
        field = schema.model_fields[name]
        inner = _sections(field.annotation)[0]
        path = f"{title.strip('`')}.{name}.NAME"
        parts += _described(f"`{path}`", inner, field.description)
    return parts


def _table(schema: type[Section], names: list[str]) -> str:
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for name in names:
        field = schema.model_fields[name]
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        rows.append(f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    if value is None:
        return ""
    if value in ({}, []):
        return "none"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{shown}`" if shown else "empty"


def _type(annotation: Any) -> str:
    annotation = _plain(annotation)
    origin = get_origin(annotation)
    if origin is Literal:
        return " \\| ".join(f"`{choice}`" for choice in get_args(annotation))
    if origin is list:
        return f"list of {_type(get_args(annotation)[0])}"
    if origin is dict:
        return "mapping"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}[annotation]


def _plain(annotation: Any) -> Any:
    """Without bounds, and without the None of what may be missing."""
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    return annotation


def _sections(annotation: Any) -> list[type[Section]]:
    annotation = _plain(annotation)
    if get_origin(annotation) is dict:
        annotation = get_args(annotation)[1]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Section) else []


if __name__ == "__main__":
    Path("docs/configuration.md").write_text(render(), encoding="utf-8")
