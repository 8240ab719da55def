"""An argument parser without abbreviations that suggests the right name for an unknown option.

CommandParser(prog="rg-env tasks", examples=["rg-env tasks --category logic"]).parse_known_args(...)
"""

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from rg_env.errors import InputError

T = TypeVar("T")
_OTHER_NAMES = {
    # earlier names in rg_env
    "--out": ("--output-dir",),
    "--task": ("--tasks",),
    "--rollouts": ("--rollouts-per-example", "--max-rollouts"),
    "--vllm-host": ("--host",),
    "--vllm-port": ("--port",),
    "--per-device-batch-size": ("--per-device-train-batch-size",),
    # names in other tools
    "--limit": ("--num-examples",),
    "--output": ("--output-dir",),
    "--output-path": ("--output-dir", "--output"),
    "--model-args": ("--models", "--model"),
    "--model-name": ("--base", "--models", "--model"),
    "--optimizer-save-mode": ("--optimizer-state",),
    "--category": ("--tasks",),
    "--datasets": ("--tasks",),
    "--device": ("--gpus",),
    "--max-new-tokens": ("--max-tokens",),
    "--max-gen-toks": ("--max-tokens",),
    "--num-processes": ("--processes",),
    "--nproc-per-node": ("--processes", "--gpus"),
    "--n-gpus-per-node": ("--gpus",),
    "--gpus-per-node": ("--gpus",),
    "--num-gpus": ("--gpus",),
    "--nnodes": ("--nodes",),
    "--num-machines": ("--nodes",),
    "--num-nodes": ("--nodes",),
    "--tensor-model-parallel-size": ("--tensor-parallel-size",),
    "--resume-from-checkpoint": ("--resume",),
}
"""Earlier name, or another tool's name, for an option -> candidate names in rg-env."""


_ELSEWHERE = {
    "--processes": "`rg-env launch` and `accelerate launch` start several processes",
    "--gpus": "`rg-env launch` takes --gpus; otherwise set CUDA_VISIBLE_DEVICES",
    "--nodes": "`rg-env slurm --nodes N` writes a job for several nodes",
}
"""Option that `train` or `launch` does not have -> what to use instead."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser without option abbreviations; `examples` are commands shown at the end of `--help`."""

    def __init__(self, *given: Any, examples: Sequence[str] = (), **options: Any):
        super().__init__(*given, **{"allow_abbrev": False, **options})
        self.examples = tuple(examples)
        self._arguments: list[str] = []
        self.set_defaults(parser=self)

    def format_help(self) -> str:
        lines = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (f"\nexamples:\n{lines}" if lines else "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._arguments = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """If an option is misnamed, suggest the right name, because a required option may be missing only for this
        reason; otherwise report argparse's error on one line."""
        for argument in self._arguments:
            if argument.startswith("--") and self._called(argument):
                raise self.unknown(argument)
        raise InputError(f"{self.prog}: {message}; see `{self.prog} --help`")

    def unknown(self, argument: str) -> InputError:
        """Return the error for an unknown argument."""
        flag, _, value = argument.partition("=")
        if not flag.startswith("-"):
            return InputError(f"{self.prog}: unexpected argument {argument!r}; see `{self.prog} --help`")
        name = flag.lstrip("-").replace("-", "_")
        if called := self._called(flag):
            hint = f"use {called}"
        elif elsewhere := self._elsewhere(flag):
            hint = elsewhere
        elif name in ("config", "config_file", "config_path", "config_name"):
            file = self._value("config") or "/".join(filter(None, map(self._value, ("config-path", "config-name"))))
            file = f"{file.removesuffix('.yaml')}.yaml" if file else "configs/FILE.yaml"
            hint = f"pass only the path of the config: {self.prog} {file}"
        elif name in ("checkpoint", "checkpoint_dir", "checkpoint_path", "model_path") and self._takes("path"):
            hint = f"pass only its path: {self.prog} {self._value(flag) or 'CHECKPOINT'}"
        elif near := difflib.get_close_matches(flag, self._names(), n=1, cutoff=0.8):
            hint = f"did you mean {near[0]}?"
        elif any(action.nargs == argparse.REMAINDER for action in self._actions):
            model = self._value("model") or "MODEL"
            hint = f"the model comes first, then vLLM's options: {self.prog} {model} ..."
        elif key := self._key({"steps": "max_steps"}.get(name, name)):
            hint = f"it is a config key; write {key}={value or 'VALUE'}"
        else:
            hint = f"`{self.prog} --help` lists the options"
        return InputError(f"{self.prog} has no option {flag!r}: {hint}")

    def _takes(self, positional: str) -> bool:
        return any(action.dest == positional and not action.option_strings for action in self._actions)

    def _value(self, option: str) -> str:
        """The value given for an option that this command does not have: `--option VALUE` or `--option=VALUE`."""
        words = iter([part for word in self._arguments for part in word.split("=", 1)])
        name = option.lstrip("-").replace("_", "-")
        return next((next(words, "") for word in words if word.lstrip("-").replace("_", "-") == name), "")

    def _names(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def _called(self, argument: str) -> str | None:
        """This command's equivalent of an option that it does not have, if any."""
        flag, names = argument.partition("=")[0], self._names()
        here = (each for each in _candidates(flag) if each in names)
        return None if flag in names else next(here, None)

    def knows(self, argument: str) -> bool:
        """Whether the argument is another tool's name for an option, so that `unknown` can suggest the right one."""
        return bool(self._called(argument) or self._elsewhere(argument.partition("=")[0]))

    def _elsewhere(self, flag: str) -> str | None:
        """For commands that start a run: what to use instead of an option that starts several processes."""
        names = _candidates(flag) if self.prog.endswith((" train", " launch")) else ()
        return next((_ELSEWHERE[each] for each in names if each in _ELSEWHERE), None)

    def _key(self, name: str) -> str | None:
        """The dotted config key with this name, for commands that accept overrides."""
        if not any(action.dest in ("overrides", "script") for action in self._actions):
            return None
        from rg_env.core.config.parsing import unknown_key
        from rg_env.evaluation.config import EvalConfig
        from rg_env.training.config.schema import TrainConfig

        schema = EvalConfig if self.prog.endswith(" eval") else TrainConfig
        match = re.search(r"did you mean (\S+?\.\S+?)[ ?]", unknown_key(schema, (name,)))
        return match[1] if match else None


def request_of(kind: type[T], options: argparse.Namespace) -> T:
    """Build the dataclass `kind` from the options with the names of its fields; lists become tuples."""
    given = {each.name: getattr(options, each.name) for each in fields(kind) if hasattr(options, each.name)}  # type: ignore[arg-type]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _candidates(flag: str) -> tuple[str, ...]:
    option = f"--{flag.lstrip('-').replace('_', '-')}"
    return (option, *_OTHER_NAMES.get(option, ()))
