"""Packages, drivers and GPUs, from fabricated findings."""

import sys
import time

import pytest
from doctor_cases import BROKEN, CONSUMER, MIG, MISMATCH, TWO_GPUS, is_like, probe, smi
from packaging.requirements import Requirement

from rg_env.jobs.doctor import AskedRun, Check, check_trainer, closing_line, gpus, versions
from rg_env.jobs.doctor.aside import Outcome, run_aside, run_python


def test_a_failure_needs_a_fix_and_a_line_is_one_line() -> None:
    """Whatever an error's text holds."""
    with pytest.raises(ValueError, match="no fix"):
        Check("x", "failed", "broken")
    line = Check("ports", "failed", "one\ntwo", "do\tthat").line()
    assert line == "failed   ports         one two; fix: do that"
    assert closing_line([Check("a", "ok", ""), Check("b", "warning", ""), Check("c", "skipped", "")]) == (
        "1 ok, 1 warning, 0 failed"
    )


@pytest.mark.parametrize(
    ("version", "status"), [("3.11.7", "ok"), ("3.12.0rc1", "ok"), ("3.13.1", "warning"), ("3.10.4", "failed")]
)
def test_python_versions(version: str, status: str) -> None:
    """Too old stops a run; newer than tested may not."""
    check = versions.check_python(version, ">=3.11", ["3.11", "3.12"])
    assert check.status == status
    assert bool(check.fix) == (status != "ok")


def test_package_versions() -> None:
    """Ranges add up over extras; other extras and platforms count where they are installed only."""
    requirements = [
        Requirement(text)
        for text in (
            "verifiers>=0.1.2",
            "verifiers==0.1.6.post0; extra == 'train'",
            "torch<2.10,>=2.8; extra == 'train'",
            "vllm<0.11.1; extra == 'vllm'",
            "winonly>=1; sys_platform == 'nowhere' and extra == 'train'",
        )
    ]
    there = {"verifiers": "0.1.6.post0", "torch": "2.8.0+cu128"}
    is_like(versions.check_packages(requirements, ["train"], there.get), "ok", "all 2")
    is_like(
        versions.check_packages(requirements, ["train", "vllm"], there.get), "warning", "installed: vllm", "uv sync"
    )
    there |= {"torch": "2.11.0", "vllm": "0.12", "winonly": "0"}
    check = versions.check_packages(requirements, ["train"], there.get)
    is_like(check, "warning", "torch 2.11.0 (<2.10,>=2.8), vllm 0.12 (<0.11.1)", "rg-env[train]")
    assert "winonly" not in check.finding
    is_like(versions.check_packages(requirements, ["train"], {"torch": "2.8"}.get), "warning", "installed: verifiers")


def test_what_nvidia_smi_says() -> None:
    """Several GPUs, unknown values, MIG."""
    first, second = smi(TWO_GPUS).gpus
    assert (first.name, first.total, first.used) == ("NVIDIA A100-SXM4-80GB", 81920 * 2**20, 3 * 2**20)
    is_like(gpus.check_driver(smi(TWO_GPUS), "vllm"), "ok", "78 GB in use); driver 550.54.15")
    assert second.index == 1
    is_like(gpus.check_driver(smi(CONSUMER), "embedded"), "ok", "RTX 4090")
    is_like(gpus.check_driver(smi(MIG), "embedded"), "warning", "MIG is on", "NCCL")
    assert smi(MIG).gpus[0].used is None


@pytest.mark.parametrize(
    "outcome", [Outcome(None, errors="No such file or directory"), Outcome(6, "No devices were found")]
)
def test_no_gpu_is_fine(outcome: Outcome) -> None:
    """Neither the program nor a device."""
    is_like(gpus.check_driver(gpus.parse_smi(outcome), "embedded"), "ok", "none seen")


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(9, BROKEN), "couldn't communicate with the NVIDIA driver"),
        (Outcome(18, MISMATCH), "Failed to initialize NVML: Driver/library"),
        (Outcome(15, TWO_GPUS[:57] + "Unable to determine the device handle for GPU1: GPU is lost.\n"), "GPU is lost"),
        (Outcome(9), "exit code 9"),
        (Outcome(None, errors="no answer within 10 s", late=True), "no answer within 10 s"),
    ],
)
def test_a_broken_driver_stops_what_needs_it(outcome: Outcome, words: str) -> None:
    """And is told where a CPU would do."""
    broken = gpus.parse_smi(outcome)
    is_like(gpus.check_driver(broken, "vllm"), "failed", words, "driver")
    is_like(gpus.check_driver(broken, "embedded"), "warning", "CPU", "driver")


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (["sm_80"], (8, 0), True),
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_80"], (9, 0), False),
        (["compute_80"], (9, 0), True),
        (["sm_90a"], (9, 0), True),
        (["sm_100a"], (10, 3), False),
        (["sm_90", "sm_120"], (12, 0), True),
        (["gfx90a"], (9, 0), False),
        ([], (8, 0), False),
    ],
)
def test_kernels(architectures: list[str], capability: tuple[int, int], runs: bool) -> None:
    """Machine code runs within its major version, code for the driver's compiler on all later ones."""
    assert gpus.has_kernels(architectures, capability) is runs


def test_what_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what the driver sees."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    none, two, run = smi("", None), smi(TWO_GPUS), AskedRun()
    is_like(gpus.check_torch(probe({}, {}), "", two, run), "ok", "computes on 2 GPUs")
    is_like(gpus.check_torch(probe(), "", none, run), "ok", "on the CPU")
    is_like(gpus.check_torch(probe(cuda=None), "", two, run), "warning", "build for CPUs", "--gpu")
    is_like(gpus.check_torch(probe(problem="driver too old"), "", two, run), "warning", "too old", "update")
    is_like(gpus.check_torch(probe({"capability": [7, 0]}), "", two, run), "failed", "no kernels for GPU 0", "build")
    is_like(gpus.check_torch(probe({"capability": [7, 5]}), "", two, run), "warning", "no bf16", "fp16")
    is_like(gpus.check_torch(probe({}, {"problem": "busy"}), "", two, run), "failed", "GPU 1 does not", "CUDA_VISIBLE")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    is_like(gpus.check_torch(probe(), "", two, run), "warning", "hides", "unset")


def test_torch_that_does_not_work() -> None:
    """Missing is a failure only where training was asked for; broken always is."""
    found, reason = gpus.read_probe(Outcome(1, errors="Traceback\nModuleNotFoundError: No module named 'torch'\n"))
    assert found is None
    is_like(gpus.check_torch(None, reason, smi(""), AskedRun(asked=True)), "failed", "not installed", "rg-env[train]")
    is_like(gpus.check_torch(None, reason, smi(""), AskedRun(asked=False)), "warning", "not installed", "rg-env[train]")
    _, reason = gpus.read_probe(Outcome(-11))
    is_like(gpus.check_torch(None, reason, smi(""), AskedRun(asked=False)), "failed", "SIGSEGV", "reinstall")
    assert check_trainer(AskedRun(), torch_works=False).status == "skipped"


def test_a_trainer_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names the package that is missing."""
    monkeypatch.delitem(sys.modules, "rg_env.training.trainer", raising=False)
    monkeypatch.setitem(sys.modules, "rg_env.training.rollouts", None)
    assert check_trainer(AskedRun(), torch_works=True).status == "failed"
    is_like(check_trainer(AskedRun(asked=False), torch_works=True), "warning", "needs rg_env.training.rollouts")


def test_how_many_gpus() -> None:
    """One a process, and one more for a server on this machine that does not run yet."""
    two = smi(TWO_GPUS)

    def count(run: AskedRun, seen: int, server_runs: bool = False) -> Check:
        return gpus.check_count(probe(*[{}] * seen), two, run, server_runs=server_runs)

    is_like(count(AskedRun(processes=2), 2), "ok", "2 for 2")
    is_like(count(AskedRun(processes=3), 2), "failed", "3 processes and 2 GPUs", "--processes 2")
    is_like(count(AskedRun(engine="vllm", processes=2), 2), "failed", "one for vLLM", "--engine embedded")
    is_like(count(AskedRun(engine="vllm", processes=1), 2), "ok", "2 for 1")
    is_like(count(AskedRun(engine="vllm", processes=2, vllm_host="10.0.0.2"), 2), "ok", "2 for 2")
    is_like(count(AskedRun(), 0), "skipped", "no GPU")


def test_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it NCCL can hang, unless told."""
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    is_like(gpus.check_peers(probe({}), AskedRun()), "skipped", "fewer than two")
    is_like(gpus.check_peers(probe({}, {}), AskedRun()), "ok", "all 2")
    apart = probe({}, {}, apart=[[0, 1]])
    is_like(gpus.check_peers(apart, AskedRun()), "warning", "0 and 1", "NCCL_P2P_DISABLE=1")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    is_like(gpus.check_peers(apart, AskedRun()), "ok", "NCCL_P2P_DISABLE=1 is set")


def test_imports_are_judged_by_their_last_line() -> None:
    """In a process of its own, real here."""
    is_like(gpus.judge_import("vllm", Outcome(0), "0.11.0"), "ok", "0.11.0")
    outcome = run_python(30, "-c", "import sys; print('noise'); raise ImportError('libcudart.so.12: cannot open')")
    check = gpus.judge_import("flash-attn", outcome, "2.8.3")
    is_like(check, "failed", "2.8.3 cannot be imported: ImportError: libcudart.so.12: cannot open", "uninstall")


def test_what_hangs_is_killed() -> None:
    """With what it started, at the deadline."""
    start = time.monotonic()
    outcome = run_aside(["sh", "-c", "sleep 60 & wait"], 0.3)
    assert outcome.late
    assert outcome.reason == "no answer within 0.3 s"
    assert time.monotonic() - start < 10
    assert run_aside(["/nowhere/at/all"], 1).code is None
