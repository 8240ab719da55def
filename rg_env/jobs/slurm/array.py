"""What is a job's own in an array: its seed, or its point of a sweep. Pieces of the script that `slurm` writes."""

import shlex
from dataclasses import dataclass
from string import Template

from rg_env.core.config.files import read_config
from rg_env.core.config.yaml12 import to_yaml
from rg_env.errors import InputError
from rg_env.jobs.slurm.job import SlurmJob
from rg_env.jobs.sweep.comparison import SWEEP_FILE
from rg_env.jobs.sweep.grid import Sweep, parse_axes
from rg_env.training.config.sections import EngineConfig

TASK = "$SLURM_ARRAY_TASK_ID"


@dataclass(frozen=True)
class Share:
    """Pieces of a script. Without an array there are none."""

    array: str | None = None
    """As `sbatch --array` takes it."""
    settings: tuple[str, ...] = ()
    """Words over the config's own, quoted for a shell."""
    leaf: str = ""
    """Of the output folder."""
    choice: str = ""
    """Lines that pick the job's part."""
    record: str = ""
    """Lines that leave in the array's folder what it is."""
    names: str = ""
    """Variables that the nodes need."""
    head: str = ""
    """Of the script."""


def seed_share(array: str) -> Share:
    """A seed for each job: the numbers of `array`."""
    return Share(array, (f'"seed={TASK}"',), f"/seed-{TASK}")


def swept_engine(job: SlurmJob) -> object:
    """What generates in the runs of the job's sweep, unchecked. Raises `InputError` where that is swept."""
    for axis in parse_axes(job.sweep):
        if axis.key in ("engine", "engine.kind"):
            raise InputError(f"--sweep {axis.key}: a script is for one engine.kind: write a script for each")
    document = read_config(job.config, job.overrides)
    path = ("engine", "kind")
    return document.at(path) if document.has(path) else EngineConfig().kind


def sweep_share(sweep: Sweep, folder: str) -> Share:
    """A point for each job, numbered from 1. `folder`: where the runs go, for people."""
    variables = [f"sweep_{number}" for number in range(1, len(sweep.axes) + 1)]
    cases = []
    for point in sweep.points:
        given = zip(["point", *variables], [point.name, *point.overrides], strict=True)
        cases.append(f"{point.number}) {' '.join(f'{name}={shlex.quote(text)}' for name, text in given)} ;;")
    return Share(
        f"1-{len(sweep.points)}",
        tuple(f'"${name}"' for name in variables),
        "/$point",
        _CHOICE.substitute(cases="\n".join(cases), count=len(sweep.points)),
        _RECORD.substitute(text=to_yaml(sweep.described()), file=SWEEP_FILE),
        "".join(f" {name}" for name in variables),
        f"\n# Table and picture of its runs, at any time: rg-env compare {folder}",
    )


class _Template(Template):
    delimiter = "@@"


_CHOICE = _Template("""\
# The points of the sweep, by the number of the job in the array.
case $SLURM_ARRAY_TASK_ID in
@@{cases}
*) echo "the sweep has no point $SLURM_ARRAY_TASK_ID: they are 1 to @@{count}" >&2 && exit 2 ;;
esac

""")

_RECORD = _Template("""\
# What is swept, for `rg-env compare`: the same in each job, and in a folder that is given.
sweep=${output_dir%/*}/@@{file}
mkdir -p "${sweep%/*}"
cat >"$sweep.$SLURM_ARRAY_TASK_ID" <<'end of @@{file}'
@@{text}end of @@{file}
if [ -e "$sweep" ] && ! cmp -s "$sweep" "$sweep.$SLURM_ARRAY_TASK_ID"; then
  rm "$sweep.$SLURM_ARRAY_TASK_ID"
  echo "$sweep is of another sweep: give another RG_ENV_OUTPUT_DIR" >&2
  exit 2
fi
mv "$sweep.$SLURM_ARRAY_TASK_ID" "$sweep"

""")
