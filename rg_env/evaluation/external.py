"""External benchmarks: tasks from lm-evaluation-harness, sent to the models in the same way as rg_env's own tasks.

    with Harness(config, folder) as harness:
        benchmarks = harness.prepare()                # prepares lm-eval's requests, without a model
        ...                                           # `runner.ask_all` sends them to the models
        results = [harness.score(each) for each in benchmarks]

lm-eval prepares the requests and grades the answers in its own process (`lm_eval_process`). lm-eval does not call the
models, because its client for chat endpoints sends stop sequences and seeds that some servers reject, ends the
evaluation at the first call that fails permanently, and cannot resume. Instead, rg_env calls the models, with the same
retries and API keys as for its own tasks, and appends each answer to `external/answers.jsonl` immediately. lm-eval then
truncates the answers at the task's stop sequences.
"""

import math
import re
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rg_env
from rg_env.core.grading.scoring import Rollout
from rg_env.core.processes import JsonProcess, ProcessEndedError, environment_without, resume_words
from rg_env.core.run_folder import json_lines
from rg_env.core.statistics import error_interval
from rg_env.core.text import file_part
from rg_env.errors import InputError, MissingExtraError, RGEnvError, install_command, nearest
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.endpoints import DEFAULT_KEY
from rg_env.evaluation.questions import Record, Reply, Request, Work
from rg_env.evaluation.results import BenchmarkScore, ExternalResult
from rg_env.evaluation.scores import usage_of
from rg_env.inference.protocol import Sampling

FOLDER = "external"
LOG, REQUESTS = f"{FOLDER}/lm_eval.log", f"{FOLDER}/requests.jsonl"
_SHIPPED = Path("configs") / "lm_eval"
_SCORING_S = 600.0
"""Base time limit for grading one model's answers to a benchmark, in seconds. The limit grows by the same amount for
every 1,000 answers. A limit is needed because lm-eval might never finish simplifying a mathematical answer."""


_SIMILAR = {"gsm8k_cot_rg": "gsm8k_rg", "llama_math": "math_rg", "llama_math_algebra": "math_rg"}
"""Tasks from the Reasoning Gym paper that lm-eval does not include, each mapped to a similar task with a different
prompt."""
_NAMED = re.compile(r"""^["']?(?:task|group)["']?[ ]*:[ ]*["']?([^\s"'#]+)""", re.MULTILINE)


def check_tasks(config: EvalConfig) -> dict[str, str]:
    """Check the names in `external.tasks` without importing lm-eval, and return the folder of each task and group that
    comes with lm-eval.

    Raises:
        MissingExtraError: lm-eval is not installed.
        InputError: a name is unknown.
    """
    if (spec := find_spec("lm_eval")) is None or spec.origin is None:
        raise MissingExtraError(
            f"external benchmarks need lm_eval, which is not installed: run `{install_command('eval-external')}`"
        )
    lm_eval_tasks, own = Path(spec.origin).parent / "tasks", include_folders(config.external.include)
    folders = _task_folders(lm_eval_tasks)
    known = {*folders, *(name for folder in own for name in _task_folders(folder))}
    for name in config.external.tasks:
        # The name may also be a tag, or a task in a group's list.
        mention = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
        files = () if name in _SIMILAR else lm_eval_tasks.rglob("*.yaml")
        if name in known or any(mention.search(_text(file)) for file in files):
            continue
        near = _SIMILAR.get(name) or " or ".join(nearest(name, known))
        hint = f"did you mean {near}?" if near else "`lm-eval ls tasks` lists lm-eval's tasks"
        where = " and ".join([f"lm-eval {version('lm_eval')}", *map(str, own)])
        raise InputError(f"external.tasks: there is no task {name!r} in {where}; {hint}")
    return folders


@cache
def _task_folders(root: Path) -> dict[str, str]:
    """Return the folder of each task and group defined in the task files under `root`."""
    found: dict[str, str] = {}
    for file in sorted(root.rglob("*.yaml")):
        for name in _NAMED.findall(_text(file)):
            found.setdefault(name, str(file.parent))
    return found


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


class Benchmark(Work):
    """One model's work on one benchmark, with a key for each of lm-eval's requests.

    Args:
        system_prompt: the model's own system prompt.
    """

    file = f"{FOLDER}/answers.jsonl"

    def __init__(self, model: str, label: str, system_prompt: str | None, requests: dict[str, Request]):
        super().__init__(model, label, requests)
        self.system_prompt, self._requests = system_prompt, requests

    def request(self, key: str) -> Request:
        """Return lm-eval's request for `key`."""
        return self._requests[key]

    def key(self, record: Record) -> Any:
        """Return the key of the request that `record` answers."""
        return record["key"]

    def records(self, replies: Mapping[Any, Reply], rollouts: Mapping[Any, Rollout]) -> Iterator[Record]:
        """Yield a record for each reply. Records do not contain scores, because lm-eval grades the answers at the
        end."""
        for key, reply in replies.items():
            usage = {"completion_tokens": reply.completion_tokens, "truncated": reply.truncated}
            yield {"benchmark": self.label, "key": key, "text": reply.text, **usage}


class Harness:
    """lm-eval in its own process, which is stopped at the end of the `with` block. lm-eval's log, requests and results
    are written to `folder`/external. Raises the same errors as `check_tasks`."""

    def __init__(self, config: EvalConfig, folder: Path):
        self._config, self._folder, self._known = config, folder, check_tasks(config)

    def __enter__(self) -> "Harness":
        (self._folder / FOLDER).mkdir(exist_ok=True)
        keys = {DEFAULT_KEY, *(model.key_variable for model in self._config.models.values() if model.key_variable)}
        environment = environment_without(*keys) | {
            "HF_ALLOW_CODE_EVAL": "0",
            "HF_DATASETS_TRUST_REMOTE_CODE": "0",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._process = JsonProcess("rg_env.evaluation.lm_eval_process:main", environment)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def prepare(self) -> list[Benchmark]:
        """Return one `Benchmark` for each combination of model and benchmark, with lm-eval's requests.

        Raises:
            InputError: a task does not support chat endpoints, or its dataset is not available.
            RGEnvError: lm-eval's process exited unexpectedly.
        """
        external, models = self._config.external, self._config.models
        call = {
            "log": str((self._folder / LOG).absolute()),
            "requests": str((self._folder / REQUESTS).absolute()),
            "tasks": external.tasks,
            "include": [str(each) for each in include_folders(external.include)],
            "folders": self._known,
            "limit": external.num_examples,
            # Models with the same system prompt share their requests.
            "system_prompts": list(dict.fromkeys(model.system_prompt for model in models.values())),
            "descriptions": self._descriptions(),
        }
        try:
            reply = self._call(call)
        except _Refused as refused:
            raise InputError(str(refused)) from None
        if reply["unused"]:
            print(f"settings not sent to models: {', '.join(reply['unused'])}", flush=True)
        requests: dict[tuple[str, str | None], dict[str, Request]] = {}
        for record in json_lines(self._folder / REQUESTS):
            request = Request(record["chat"], sampling_of(self._config, record["sampling"]))
            requests.setdefault((record["benchmark"], record["system_prompt"]), {})[record["key"]] = request
        return [
            Benchmark(name, benchmark, model.system_prompt, requests[benchmark, model.system_prompt])
            for name, model in models.items()
            for benchmark in external.tasks
        ]

    def _descriptions(self) -> dict[str, str]:
        """Return the configured prompt for each benchmark that rg_env ships. If no system prompt is configured, return
        an empty mapping, so that the benchmarks use the prompt from the Reasoning Gym paper's training runs."""
        prompt = self._config.prompt
        if "system_prompt" not in prompt.model_fields_set:
            return {}
        text = "\n\n".join(filter(None, (prompt.preamble, prompt.system_prompt)))
        return {file.stem: text for file in include_folders(None)[0].glob("*.yaml")}

    def score(self, benchmark: Benchmark) -> ExternalResult:
        """Grade the answers to `benchmark`.

        Raises:
            RGEnvError: lm-eval failed or exceeded the time limit.
        """
        # If several model names would result in the same file name, the model's index is added.
        names = [file_part(name) for name in self._config.models]
        number = list(self._config.models).index(benchmark.model)
        model = names[number] if names.count(names[number]) == 1 else f"{number}_{names[number]}"
        made, label = benchmark.answers, benchmark.label
        call = {
            "benchmark": label,
            "system_prompt": benchmark.system_prompt,
            "answers": {key: answer.text for key, answer in made.items()},
            "output": str((self._folder / FOLDER / f"{file_part(label)}_{model}").absolute()),
        }
        try:
            reply = self._call(call, _SCORING_S * (1 + len(made) / 1000))
        except _Refused as refused:
            raise RGEnvError(
                f"{label}, {benchmark.model}: lm-eval cannot grade the answers ({refused}). The answers are kept; "
                f"resume with {resume_words(self._folder)}"
            ) from None
        known = [each.truncated for each in made.values() if each.truncated is not None]
        return ExternalResult(
            model=benchmark.model,
            benchmark=label,
            answers=len(made),
            failed=benchmark.failed,
            truncated=sum(known) / len(known) if known else None,
            usage=usage_of(made.values(), self._config.models[benchmark.model].price),
            scores=[
                BenchmarkScore(**score, interval=error_interval(score["value"], score["stderr"], score["n"]))
                for score in reply["scores"]
            ],
        )

    def _call(self, call: dict[str, Any], wall_s: float = math.inf) -> dict[str, Any]:
        deadline = time.monotonic() + wall_s
        try:
            self._process.send(call, deadline)
            reply: dict[str, Any] = self._process.receive(deadline)
        except TimeoutError:
            raise RGEnvError(f"lm-eval was stopped because grading took longer than {wall_s:.0f} s") from None
        except ProcessEndedError as error:
            log = self._folder / LOG
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
            last = lines[-1][:300] if lines else error.last_error
            raise RGEnvError(f"lm-eval ended with {error.end}: {last}") from None
        if "error" in reply:
            raise _Refused(reply["error"])
        return reply


class _Refused(Exception):
    """lm-eval's process returned an error instead of a result."""


def sampling_of(config: EvalConfig, of_task: dict[str, Any]) -> Sampling:
    """Return the task's own sampling settings, overridden by those in the config. The default is greedy decoding."""
    external = config.external
    lengths = [of_task[each] for each in ("max_gen_toks", "max_tokens", "max_new_tokens") if each in of_task]
    temperature = 0.0 if of_task.get("do_sample") is False else of_task.get("temperature", 0.0)
    return Sampling(
        max_tokens=external.max_tokens or int(next(iter(lengths), config.sampling.max_tokens)),
        temperature=temperature if external.temperature is None else external.temperature,
        top_p=external.top_p or of_task.get("top_p", 1.0),
    )


def include_folders(given: str | None) -> list[Path]:
    """Return the folders of task files to use in addition to lm-eval's own: the folder that rg_env ships and, if set,
    `given`."""
    package = Path(rg_env.__file__).parent
    shipped = package / _SHIPPED  # location in a wheel
    if not shipped.is_dir():
        shipped = package.parent / _SHIPPED  # location in a clone of the repository
    return [folder.absolute() for folder in (shipped, Path(given) if given else None) if folder is not None]
