"""Stand-ins for Slurm and for the programs that its jobs start, and the jobs for which tests write scripts."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil", reason="needs the train or eval extra")
from worker_pools import until

from rg_env.jobs.slurm import SlurmJob, sbatch_script

REPOSITORY = Path(__file__).parents[2]
JOB = str(os.getpid())  # determines the ports, which must differ between concurrent test runs
PORT = 10000 + os.getpid() % 10000 * 2
CONFIG = "model: {name: tiny}\ntasks: leg_counting\nengine: {kind: KIND}\n"
CONFIG += "training: {rollouts_per_step: 168, per_device_train_batch_size: 1}\n"  # fits all numbers of GPUs in JOBS
EVALUATION = "models: {base: tiny, other: org/model}\ntasks: leg_counting\n"


HEAD = f"""#!{sys.executable} -I
import json, os, signal, socket, subprocess, sys, time
signal.alarm(120)  # ends the process even if a test fails
def note(event, **more):  # appends one line to the log, in one write
    line = json.dumps({{"program": os.path.basename(sys.argv[0]), "event": event, **more}}) + "\\n"
    log = os.open(os.environ["STAND_IN_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
def begin():
    note("began", arguments=sys.argv[1:], environment=dict(os.environ), folder=os.getcwd())
def train():  # saves on SIGTERM, like the trainer; a second SIGTERM would kill it
    def save(*_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        note("signaled")
        time.sleep(0.5)
        note("saved")
        sys.exit(130)
    signal.signal(signal.SIGTERM, save)
    note("training")
    time.sleep(float(os.environ.get("STAND_IN_TRAINS_S", 0)))
    sys.exit(int(os.environ.get("STAND_IN_CODE", 0)))
def serve():
    signal.signal(signal.SIGTERM, lambda *_: (note("ended"), sys.exit(0)))
    if os.environ.get("STAND_IN_SERVER") == "fails":
        sys.exit("out of memory")
    time.sleep(0.3)
    listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
    note("serving")
    while True:
        listener.accept()[0].close()
"""
RG_ENV = "begin()\nserve() if sys.argv[1] == 'vllm' else train()\n"
# The launcher's child trains. Like torch's launcher, this one ends its child when it receives a signal.
LAUNCHER = """
if os.environ.get("STAND_IN_WORKER"):
    train()
begin()
child = subprocess.Popen([sys.executable, "-I", *sys.argv], env={**os.environ, "STAND_IN_WORKER": "1"})
signal.signal(signal.SIGTERM, lambda *_: (note("launcher signaled"), child.kill()))
sys.exit(child.wait())
"""
# On SIGTERM, srun sends SIGKILL to its tasks (srun_signal_mgr in Slurm's source), and so does this stand-in.
SRUN = """
begin()
words = sys.argv[1:]
options = [word for word in words if word.startswith("--")]
command = words[next(n for n, word in enumerate(words) if not word.startswith("--")):]
nodes = int(next(word for word in options if word.startswith("--nodes=")).split("=")[1])
tasks = []
signal.signal(signal.SIGTERM, lambda *_: [task.kill() for task in tasks])
for node in range(nodes):
    own = {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURMD_NODENAME": f"node{node}"}
    tasks.append(subprocess.Popen(command, env={**os.environ, **own}))
note("tasks", pids=[task.pid for task in tasks])
codes = [task.wait() for task in tasks]
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""
# Without cgroups, scancel sends the signal to every process of a step, and so does this stand-in.
SCANCEL = """
import psutil
begin()
number = getattr(signal, "SIG" + sys.argv[1].removeprefix("--signal="))
with open(os.environ["STAND_IN_LOG"]) as log:
    for record in map(json.loads, log):
        for task in map(psutil.Process, record.get("pids", [])):
            for process in [task, *task.children(recursive=True)]:
                process.send_signal(number)
"""
PYTHON = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'  # has the packages of the test run, like the real .venv
TOOLS = {"srun": HEAD + SRUN, "scancel": HEAD + SCANCEL, "module": "#!/bin/sh\n"}
STAND_INS = {"rg-env": HEAD + RG_ENV, "accelerate": HEAD + LAUNCHER, "python": PYTHON}


def job(config: str = "vllm.yaml", **changes: Any) -> SlurmJob:
    return SlurmJob(**{"config": config, "gpus": 1, "time": "04:00:00", **changes})


JOBS = {
    "one GPU": job(),
    "one GPU, embedded": job("embedded.yaml", account="lab"),
    "8 GPUs": job(gpus=8, vllm_gpus=2, partition="gpu,long", qos="high", mem="200G"),
    "8 GPUs, embedded": job("embedded.yaml", gpus=8),
    "two nodes": job(gpus=8, nodes=2, gpu_type="h100", modules=("cuda/12.8",)),
    "an array": job(gpus=4, array="0-4%2", overrides=("training.learning_rate=2e-6",)),
    "an evaluation": job("evaluation.yaml", gpus=8, overrides=("num_examples=7",), account="lab"),
    "a sweep": job("embedded.yaml", gpus=2, sweep=("seed=0,1", "training.learning_rate=1e-6,2e-6")),
}


class Cluster:
    """Runs scripts like slurmd: in bash, with a job's variables, and with the stand-ins first on the PATH."""

    def __init__(self, checkout: Path):
        self.checkout, self.log = checkout, checkout.parent / "log"
        self.tools = checkout.parent / "tools"
        for folder, programs in ((checkout / ".venv/bin", STAND_INS), (self.tools, TOOLS)):
            folder.mkdir(exist_ok=True)
            for name, text in programs.items():
                (folder / name).unlink(missing_ok=True)  # never write through a link to the real python
                (folder / name).write_text(text)
                (folder / name).chmod(0o755)

    def start(self, spec: SlurmJob, **variables: str) -> subprocess.Popen[str]:
        self.log.unlink(missing_ok=True)
        script = self.checkout.parent / "slurm_script"
        script.write_text(sbatch_script(spec))
        environment = {
            "PATH": f"{self.tools}:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "STAND_IN_LOG": str(self.log),
            "SLURM_JOB_ID": JOB,
            "SLURMD_NODENAME": "node0",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(spec.gpus))),
        }
        return subprocess.Popen(
            ["bash", str(script)],
            cwd="/",  # independent of the folder where the job was submitted
            env={**environment, **variables},
            text=True,
            **dict.fromkeys(("stdout", "stderr"), subprocess.PIPE),
        )

    def run(self, spec: SlurmJob, **variables: str) -> tuple[int, str]:
        """Run a job to its end, and return its exit code and standard error."""
        with self.start(spec, **variables) as process:
            _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    def warn(self, spec: SlurmJob, trainers: int, **variables: str) -> int:
        """Send SIGTERM twice to the script's shell once all trainers train, like `--signal=B:TERM`. Return the exit
        code."""
        with self.start(spec, STAND_IN_TRAINS_S="60", **variables) as process:
            assert until(lambda: len(self.records(event="training")) == trainers, 120)
            process.send_signal(signal.SIGTERM)
            assert until(lambda: bool(self.records(event="signaled")), 120)
            process.send_signal(signal.SIGTERM)  # the second signal arrives while the trainers save
            process.communicate(timeout=120)
        return process.returncode

    def records(self, **wanted: str) -> list[dict[str, Any]]:
        """Return the records of the stand-ins, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [record for record in map(json.loads, lines) if wanted.items() <= record.items()]

    def call(self, program: str) -> dict[str, Any]:
        """Return the only call of a program."""
        (record,) = self.records(program=program, event="began")
        return record
