"""External benchmarks: tasks of lm-evaluation-harness, asked of the same models in the same way as ours.

    with Harness(config) as harness:
        benchmarks = harness.prepare()                # what lm-eval asks; no model is needed for it
        ...                                           # `runner.evaluate` asks it
        results = [harness.score(each, folder) for each in benchmarks]

lm-eval makes the requests and grades the answers, in a process of its own (`evaluation.harness`). It asks no model: its
client for chat endpoints sends stop sequences and seeds that servers refuse, the embedded engine among them, ends an
evaluation with the first call that fails for good, and cannot go on with one. Here calls, retries and keys are those of
the rest of the evaluation, and each answer is a line of `external/answers.jsonl` as soon as it is there. lm-eval cuts
answers at a task's stop sequences, after the fact.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import rg_env
from rg_env.core.text import file_part
from rg_env.errors import InputError, MissingExtraError, RGEnvError
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.lm_eval.requests import FOLDER, Benchmark
from rg_env.evaluation.models import DEFAULT_KEY
from rg_env.evaluation.results import BenchmarkScore, ExternalResult, Interval

_SHIPPED = Path("configs") / "lm_eval"
_SCORING_S = 600.0
"""Seconds that lm-eval may grade one model's answers for, and as many for each thousand of them: mathematics in one can
take for ever to simplify."""
_Z95 = 1.959964


class Harness:
    """lm-eval in its process, which ends with the `with` block.

    version: of lm-eval, once `prepare` has returned.

    Raises:
        MissingExtraError: lm-eval is not installed.
    """

    version = ""

    def __init__(self, config: EvalConfig):
        if find_spec("lm_eval") is None:
            raise MissingExtraError(
                "external benchmarks need lm_eval, which is not installed: `pip install 'rg-env[eval-external]'`"
            )
        self._config = config
        # Models with the same system prompt are asked the same.
        self._prompts = list(dict.fromkeys(model.system_prompt for model in config.models.values()))
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._rest = b""

    def __enter__(self) -> "Harness":
        self._log = tempfile.TemporaryFile()
        keys = {DEFAULT_KEY, *(model.key_variable for model in self._config.models.values())}
        environment = {name: value for name, value in os.environ.items() if name not in keys}
        environment |= {
            "HF_ALLOW_CODE_EVAL": "0",
            "HF_DATASETS_TRUST_REMOTE_CODE": "0",
            "TOKENIZERS_PARALLELISM": "false",
        }
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "rg_env.evaluation.lm_eval.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            bufsize=0,
            start_new_session=True,  # ended as a group; Ctrl-C in the terminal does not reach it
        )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, self._log):
            if stream is not None:
                stream.close()

    def prepare(self) -> list[Benchmark]:
        """All models on all benchmarks: what lm-eval asks them.

        Raises:
            InputError: there is no such task; its data set cannot be had; chat endpoints cannot be asked it.
            RGEnvError: lm-eval's process ended.
        """
        external = self._config.external
        with tempfile.TemporaryDirectory(prefix="rg-env-external-") as folder:
            file = Path(folder) / "requests.jsonl"
            call = {
                "tasks": external.tasks,
                "include": [str(each) for each in include_folders(external.include)],
                "limit": external.num_examples,
                "prompts": self._prompts,
                "requests": str(file),
            }
            try:
                reply = self._call(call, None)
            except _Told as told:
                raise InputError(str(told)) from None
            requests = self._requests(file)
        self.version = reply["version"]
        if reply["unused"]:
            print(f"settings that models are not asked with: {', '.join(reply['unused'])}", flush=True)
        return [
            Benchmark(name, benchmark, number, requests[benchmark, number], model.prices)
            for name, model in self._config.models.items()
            for number in [self._prompts.index(model.system_prompt)]
            for benchmark in external.tasks
        ]

    def score(self, benchmark: Benchmark, folder: Path) -> ExternalResult:
        """Grade the answers; lm-eval's own results are written into `folder`/external.

        Raises:
            RGEnvError: lm-eval failed, or took too long.
        """
        # Names of models can be one as files; their numbers are not.
        names = [file_part(name) for name in self._config.models]
        number = list(self._config.models).index(benchmark.model)
        model = names[number] if names.count(names[number]) == 1 else f"{number}_{names[number]}"
        stem = f"{file_part(benchmark.name)}_{model}"
        answers = {key: benchmark.answers[key]["text"] for key in benchmark.requests}
        call = {
            "benchmark": benchmark.name,
            "prompt": benchmark.prompt,
            "answers": answers,
            "output": str((folder / FOLDER / stem).absolute()),
        }
        try:
            reply = self._call(call, _SCORING_S * (1 + len(answers) / 1000))
        except _Told as told:
            what = f"{benchmark.name}, {benchmark.model}: lm-eval cannot grade the answers: {told}"
            raise RGEnvError(f"{what}. They are kept: go on with --resume --output-dir {folder}") from None
        known = [each["truncated"] for each in benchmark.answers.values() if each["truncated"] is not None]
        return ExternalResult(
            model=benchmark.model,
            benchmark=benchmark.name,
            answers=benchmark.asked,
            failed=benchmark.failed,
            truncated=sum(known) / len(known) if known else None,
            usage=benchmark.usage(),
            scores=[
                BenchmarkScore(**score, interval=_interval(score["value"], score["stderr"]))
                for score in reply["scores"]
            ],
        )

    def keep_log(self, folder: Path) -> None:
        """Write what lm-eval has said into `folder`/external."""
        assert self._log
        (folder / FOLDER).mkdir(exist_ok=True)
        with (folder / FOLDER / "lm_eval.log").open("ab") as log:
            log.write(self._said())

    def _requests(self, file: Path) -> dict[tuple[str, int], dict[str, dict[str, Any]]]:
        found: dict[tuple[str, int], dict[str, dict[str, Any]]] = {
            (name, number): {} for name in self._config.external.tasks for number in range(len(self._prompts))
        }
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                request = {"messages": record["chat"], **self._sampling(record["sampling"])}
                found[record["benchmark"], record["prompt"]][record["key"]] = request
        return found

    def _sampling(self, of_task: dict[str, Any]) -> dict[str, Any]:
        """The task's own settings, except for what the config says; greedy where neither says."""
        external = self._config.external
        lengths = [of_task[each] for each in ("max_gen_toks", "max_tokens", "max_new_tokens") if each in of_task]
        temperature = 0.0 if of_task.get("do_sample") is False else of_task.get("temperature", 0.0)
        return {
            "max_tokens": external.max_tokens or int(next(iter(lengths), self._config.sampling.max_tokens)),
            "temperature": temperature if external.temperature is None else external.temperature,
            "top_p": external.top_p or of_task.get("top_p", 1.0),
        }

    def _call(self, call: dict[str, Any], wall_s: float | None) -> dict[str, Any]:
        process = self._process
        assert process
        assert process.stdin
        assert process.stdout
        deadline = None if wall_s is None else time.monotonic() + wall_s
        try:
            data = memoryview(json.dumps(call).encode() + b"\n")  # pure ASCII: lone surrogates pass
            while data:  # unbuffered: a pipe takes what it takes
                data = data[process.stdin.write(data) :]
            while b"\n" not in self._rest:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not select.select([process.stdout], [], [], left)[0]:
                    raise RGEnvError(f"lm-eval was ended: it graded for longer than {wall_s:.0f} s")
                if not (chunk := process.stdout.read(2**20)):
                    raise BrokenPipeError
                self._rest += chunk
        except BrokenPipeError:
            code = process.wait()
            last = (self._said().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise RGEnvError(f"lm-eval ended with code {code}: {last[:300]}") from None
        line, self._rest = self._rest.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise _Told(reply["error"])
        return reply

    def _said(self) -> bytes:
        assert self._log
        return os.pread(self._log.fileno(), 2**24, 0)


class _Told(Exception):
    """What lm-eval's process answered in the place of a result."""


def include_folders(given: str | None) -> list[Path]:
    """Where task files are looked for, besides lm-eval's own: those that rg_env comes with, and `given`."""
    package = Path(rg_env.__file__).parent
    shipped = package / _SHIPPED  # of a wheel
    if not shipped.is_dir():
        shipped = package.parent / _SHIPPED  # of a clone
    return [folder.absolute() for folder in (shipped, Path(given) if given else None) if folder is not None]


def _interval(value: float, stderr: float | None) -> Interval | None:
    """Of 95 %, by lm-eval's standard error; that of a share is a part of 0 ... 1."""
    if not stderr:  # 0 where all is right, or nothing: that says nothing of the next question
        return None
    low, high = value - _Z95 * stderr, value + _Z95 * stderr
    return (max(low, 0.0), min(high, 1.0)) if 0 <= value <= 1 else (low, high)
