"""What is asked of Slurm for a training run or an evaluation, checked. Imports no torch."""

import re
from dataclasses import dataclass
from pathlib import Path

from rg_env.core.config.files import is_config_file
from rg_env.errors import InputError

CPUS_PER_GPU = 8
_LEAST_MINUTES = 5  # Slurm's warning comes two or three before the end, and a run needs some to begin
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_MEMORY = re.compile(r"[0-9]+[KMGT]?")
_SEEDS = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")
_TIMES = [  # as sbatch's manual has them
    re.compile(r"(?P<minutes>[0-9]+)(?::[0-9]+)?"),
    re.compile(r"(?P<hours>[0-9]+):(?P<minutes>[0-9]+):[0-9]+"),
    re.compile(r"(?P<days>[0-9]+)-(?P<hours>[0-9]+)(?::(?P<minutes>[0-9]+)(?::[0-9]+)?)?"),
]
_MINUTES = {"days": 1440, "hours": 60, "minutes": 1}


@dataclass(frozen=True)
class SlurmJob:
    """What the user asks for."""

    config: str
    gpus: int
    """On each node."""
    time: str
    """As Slurm takes it: MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS, ..."""
    overrides: tuple[str, ...] = ()
    """Of the config: "key=value"."""
    nodes: int = 1
    account: str | None = None
    partition: str | None = None
    """Or several, with commas."""
    qos: str | None = None
    cpus_per_task: int | None = None
    """On each node; default: 8 a GPU."""
    mem: str | None = None
    """On each node, such as 200G; default: the cluster's."""
    array: str | None = None
    """Seeds, one job each: "0-4" or "1,7,9"; "0-9%2" runs two at a time."""
    sweep: tuple[str, ...] = ()
    """One job a point of this sweep: "key=value,value"."""
    vllm_gpus: int | None = None
    """On the first node. Default: 1; a single GPU is shared with the trainer."""
    job_name: str | None = None
    """Default: the config's."""

    @property
    def name(self) -> str:
        """Of the job, and of its output folder."""
        return self.job_name or re.sub(r"[^A-Za-z0-9_.+-]+", "-", Path(self.config).stem).lstrip("-.+")[:64] or "rg-env"

    @property
    def cpus(self) -> int:
        """On each node."""
        return self.cpus_per_task or CPUS_PER_GPU * self.gpus

    def check(self) -> None:
        """Raise `InputError` unless Slurm can take it, and nothing in it can end up as something else in a script."""
        for flag in ("account", "partition", "qos", "job_name"):
            value = getattr(self, flag)
            names = [] if value is None else value.split(",") if flag == "partition" else [value]
            if not all(map(_NAME.fullmatch, names)):
                raise InputError(f"--{flag.replace('_', '-')} {value!r}: a name has letters, digits and any of . _ + -")
        for flag in ("gpus", "nodes", "vllm_gpus", "cpus_per_task"):
            if (number := getattr(self, flag)) is not None and number < 1:
                raise InputError(f"--{flag.replace('_', '-')} {number} is not at least 1")
        if self.mem is not None and not _MEMORY.fullmatch(self.mem):
            raise InputError(f"--mem {self.mem!r} is no amount of memory: such as 200G (of K, M, G, T)")
        if _minutes(self.time) < _LEAST_MINUTES:
            raise InputError(
                f"--time {self.time} is too short: {_LEAST_MINUTES} minutes at least, as saving takes some"
            )
        words = [("override", each) for each in self.overrides] + [("--sweep", each) for each in self.sweep]
        for what, text in [("the config's path", self.config), *words]:
            check_text(what, text)
        if not is_config_file(self.config):
            raise InputError(f"{self.config!r} is no config: give a .yaml file, such as configs/train/tiny.yaml")
        if self.array is not None and self.sweep:
            raise InputError("--sweep numbers the jobs itself: leave --array out, and sweep the seed")
        if self.array is not None:
            _check_array(self.array)
            if any(override.partition("=")[0].strip() == "seed" for override in self.overrides):
                raise InputError("--array gives each job its seed: leave seed=... out")

    def processes(self, *, embedded: bool) -> int:
        """How many train, over all nodes.

        Raises:
            InputError: there are not the GPUs for it, or the embedded engine cannot do it.
        """
        if embedded:
            if self.vllm_gpus is not None:
                raise InputError("--vllm-gpus is for engine.kind=vllm, and this config has embedded: set or omit it")
            if self.nodes > 1:
                raise InputError(
                    f"--nodes {self.nodes} needs engine.kind=vllm: the embedded engine generates on one node only"
                )
            return self.gpus
        if self.nodes == self.gpus == 1 and self.vllm_gpus in (None, 1):
            return 1  # it shares the GPU with the server
        served = self.vllm_gpus or 1
        if served >= self.gpus:
            raise InputError(
                f"vLLM on {served} of --gpus {self.gpus} leaves none to train on: fewer --vllm-gpus, or more GPUs"
            )
        return (self.gpus - served) * self.nodes


def check_text(what: str, text: str) -> None:
    """Raise `InputError` for characters that quoting does not help against: a line break ends a comment, too."""
    if not text.isprintable():
        raise InputError(f"{what}: {text[:80]!r} has line breaks, or other characters that cannot be seen")


def _minutes(time: str) -> int:
    for form in _TIMES:
        if (match := form.fullmatch(time)) is not None:
            return sum(int(digits or 0) * _MINUTES[unit] for unit, digits in match.groupdict().items())
    forms = "MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS or DAYS-HOURS:MINUTES[:SECONDS]"
    raise InputError(f"--time {time!r} is no time as Slurm takes it: {forms}")


def _check_array(array: str) -> None:
    seeds, limited, at_once = array.partition("%")
    parts = [_SEEDS.fullmatch(part) for part in seeds.split(",")]
    fine = not limited or re.fullmatch("0*[1-9][0-9]*", at_once) is not None
    for part in parts:
        last = int(part[2] or part[1]) if part else -1
        fine = fine and part is not None and int(part[1]) <= last < 2**32 and int(part[3] or 1) > 0
    if not fine:
        raise InputError(f"--array {array!r} is no list of seeds: such as 0-4, or 1,7,9 (0-9%2: two at a time)")
