"""lm-evaluation-harness in a separate process, which prepares requests and grades answers.

The process exchanges JSON values with `external`, which calls the models. No other module imports lm-eval.

    {"log": file, "tasks": [names], "include": [folders], "folders": {name: lm-eval's folder}, "limit": N | null,
     "system_prompts": [text | null], "requests": file, "descriptions": {task: text that replaces the task's own}}
    -> {"unused": [task settings that are not sent to models]}
       and in `requests`, one line per request: {"benchmark", "system_prompt", "key", "chat": messages, "sampling"}
    {"benchmark": name, "system_prompt": text | null, "answers": {key: text}, "output": file without suffix}
    -> {"scores": [{"task", "metric", "filter", "value", "stderr", "n", "num_fewshot", "version"}]}
    -> {"error": one line} if either call fails

lm-eval runs its evaluation twice. The first run is stopped when it calls the model. In the second run, calls to the
model return the given answers. This process does not have API keys and does not run code written by models (lm-eval
rejects tasks that require running such code).
"""

import hashlib
import itertools
import json
import os
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import lm_eval
from lm_eval.api.model import LM
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from rg_env.core.child_main import ParentPipe
from rg_env.core.text import reason_of

_FEWSHOT_SEED = 1234
"""Seed for selecting few-shot examples. This is lm-eval's default."""
_SAMPLING = ("temperature", "top_p", "do_sample", "max_gen_toks", "max_tokens", "max_new_tokens")


Loaded = dict[str, dict[str, Any]]
"""Benchmarks by name, as loaded by lm-eval."""


class Refused(Exception):
    """The user's input is invalid. The message is shown to the user."""


class _Requests(Exception):
    """Exception that stops lm-eval's first run and contains the requests from that run."""


class _Model(LM):
    """Model stand-in that returns the given answers, or stops lm-eval if there are no answers yet."""

    tokenizer_name = "chat"

    def __init__(self, benchmark: str, answers: dict[str, str] | None = None):
        super().__init__()
        self.benchmark, self._answers = benchmark, answers

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return json.dumps(chat_history, ensure_ascii=False)

    def generate_until(self, requests: list[Any]) -> list[str]:
        times: Counter[str] = Counter()
        asked = []
        for request in requests:
            chat, settings = request.args
            what = json.dumps([self.benchmark, chat, settings], sort_keys=True, default=str)
            digest = hashlib.sha256(what.encode("utf-8", "backslashreplace")).hexdigest()[:32]
            times[digest] += 1  # repeats of a question have separate answers
            asked.append((f"{digest}-{times[digest]}", chat, settings))
        if self._answers is None:
            raise _Requests(asked)
        return [
            postprocess_generated_text(self._answers[key], settings.get("until"), None) for key, _, settings in asked
        ]

    # `LM` requires these methods, but `_load` rejects the tasks that would call them.
    def loglikelihood(self, requests: list[Any]) -> NoReturn:
        raise Refused("chat endpoints do not report likelihoods")

    loglikelihood_rolling = loglikelihood


def main() -> None:
    """Answer the parent's calls until the parent exits. Output from libraries is written to the log."""
    parent, loaded, limit = ParentPipe(), {}, None
    while True:
        call = parent.receive()
        try:
            if "tasks" in call:
                log = os.open(call["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                limit = call["limit"]
                loaded = load(call["tasks"], call["include"], call["folders"], call["descriptions"])
                reply = ask(loaded, limit, call["system_prompts"], Path(call["requests"]))
            else:
                reply = score(loaded, limit, **call)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": str(error) if isinstance(error, Refused) else reason_of(error)}
        parent.send(reply)


def load(names: list[str], include: list[str], folders: dict[str, str], descriptions: dict[str, str]) -> Loaded:
    """Load benchmarks."""
    manager = manager_for(names, include, folders)
    loaded = {name: _load(manager, name) for name in names}
    for name in descriptions.keys() & loaded.keys():
        for task in loaded[name]["tasks"].values():
            # Prevent lm-eval from rendering the description as a template.
            task.set_config("description", f"{{% raw %}}{descriptions[name]}{{% endraw %}}")
    return loaded


def ask(loaded: Loaded, limit: int | None, system_prompts: list[str | None], file: Path) -> dict[str, Any]:
    """Write the requests for each combination of benchmark and system prompt to `file`."""
    unused = set()
    with file.open("w", encoding="utf-8", errors="backslashreplace") as lines:
        for name, prompt in itertools.product(loaded, system_prompts):
            try:
                _evaluate(loaded, limit, prompt, _Model(name))
                raise Refused(f"{name} does not make any requests")
            except _Requests as made:
                requests = made.args[0]
            except ValueError as error:  # lm-eval rejects tasks that run code written by models or need images
                raise Refused(f"{name}: {reason_of(error)}") from error
            for key, text, settings in requests:
                chat = json.loads(text)
                if chat[-1]["role"] != "user":
                    raise Refused(f"{name} sets gen_prefix, which chat endpoints do not support")
                sampling = {each: settings[each] for each in _SAMPLING if settings.get(each) is not None}
                unused |= {f"{name}: {each}" for each in settings if each not in (*_SAMPLING, "until")}
                record = {"benchmark": name, "system_prompt": prompt, "key": key, "chat": chat, "sampling": sampling}
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
    return {"unused": sorted(unused)}


def score(
    loaded: Loaded, limit: int | None, benchmark: str, system_prompt: str | None, answers: dict[str, str], output: str
) -> dict[str, Any]:
    """Grade the answers. lm-eval's own results and its verdict on each answer are written to files."""
    results = _evaluate(loaded, limit, system_prompt, _Model(benchmark, answers))
    samples = results.pop("samples")
    _write(Path(f"{output}.json"), [results], indent=1)
    lines = ({"task": task, **each} for task, of_task in samples.items() for each in of_task)
    _write(Path(f"{output}_samples.jsonl"), lines)
    return {"scores": _scores(benchmark, results)}


def _evaluate(loaded: Loaded, limit: int | None, prompt: str | None, model: _Model) -> dict[str, Any]:
    for task in loaded[model.benchmark]["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config("num_fewshot", 0)
        task.set_fewshot_seed(_FEWSHOT_SEED)  # selects the same few-shot examples in both runs
    return lm_eval.evaluate(
        model,
        loaded[model.benchmark],
        limit=limit,
        system_instruction=prompt or None,
        apply_chat_template=True,
        fewshot_as_multiturn=True,
    )


def manager_for(names: list[str], include: list[str], folders: dict[str, str]) -> TaskManager:
    """Return a `TaskManager` for the tasks and groups in `names`, and for the groups' tasks.

    Unless a name may be a tag, the manager indexes only the folders it needs, because indexing all 15,000 lm-eval files
    takes half a minute.
    """
    wanted = set(names)
    while True:
        found = {folders[name] for name in wanted if name in folders}
        manager = TaskManager(include_path=[*sorted(found), *include], include_defaults=False)
        index = manager.task_index
        more = {part for name in wanted if name in index for part in _parts(index[name])} - wanted
        if not more:
            break
        wanted |= more
    complete = wanted <= {*manager.all_subtasks, *manager.all_groups}
    return manager if complete else TaskManager(include_path=include)  # a name may be a tag, which any file can define


def _parts(entry: Any) -> set[str]:
    """Return the names of a group's tasks and subgroups."""
    listed = (entry.cfg or {}).get("task")
    listed = listed if isinstance(listed, list) else []
    found = {part if isinstance(part, str) else part.get("task", part.get("group")) for part in listed}
    return {part for part in found if isinstance(part, str)}


def _load(manager: TaskManager, name: str) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = manager.load([name])
    except Exception as error:
        traceback.print_exc()
        raise Refused(
            f"the benchmark {name} cannot be loaded: {reason_of(error)} (datasets are downloaded from the Hugging "
            "Face Hub on first use)"
        ) from error
    for task in loaded["tasks"].values():
        if task.OUTPUT_TYPE != "generate_until":
            raise Refused(
                f"{name} is scored by the likelihood of given answers ({task.OUTPUT_TYPE}), which chat endpoints do "
                "not report: use a task that has models generate answers"
            )
    return loaded


def _scores(benchmark: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the scores in lm-eval's results, starting with those for the entire benchmark."""
    found = []
    for task in sorted(results["results"], key=lambda name: name != benchmark):
        metrics = results["results"][task]
        for key, value in metrics.items():
            metric, comma, name = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = metrics.get(f"{metric}_stderr,{name}")
            task_version = results["versions"].get(task)
            found.append(
                {
                    "task": task,
                    "metric": metric,
                    "filter": name,
                    "value": float(value),
                    "stderr": float(stderr) if isinstance(stderr, int | float) else None,
                    "n": metrics["sample_len"],
                    "num_fewshot": results["n-shot"].get(task),
                    "version": None if task_version is None else str(task_version),
                }
            )
    return found


def _write(file: Path, values: Iterable[Any], indent: int | None = None) -> None:
    with file.open("w", encoding="utf-8", errors="backslashreplace") as output:
        output.writelines(f"{json.dumps(each, indent=indent, default=handle_non_serializable)}\n" for each in values)
