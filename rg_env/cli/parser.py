"""An argument parser that rejects abbreviations and suggests the right name for an unknown option.

CommandParser(prog="rg-env tasks", examples=["rg-env tasks --category logic"]).parse_known_args(...)
"""

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from rg_env.commands import Names, positive
from rg_env.core.config.files import is_config_file
from rg_env.errors import InputError

T = TypeVar("T")
_OTHER_NAMES = {
    "--processes": ("--num-processes", "--nproc-per-node"),
    "--gpus": ("--nproc-per-node", "--n-gpus-per-node", "--gpus-per-node", "--num-gpus", "--device"),
    "--nodes": ("--nnodes", "--num-nodes", "--num-machines"),
    "--base": ("--model-name",),
    "--models": ("--model-args", "--model-name", "--model-path"),
    "--model": ("--model-args", "--model-name", "--model-path"),
    "--tasks": ("--category", "--datasets", "--task"),
    "--num-examples": ("--limit",),
    "--rollouts-per-example": ("--rollouts",),
    "--max-tokens": ("--max-gen-toks", "--max-new-tokens"),
    "--output-dir": ("--out", "--output", "--output-path"),
    "--output": ("--out", "--output-path"),
    "--resume": ("--resume-from-checkpoint",),
    "--optimizer-state": ("--optimizer-save-mode",),
    "CONFIG": ("--config", "--config-file", "--config-name", "--config-path"),
    "CHECKPOINT": ("--checkpoint", "--checkpoint-dir", "--checkpoint-path", "--model-path"),
}
"""Other names for an option or positional argument: former names, and names used by other tools."""
_ELSEWHERE = {
    "--processes": "use `rg-env launch` or `accelerate launch` to start several processes",
    "--gpus": "use `rg-env launch --gpus`, or set CUDA_VISIBLE_DEVICES",
    "--nodes": "use `rg-env slurm --nodes N` to write a job script for several nodes",
}
"""Hints for options that `train` or `launch` does not have."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser that does not accept abbreviated options.

    Args:
        examples: commands shown at the end of `--help`.
        advice: hint for an unknown option to which no other hint applies. The default refers to `--help`.
    """

    def __init__(self, *given: Any, examples: Sequence[str] = (), advice: str = "", **options: Any):
        super().__init__(*given, **{"allow_abbrev": False, **options})
        self.examples = tuple(examples)
        self.advice = advice or f"`{self.prog} --help` lists the options"
        self._arguments: list[str] = []
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
        self.add_argument("config", metavar="CONFIG", nargs=None if required else "?", help=help)
        override = {"nargs": "*", "default": [], "metavar": "section.key=value"}
        self.add_argument("overrides", help="config overrides", **override)  # type: ignore[arg-type]

    def format_help(self) -> str:
        lines = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (f"\nexamples:\n{lines}" if lines else "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._arguments = list(sys.argv[1:] if args is None else args)
        options, rest = super().parse_known_args(args, namespace)
        if self._has("overrides"):  # argparse accepts overrides only directly after the first positional argument
            options.overrides = [*options.overrides, *(word for word in rest if not word.startswith("-"))]
            rest = [word for word in rest if word.startswith("-")]
        return options, rest

    def error(self, message: str) -> NoReturn:
        """Raise an error that suggests the right name if an option is misnamed, because argparse may report only that a
        required option is missing. Otherwise, raise argparse's error as one line."""
        for argument in self._arguments:
            if argument.startswith("--") and self._called(argument.partition("=")[0]):
                raise self.unknown(argument)
        raise InputError(f"{self.prog}: {message}; see `{self.prog} --help`")

    def unknown(self, argument: str) -> InputError:
        """Return the error for an unknown argument."""
        flag, _, value = argument.partition("=")
        if not flag.startswith("-"):
            return InputError(f"{self.prog}: unexpected argument {argument!r}; see `{self.prog} --help`")
        starts_run = self.prog.endswith((" train", " launch"))
        elsewhere = [hint for name, hint in _ELSEWHERE.items() if starts_run and name in _names_of(flag)]
        if called := self._called(flag):
            hint = f"use {called}" if called.startswith("-") else f"pass the path alone, as in {self.prog} {called} ..."
        elif elsewhere:
            hint = elsewhere[0]
        elif near := difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.8):
            hint = f"did you mean {near[0]}?"
        elif key := self._key(flag):
            hint = f"to set this config key, write {key}={value or 'VALUE'}"
        else:
            hint = self.advice
        return InputError(f"{self.prog} has no option {flag!r}: {hint}")

    def _has(self, dest: str) -> bool:
        return any(action.dest == dest for action in self._actions)

    def _called(self, flag: str) -> str | None:
        """Return this command's equivalent of an unknown option, or None."""
        known = [*self._option_string_actions, *(action.metavar for action in self._get_positional_actions())]
        return None if flag in known else next((name for name in _names_of(flag) if name in known), None)

    def _key(self, flag: str) -> str | None:
        """Return the dotted config key that an unknown option most likely means, or None."""
        if not self._has("overrides") and not any(map(is_config_file, self._arguments)):
            return None
        from rg_env.core.config.parsing import unknown_key
        from rg_env.evaluation.config import EvalConfig
        from rg_env.training.config.schema import TrainConfig

        name = flag.lstrip("-").replace("-", "_")
        schema = EvalConfig if self.prog.endswith(" eval") else TrainConfig
        text = unknown_key(schema, ("max_steps" if name == "steps" else name,))
        match = re.search(r"did you mean (\S+?\.\S+?)[ ?]", text)
        return match[1] if match else None


def _names_of(flag: str) -> list[str]:
    """Return an option's name with hyphens, followed by rg-env's own names for the same option."""
    option = f"--{flag.lstrip('-').replace('_', '-')}"
    return [option, *(name for name, others in _OTHER_NAMES.items() if option in others)]


def request_of(kind: type[T], options: argparse.Namespace) -> T:
    """Build the dataclass `kind` from the options named after its fields. Lists become tuples."""
    given = {each.name: getattr(options, each.name) for each in fields(kind) if hasattr(options, each.name)}  # type: ignore[arg-type]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def options_of(config: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of options that set config keys, by key. Options that are not given are omitted."""
    heads = config.model_fields
    given = {key: value for key, value in vars(options).items() if key.partition(".")[0] in heads}
    return {key: value for key, value in given.items() if value is not None}
