"""The parser of `rg-env`'s subcommands, which also suggests config keys for unknown options.

CommandParser(prog="rg-env tasks", examples=["rg-env tasks --category logic"]).parse_known_args(...)
"""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from rg_env.commands import Names, OptionParser, positive
from rg_env.core.config.files import is_config_file

T = TypeVar("T")


class CommandParser(OptionParser):
    """The parser of a subcommand.

    Args:
        examples: commands shown at the end of `--help`.
        advice: hint for an unknown option to which no other hint applies. The default refers to `--help`.
    """

    def __init__(self, *given: Any, examples: Sequence[str] = (), advice: str = "", **options: Any):
        super().__init__(*given, **{"formatter_class": argparse.HelpFormatter, **options})
        self.examples = tuple(examples)
        self.advice = advice or self.advice
        self._may_lack_config = False
        self.set_defaults(parser=self)

    def flag(self, name: str, help: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=help)

    def number(self, *names: str, help: str, **options: Any) -> None:
        """Add an option whose value is an integer of at least 1."""
        self.add_argument(*names, help=help, **{"type": positive, "metavar": "N", **options})

    def key(self, name: str, key: str, metavar: str, help: str, **options: Any) -> None:
        """Add an option that sets a config key."""
        self.add_argument(name, dest=key, metavar=metavar, help=help, **options)

    def names(self, *names: str, help: str, metavar: str, **options: Any) -> None:
        """Add an option whose value is a list of names, separated by spaces or commas."""
        self.add_argument(*names, action=Names, nargs="+", help=help, metavar=metavar, **options)

    def config(self, help: str, *, required: bool = True) -> None:
        """Add positional arguments for a config and its overrides. Overrides may appear anywhere on the command
        line."""
        self._may_lack_config = not required
        self.add_argument("config", metavar="CONFIG", nargs=None if required else "?", help=help)
        override = {"nargs": "*", "default": [], "metavar": "section.key=value"}
        self.add_argument("overrides", help="config overrides", **override)  # type: ignore[arg-type]

    def format_help(self) -> str:
        lines = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (f"\nexamples:\n{lines}" if lines else "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, rest = super().parse_known_args(args, namespace)
        if self._has("overrides"):  # argparse accepts overrides only directly after the first positional argument
            options.overrides = [*options.overrides, *(word for word in rest if not word.startswith("-"))]
            rest = [word for word in rest if word.startswith("-")]
            if self._may_lack_config and options.config and is_override(options.config):
                options.overrides, options.config = [options.config, *options.overrides], None
        return options, rest

    def hint(self, flag: str, value: str) -> str:
        name = flag.lstrip("-").replace("-", "_")
        path = name.partition("_")[0].upper()  # "--config-file" for CONFIG
        if near := self.hints.get(flag) or self.similar(flag):
            return near
        if path in [action.metavar for action in self._get_positional_actions()]:
            return f"pass the path alone, as in {self.prog} {path} ..."
        if key := self._key(name):
            return f"to set this config key, write {key}={value or 'VALUE'}"
        return self.advice

    def error(self, message: str) -> NoReturn:
        config = next(filter(is_config_file, self._arguments), "") if self._has("overrides") else ""
        if config and "required: CONFIG" in message:
            message = f"write {config} directly after {self.prog!r}, because the option before it took it as a value"
        super().error(message)

    def _has(self, dest: str) -> bool:
        return any(action.dest == dest for action in self._actions)

    def _key(self, name: str) -> str | None:
        """Return the dotted config key that an unknown option most likely means, or None."""
        if not self._has("overrides") and not any(map(is_config_file, self._arguments)):
            return None
        from rg_env.core.config.parsing import likely_key
        from rg_env.evaluation.config import EvalConfig
        from rg_env.training.config.schema import TrainConfig

        return likely_key(EvalConfig if self.prog.endswith(" eval") else TrainConfig, name)


def is_override(word: str) -> bool:
    """Whether `word` is a config override ("key=value") rather than the path of a config, which may contain "="."""
    return "=" in word and not is_config_file(word)


def request_of(kind: type[T], options: argparse.Namespace) -> T:
    """Build the dataclass `kind` from the options named after its fields. Lists become tuples."""
    given = {each.name: getattr(options, each.name) for each in fields(kind) if hasattr(options, each.name)}  # type: ignore[arg-type]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def options_of(config: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of options that set config keys, by key. Options that are not given are omitted."""
    heads = config.model_fields
    given = {key: value for key, value in vars(options).items() if key.partition(".")[0] in heads}
    return {key: value for key, value in given.items() if value is not None}
