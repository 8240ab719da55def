"""Generate pages in `docs/reference/`: configuration, evaluation, other trainers' names, command line, graders, memory.

python tools/reference_docs.py     # writes the pages; a test checks that they are up to date
"""

import argparse
import ast
import inspect
import re
import textwrap
import types
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from rg_env.cli import main as cli
from rg_env.cli.parser import CommandParser
from rg_env.core.config.files import OTHER_NAMES
from rg_env.core.config.parsing import Section
from rg_env.core.data import problem_keys
from rg_env.core.grading import audit
from rg_env.core.tasks.task_table import shipped_table
from rg_env.evaluation.config import EvalConfig
from rg_env.jobs.doctor import Model, PlannedRun, PromptLengths, run_estimate
from rg_env.training.config.grpo import OTHER_TRAINERS
from rg_env.training.config.load import load_train_config
from rg_env.training.config.schema import TrainConfig
from rg_env.training.memory_estimate import ModelShape

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
MARK = "<!-- generated from here on: python tools/reference_docs.py -->\n"


def configuration() -> str:
    """Return the text of `configuration.md`: every key of a training config, with its type, default and meaning."""
    return _reference(TrainConfig)


def evaluation() -> str:
    """Return the text of `evaluation.md`: every key of an evaluation config."""
    return _reference(EvalConfig)


NAMES = {
    "training": "Training: keys of `training`, and arguments of `GRPOConfig`",
    "run": "Anywhere in a config",
    "engine": "Keys of `engine`",
    "evaluation": "Keys of `evaluation`",
    "lora": "Keys of `lora`",
    "curriculum": "Keys of `curriculum`",
    "hub": "Keys of `hub`",
    "data": "Keys of `data`",
    "environment": "Arguments of `load_environment` and `ReasoningGym`",
    "tasks": "Names of tasks",
}
"""Heading for each part of `other_trainers.yaml` and `other_names.yaml`."""


def other_trainers() -> str:
    """Return the text of `other-trainers.md`: other tools' names, each with the replacement or the advice."""
    sections: list[type[Section]] = [
        TrainConfig,
        *(each for field in TrainConfig.model_fields.values() for each in _sections(field.annotation)),
    ]
    keys = "|".join(sorted({"extends", *(name for section in sections for name in section.model_fields)}))
    name = re.compile(rf"(?<![\w'\"=/\[(.-])(?:[a-z]+(?:[._]\w+)+|(?<=use )(?:{keys}))(?![\w'\"=/\](.-])")
    parts = []
    for section, names in {**OTHER_TRAINERS, **OTHER_NAMES}.items():
        parts.append(f"### {NAMES[section]}\n")
        for other, text in sorted(names.items()):
            words = re.split(r"(`[^`]*`)", " ".join(text.split()) if " " in text else f"use {text}")
            words[::2] = [name.sub(r"`\g<0>`", part) for part in words[::2]]
            parts.append(f"- `{other}`: {_code_safe(''.join(words))}")
        parts.append("")
    return "\n".join(parts)


def command_line() -> str:
    """Return the text of `cli.md`: every command, with its usage and options."""
    commands = parsers()
    index = ["| command | effect |", "|---|---|"]
    index += [f"| [`rg-env {name}`](#rg-env-{name}) | {_sentence(text)} |" for name, _, text in commands]
    parts = ["\n".join(index) + "\n"]
    for name, parser, text in commands:
        parts += [f"## rg-env {name}\n", _sentence(text) + "\n", f"```text\n{_usage(parser)}\n```\n"]
        parts += [_options_table(parser)]
        if parser.epilog:
            parts.append(_code_safe(parser.epilog) + "\n")
        if parser.examples:
            parts.append("```bash\n{}\n```\n".format("\n".join(parser.examples)))
    return "\n".join(parts)


def graders() -> str:
    """Return the text of `graders.md`: every task, with the measurements of its grader."""
    table, audits = shipped_table(), audit.kept()
    parts = []
    for category in sorted({entry["category"] for entry in table.values()}):
        parts.append(f"## {category.capitalize()}\n")
        rows = ["| task | levels | agrees | constant | exploit | problem |", "|---|---|---|---|---|---|"]
        for task in sorted(name for name, entry in table.items() if entry["category"] == category):
            measured, steps = audits[task], table[task]["levels"].values()
            levels = max(len(values) for values in steps) - 1 if steps else ""
            rows.append(
                f"| `{task}` | {levels} | {measured.agreement:.3f} | {measured.constant:.2f} | {measured.exploit:.2f} "
                f"| {_code_safe(problem_keys.described(task))} |"
            )
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


MODELS = {
    "Qwen2.5-0.5B": ("qwen2.5-0.5b", ModelShape(494_032_768, 24, 896, 151_936, 128), 549_888),
    "Qwen2.5-1.5B": ("qwen2.5-1.5b", ModelShape(1_543_714_304, 28, 1536, 151_936, 256), 1_154_048),
    "Qwen2.5-3B": ("qwen2.5-3b", ModelShape(3_085_938_688, 36, 2048, 151_936, 256), 1_870_848),
    "Qwen2.5-7B": ("qwen2.5-7b", ModelShape(7_615_616_512, 28, 3584, 152_064, 512), 2_523_136),
    "Llama-3.2-1B": ("llama-3.2-1b", ModelShape(1_235_814_400, 16, 2048, 128_256, 512), 704_512),
    "Llama-3.2-3B": ("llama-3.2-3b", ModelShape(3_212_749_824, 28, 3072, 128_256, 1024), 1_519_616),
}
"""Config file, shape, and number of LoRA parameters per rank (for all linear layers except the LM head), by model."""
LORA = ["model.dtype=bfloat16", "lora={r: 16, alpha: 32}"]


PRESETS = sorted((ROOT / "configs" / "models").glob("*_*gb.yaml"))
GPUS = (16, 24, 40, 80)
"""GPU memory sizes in GB."""


def gpu_memory() -> str:
    """Return the text of `gpu-memory.md`: models that fit on GPUs of four sizes, as estimated by `rg-env doctor`."""
    parts = []
    for engine, title in (("embedded", "One GPU, embedded engine"), ("vllm", "With vLLM on another GPU")):
        columns = {"all weights": _peaks(engine), "LoRA": _peaks(engine, *LORA)}
        rows = []
        for size in GPUS:
            cells = [[text for text, peak in peaks.items() if peak <= 0.9 * size] for peaks in columns.values()]
            presets = (
                [file.stem for file in PRESETS if file.stem.endswith(f"_{size}gb")] if engine == "embedded" else []
            )
            cells.append([f"`{preset}` ({preset_peak(preset):.0f} GB)" for preset in presets])
            rows.append(f"| {size} GB | {' | '.join(', '.join(cell) or '–' for cell in cells)} |")
        heads = ["GPU", *columns, "presets"]
        parts.append("\n".join([f"## {title}\n", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *rows]) + "\n")
    return "\n".join(parts)


def _peaks(engine: str, *overrides: str) -> dict[str, float]:
    """Return the estimated peak memory in GB of each model, keyed by the model's text in the table: `NAME (N GB)`."""
    peaks = {name: _peak(name, config, f"engine.kind={engine}", *overrides) for name, (config, *_) in MODELS.items()}
    return {f"{name} ({peak:.0f} GB)": peak for name, peak in peaks.items()}


def preset_peak(preset: str) -> float:
    """Return the estimated peak memory in GB of a run with a preset from `configs/models`."""
    (name,) = [name for name, (config, *_) in MODELS.items() if preset.startswith(f"{config}_")]
    return _peak(name, preset)


def _peak(name: str, config: str, *overrides: str) -> float:
    """Return the estimated peak memory in GB of a run with prompts and completions of up to 1,024 tokens each and 200
    evaluation questions."""
    file = ROOT / "configs" / "models" / f"{config}.yaml"
    # presets do not set a model name
    given = [f"model.name={name}", "tasks=[leg_counting]", "training.bf16=true", *overrides]
    planned = PlannedRun(load_train_config(file, given))
    training, (_, shape, width) = planned.config.training, MODELS[name]
    lengths = PromptLengths([training.max_prompt_length], [training.max_prompt_length] * 200)
    model = Model(name, None, shape, 32_768, width)
    return run_estimate(planned, model, lengths, training.per_device_train_batch_size).total / 1e9


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "evaluation.md": evaluation,
    "other-trainers.md": other_trainers,
    "cli.md": command_line,
    "graders.md": graders,
    "gpu-memory.md": gpu_memory,
}


def parsers() -> list[tuple[str, CommandParser, str]]:
    """Return the name, parser and help text of each subcommand."""
    _, commands = cli.make_parser()
    texts = {action.dest: action.help or "" for action in commands._choices_actions}
    return [(name, parser, texts[name]) for name, parser in commands.choices.items()]


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the parser's usage text in lines that fit on a page. argparse would wrap it at the terminal's width."""
    if parser.usage:
        return re.sub(r"\n +(?=rg-env)", "\n", parser.usage)
    parts = [parser.prog]
    for action in parser._actions:
        if action.dest != "help" and action.help != argparse.SUPPRESS:
            shown = f"{max(action.option_strings, key=len, default='')} {_metavar(action)}".strip()
            parts.append(f"[{shown}]" if action.option_strings and not action.required else shown)
    # Options stay whole: their spaces are replaced while the text is wrapped.
    text = " ".join(part.replace(" ", "\0") for part in parts)
    return textwrap.fill(text, 88, subsequent_indent="    ", break_on_hyphens=False).replace("\0", " ")


def _options_table(parser: argparse.ArgumentParser) -> str:
    rows = ["| option | meaning |", "|---|---|"]
    for action in parser._actions:
        if action.dest == "help" or action.help == argparse.SUPPRESS:
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        value = _code(_metavar(action)) if _metavar(action) else ""
        shown = " ".join(filter(None, [names, value]))
        rows.append(f"| {shown} | {_sentence((action.help or '').replace('%%', '%'))} |")
    return "\n".join(rows) + "\n"


def _metavar(action: argparse.Action) -> str:
    """Return the name of an option's value, or the empty string if it has none."""
    formatter = argparse.HelpFormatter("")
    default = action.dest.upper() if action.option_strings else action.dest
    if action.nargs == argparse.REMAINDER:  # argparse shows "..."
        return f"[{action.metavar} ...]"
    return "" if action.nargs == 0 else formatter._format_args(action, default)


def _sentence(text: str) -> str:
    """Return help text as a sentence for a table cell."""
    text = _code_safe(text).strip()
    if not text:
        return ""
    text = text if text[0] in "`'\"-" else text[0].upper() + text[1:]
    return text if text[-1] in ".?!" else text + "."


def _code_safe(text: str) -> str:
    """Escape what Markdown would format, except for code in backticks."""
    parts = enumerate(re.split(r"`([^`]*)`", text))
    return "".join(_code(part) if number % 2 else re.sub(r"([|<>*_])", r"\\\1", part) for number, part in parts)


def _code(text: str) -> str:
    """Return code for a table cell. Code hosts and mkdocs disagree on the meaning of a backslash before a vertical bar
    in backticks."""
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _reference(schema: type[Section]) -> str:
    return "\n".join(_described("", schema, None))


@cache
def descriptions(schema: type[Section]) -> dict[str, str]:
    """Return the docstrings under a schema's fields.

    Pydantic's `use_attribute_docstrings` would also collect them, but each time that a program starts.
    """
    found = {}
    for each in reversed(schema.__mro__):
        if issubclass(each, Section):
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
            for field, text in pairwise(definition.body):  # type: ignore[attr-defined]
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                        found[name] = " ".join(doc.split())
    return found


def _described(path: str, schema: type[Section], description: str | None) -> list[str]:
    """Describe a section and those in it. The path of the entire config is empty."""
    text = " ".join([description or "", *(schema.__doc__ or "").split()]).strip()
    nested = {name: found[0] for name, field in schema.model_fields.items() if (found := _sections(field.annotation))}
    plain = [name for name in schema.model_fields if name not in nested]
    head, prefix = (f"## `{path}`\n\n{text}", f"{path}.") if path else ("## Top level", "")
    parts = [f"{head}\n\n{_keys(schema, plain, prefix)}"]
    for name, inner in nested.items():
        entry = ".NAME" if get_origin(_plain(schema.model_fields[name].annotation)) is dict else ""
        parts += _described(f"{prefix}{name}{entry}", inner, descriptions(schema).get(name))
    return parts


def _keys(schema: type[Section], names: list[str], prefix: str = "") -> str:
    """Return a heading for each key, which the site's search finds, with its type, default and meaning below: a table
    would be too wide for a phone."""
    described = descriptions(schema)
    parts = []
    for name in names:
        field = schema.model_fields[name]
        default = _default(field)
        shown = default if default in ("", "required") else f"default {default}"
        kind = ", ".join(filter(None, [_type(field.annotation), shown]))
        parts.append(f"##### `{prefix}{name}`\n\n{kind}\n\n{_code_safe(described.get(name, ''))}\n")
    return "\n".join(parts)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    if value is None:
        return ""
    if value in ({}, [], ()):
        return "none"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{shown}`" if shown else "empty"


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_type(each) for each in inner if each is not type(None))
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in inner)
    if origin in (list, tuple):
        kind = _type(inner[0])
        return f"list of {kind}" + "s" * (not kind.endswith("`"))
    if origin is dict:
        return "mapping"
    return {int: "integer", float: "number", str: "string", bool: "boolean"}[annotation]


def _plain(annotation: Any) -> Any:
    """Return the type without bounds and without None."""
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    return annotation


def _sections(annotation: Any) -> list[type[Section]]:
    annotation = _plain(annotation)
    if get_origin(annotation) is dict:
        annotation = get_args(annotation)[1]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Section) else []


def render(name: str) -> str:
    """Return the up-to-date page: the existing text above `MARK`, then the generated part.

    Raises:
        ValueError: the page does not have the line `MARK`.
    """
    head, mark, _ = (FOLDER / name).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise ValueError(f"{name} does not have the line {MARK.strip()}")
    return f"{head}{MARK}\n{PAGES[name]()}"


if __name__ == "__main__":
    for name in PAGES:
        (FOLDER / name).write_text(render(name), encoding="utf-8")
