"""The scripts of `rg-env slurm`, run with stand-ins for Slurm and for what they start."""

import json
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml

pytest.importorskip("psutil", reason="extras 'train' and 'eval' have it")
from chat_server import ChatServer
from slurm_cluster import CONFIG, JOB, JOBS, PORT, Cluster, job

from rg_env.core.config import yaml12
from rg_env.jobs.slurm.job import SlurmJob
from rg_env.jobs.slurm.slurm import sbatch_script
from rg_env.jobs.sweep.comparison import compare
from rg_env.jobs.sweep.grid import load_sweep


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
            "launch --config-file configs/ddp.yaml --num_processes 8 --main_process_port 0 -m rg_env.cli.main train"
        ),
        *["embedded.yaml", output, "--resume", "auto"],
    ]


@pytest.mark.parametrize("visible", ["0,1,2,3,4,5,6,7", "GPU-aa,GPU-bb,GPU-cc,GPU-dd,4,5,6,7"])
def test_the_first_gpus_of_a_node_are_the_servers(cluster: Cluster, visible: str) -> None:
    """By the names that Slurm gives them."""
    assert cluster.run(JOBS["8 GPUs"], CUDA_VISIBLE_DEVICES=visible) == (0, "")
    words = cluster.call("rg-env")["arguments"]
    assert words[-7:] == ["--processes", "6", "--vllm-gpus", ",".join(visible.split(",")[:2]), "--", "--resume", "auto"]


def test_an_evaluation_has_a_server_on_each_gpu(cluster: Cluster) -> None:
    """Of all that Slurm gives, by `rg-env eval` itself, which goes on with what the job's folder holds."""
    assert cluster.run(JOBS["an evaluation"]) == (0, "")
    output = f"output.dir='outputs/evaluation-{JOB}'"
    assert cluster.call("rg-env")["arguments"] == [
        *["eval", "evaluation.yaml", "num_examples=7", "serving.kind=vllm", output, "--resume"]
    ]
    assert cluster.call("rg-env")["environment"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    chosen = job("evaluation.yaml", overrides=("serving.kind=embedded", "output.dir=/scratch/my runs"))
    assert cluster.run(chosen, RG_ENV_OUTPUT_DIR="old") == (0, "")
    words = cluster.call("rg-env")["arguments"]
    assert words[-2:] == ["output.dir='old'", "--resume"]
    assert "serving.kind=vllm" not in words


@pytest.mark.slow
def test_an_evaluation_that_ran_out_of_time_goes_on_when_it_is_requeued(cluster: Cluster) -> None:
    """The real program: told that its time is up it ends in good order, and asks the rest the next time."""
    program = cluster.checkout / ".venv/bin/rg-env"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rg_env.cli.main "$@"\n')
    with ChatServer(lambda question: "<answer>4</answer>", trouble=lambda number, body: 2.0) as server:
        models = json.dumps({"here": {"model": "tiny"}, "there": {"model": "m", "url": server.url}})
        settings = ("rollouts_per_example=2", "sampling.max_tokens=90", "requests.concurrency=4", "num_examples=60")
        asked = job("evaluation.yaml", overrides=(f"models={models}", "serving.kind=embedded", *settings))
        folder = cluster.checkout / f"outputs/evaluation-{JOB}"
        with cluster.start(asked, CUDA_VISIBLE_DEVICES="") as process:
            deadline = time.monotonic() + 90
            while len(answered(folder, "here")) < 120 and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            printed, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (130, "interrupted\n")
        assert f"go on with --resume --output-dir outputs/evaluation-{JOB}" in printed
        before = answered(folder, "here"), answered(folder, "there")
        assert len(before[0]) == 120 > len(before[1])
        assert not [*folder.glob("results*")]
        server.trouble = lambda number, body: None
        assert cluster.run(asked, CUDA_VISIBLE_DEVICES="") == (0, "")
    after = answered(folder, "here"), answered(folder, "there")
    assert after[0] == before[0]
    assert after[1][: len(before[1])] == before[1]
    assert len({*after[1]}) == len(after[1]) == 120
    assert [*folder.glob("results_all_tasks_*.json")]


def answered(folder: Path, model: str) -> list[tuple[str, int]]:
    """Question and number of each rollout that there is, in order."""
    file = folder / "rollouts.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(record["row"], record["rollout"]) for record in records if record["model"] == model]


@pytest.mark.slow
def test_two_nodes(cluster: Cluster) -> None:
    """A server on the first one's first GPU; when it serves, trainers on both, which meet on the first."""
    (cluster.checkout / ".env").write_text("HF_TOKEN=hf_secret\n")
    asked = job(gpus=8, nodes=2, overrides=("model.name=org/model", "training.max_prompt_length=512"))
    code, errors = cluster.run(asked)
    assert (code, errors) == (0, "")
    server = cluster.call("rg-env")
    assert server["arguments"] == shlex.split(f"vllm org/model --host 127.0.0.1 --port {PORT} --max-model-len 1536")
    variables = ("CUDA_VISIBLE_DEVICES", "HF_TOKEN")
    assert [server["environment"][name] for name in variables] == ["0", "hf_secret"]
    assert "hf_secret" not in sbatch_script(asked)
    trainers = sorted(
        cluster.records(program="accelerate", event="began"), key=lambda each: each["environment"]["SLURM_NODEID"]
    )
    for rank, trainer in enumerate(trainers):
        assert trainer["environment"]["CUDA_VISIBLE_DEVICES"] == "1,2,3,4,5,6,7"
        assert trainer["arguments"] == [
            *shlex.split("launch --config-file configs/zero3_multinode.yaml --num_machines 2 --num_processes 14"),
            *shlex.split(
                f"--machine_rank {rank} --main_process_ip node0 --main_process_port {PORT + 1} -m rg_env.cli.main train"
            ),
            *["vllm.yaml", "model.name=org/model", "training.max_prompt_length=512"],
            *[f"output.dir='outputs/vllm-{JOB}'", "engine.host=127.0.0.1", f"engine.port={PORT}", "--resume", "auto"],
        ]
    order = [(record["program"], record["event"]) for record in cluster.records()]
    assert len(trainers) == 2
    assert order.index(("rg-env", "serving")) < order.index(("srun", "began"))
    await_event(cluster, program="rg-env", event="ended")  # it does not outlive the job


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
    assert errors == f"vLLM ended, or was not ready after 20 minutes: see vllm-{JOB}-vllm.log\n"
    assert "out of memory" in (cluster.checkout / f"vllm-{JOB}-vllm.log").read_text()
    assert not cluster.records(program="srun")


@pytest.mark.slow
@pytest.mark.parametrize("asked", JOBS.values(), ids=JOBS)
def test_the_exit_code_is_the_trainers(cluster: Cluster, asked: SlurmJob) -> None:
    code, _ = cluster.run(asked, STAND_IN_CODE="37", SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3")
    assert code == 37


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "trainers"), [*zip(JOBS.values(), [1, 1, 1, 1, 2, 1, 1, 1], strict=True)], ids=JOBS)
def test_the_warning_lets_each_trainer_save(cluster: Cluster, asked: SlurmJob, trainers: int) -> None:
    """Each is told once, its launcher never; the job waits for all, and ends with their exit code."""
    code = cluster.warn(asked, trainers, SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3")
    events = [record["event"] for record in cluster.records()]
    assert [events.count(event) for event in ("told", "saved", "launcher told")] == [trainers, trainers, 0]
    assert code == 130
    own = "4700_3" if asked.array or asked.sweep else JOB  # of an array, 4700 alone would be all of its jobs
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


def test_jobs_of_a_sweep_have_points_and_folders_of_their_own(cluster: Cluster) -> None:
    """By their number, from 1, seeds innermost; and leave what `rg-env compare` reads."""
    asked = JOBS["a sweep"]
    points = [(rate, seed) for rate in ("1e-6", "2e-6") for seed in (0, 1)]
    for number, (rate, seed) in enumerate(points, 1):
        assert cluster.run(asked, SLURM_ARRAY_JOB_ID="4711", SLURM_ARRAY_TASK_ID=str(number)) == (0, "")
        words = cluster.call("accelerate")["arguments"]
        assert words[words.index("train") + 1 :] == [
            "embedded.yaml",
            f"training.learning_rate={rate}",
            f"seed={seed}",
            f"output.dir='outputs/embedded-4711/learning_rate={float(rate)}_seed={seed}'",
            *["--resume", "auto"],
        ]
    folder = cluster.checkout / "outputs" / "embedded-4711"
    assert [path.name for path in folder.iterdir()] == ["sweep.yaml"]
    assert yaml12.load((folder / "sweep.yaml").read_text()) == load_sweep(asked.config, [], asked.sweep).described()
    assert [run.status for run in compare(folder).runs] == ["not started"] * 4


@pytest.mark.slow
def test_a_job_without_a_point_and_a_folder_of_another_sweep_end_at_once(cluster: Cluster) -> None:
    asked, array = JOBS["a sweep"], {"SLURM_ARRAY_JOB_ID": "4711"}
    told = "the sweep has no point 5: they are 1 to 4\n"
    assert cluster.run(asked, **array, SLURM_ARRAY_TASK_ID="5") == (2, told)
    other = cluster.checkout / "old" / "sweep.yaml"
    other.parent.mkdir()
    other.write_text("swept: {}\n")
    told = "old/sweep.yaml is of another sweep: give another RG_ENV_OUTPUT_DIR\n"
    assert cluster.run(asked, **array, SLURM_ARRAY_TASK_ID="1", RG_ENV_OUTPUT_DIR="old") == (2, told)
    assert [path.name for path in other.parent.iterdir()] == ["sweep.yaml"]
    assert other.read_text() == "swept: {}\n"
    assert not cluster.records(program="srun")


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
    setting = f"prompt.system_prompt={json.dumps(HOSTILE)}"
    swept = f"logging.project={json.dumps(HOSTILE)}"
    for nodes, program in ((1, "rg-env"), (2, "accelerate")):
        settings = (setting, "logging.run_name=$HOME")
        asked = job(f"{HOSTILE}.yaml", gpus=2, nodes=nodes, overrides=settings, sweep=(f"{swept},$(touch pwned)",))
        assert there.run(asked, SLURM_ARRAY_JOB_ID="4711", SLURM_ARRAY_TASK_ID="1") == (0, "")
        for call in there.records(program=program, event="began"):
            assert call["folder"] == str(folder)
            assert {f"{HOSTILE}.yaml", setting, swept, "logging.run_name=$HOME"} <= set(call["arguments"])
    assert not [*folder.parent.rglob("pwned")]
    assert re.fullmatch(r"[A-Za-z0-9_.+-]+", asked.name)
