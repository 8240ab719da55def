"""The sections of a card for its reader: how to load, evaluate and go on, what is not known, which files there are."""

import json
from collections.abc import Sequence
from shlex import join
from typing import Any

from rg_env.core.json_values import dict_of, number_of, text_of, whole_of
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.core.text import one_line
from rg_env.evaluation.config import TINY
from rg_env.publish.hub.card_results import monitors, named_scores, truncation
from rg_env.publish.hub.markdown import block, code, text
from rg_env.publish.hub.record import Record
from rg_env.publish.hub.subject import Subject

_INSTALL = "pip install 'rg-env[train]'"
_GRADING = {
    "hardened": "right or not, by rg\\_env's own graders, which differ from Reasoning Gym's here and there "
    "(`rg-env tasks --audit` says where)",
    "partial": "real progress counted in part for the reward; accuracy is right or not",
    "upstream": "by Reasoning Gym's own formulas, which forgive some wrong answers; answers are never run as code",
}
_OPTIONS = ("config", "level", "levels")
"""Of a task, by which its questions are harder or easier."""


def load(subject: Subject) -> str:
    """How to load it, in Python."""
    repo, pinned = subject.repo_id, f", revision={subject.revision!r}" if subject.revision else ""
    if subject.adapter:
        base = repr(subject.base.name or "BASE_MODEL")
        made = "from rg_env.tiny import POLICY_DIR  # pip install rg-env\n" if subject.base.name == TINY else ""
        base = "POLICY_DIR" if subject.base.name == TINY else base
        program = (
            f"{made}from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{repo}"{pinned})\n'
            f"model = AutoModelForCausalLM.from_pretrained({base})\n"
            f'model = PeftModel.from_pretrained(model, "{repo}"{pinned})\n'
        )
    else:
        program = (
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{repo}"{pinned})\n'
            f'model = AutoModelForCausalLM.from_pretrained("{repo}"{pinned})\n'
        )
    record = subject.record
    asked = None if record is None else record.environment.get("first_prompt")
    parts = [block(program + (_chat(record, asked) if record and _is_chat(asked) else ""), "python")]
    if record is not None and not _is_chat(asked):
        parts.append("It was trained in chat form, under the system prompt above: `tokenizer.apply_chat_template`.")
    if not subject.adapter:
        served = f"vllm serve {repo}" + (f" --revision {subject.revision}" if subject.revision else "")
        parts.append(f"As a server: `{served}`.")
    return "\n\n".join(parts)


def _is_chat(value: object) -> bool:
    """Whether these are messages, as a run writes down the first that it asked."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(each, dict) and all(isinstance(part, str) for part in each.values()) for each in value)


def _chat(record: Record, messages: Any) -> str:
    """The lines that ask what the run asked first, with the room for an answer that its evaluations gave."""
    evaluation = record.evaluations[-1] if record.evaluations else {}
    room = whole_of(dict_of(evaluation.get("sampling")).get("max_tokens"))
    return (
        f"\nmessages = {json.dumps(messages, indent=4, ensure_ascii=False)}\n"
        "inputs = tokenizer.apply_chat_template(\n"
        '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"\n'
        ")\n"
        f"answer = model.generate(**inputs{f', max_new_tokens={room}' if room else ''})\n"
        'print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))\n'
    )


def evaluate(subject: Subject) -> str:
    """How to ask it the same questions again, and how to go on training."""
    record, name = subject.record, subject.name
    revision = f" --revision {subject.revision}" if subject.revision else ""
    lines = [_INSTALL, f"hf download {subject.repo_id}{revision} --local-dir {name}"]
    if record is None:
        return block("\n".join([*lines, f"rg-env eval --models {name} --tasks leg_counting"]), "bash")
    from_config = isinstance(record.config.get("model"), dict)
    if from_config:
        lines.append(f"rg-env train {name}/run/config.yaml --eval-only --checkpoint {name}    # the same questions")
    if asked := _asked(subject, record):
        lines.append(f"rg-env eval --models {name} {join(asked)}    # beside other models, or with other tasks")
    parts = [block("\n".join(lines), "bash")]
    if subject.optimizer_state == "full" and subject.source.step is not None:
        parts.append("The optimizer's state is here, too: training goes on as if it had never stopped.")
        steps = whole_of(record.training.get("max_steps"))
        more = " training.max_steps=MORE" if steps is not None and steps <= subject.source.step else ""
        parts.append(
            block(f"rg-env train {name}/run/config.yaml --resume auto output.dir={name}/run{more}", "bash")
            if from_config
            else f"Give `--resume {name}/run/checkpoint-{subject.source.step}` to the script that trained it."
        )
    return "\n\n".join(parts)


def _asked(subject: Subject, record: Record) -> list[str]:
    """Arguments of `rg-env eval` for the tasks as they were trained on, with the prompt and the sampling of the run;
    empty: the run tells no tasks. Values are JSON, which is YAML, so that none can end its line."""
    named = [task for task in record.tasks if text_of(task.get("name"))]
    options = {
        one_line(task["name"]): {key: task[key] for key in _OPTIONS if task.get(key) not in (None, {})}
        for task in named
    }
    if not options:
        return []
    plain = not any(options.values()) or len(options) < len(named)  # of two with one name neither is meant
    words = ["--tasks", *options] if plain else [f"tasks={json.dumps(options)}"]
    sampling = dict_of((subject.after or record.before or {}).get("sampling"))
    for option, key in (("--max-tokens", "max_tokens"), ("--temperature", "temperature")):
        if (value := number_of(sampling.get(key))) is not None and (key, value) != ("temperature", 1.0):
            words += [option, json.dumps(value)]
    others: dict[str, Any] = {
        "sampling.top_p": (number_of(sampling.get("top_p")), 1.0),
        "grading": (record.grading, "hardened"),
        "prompt.system_prompt": (record.environment.get("system_prompt"), SYSTEM_PROMPT),
    }
    prompt = dict_of(record.config.get("prompt"))
    others |= {"prompt.placement": (prompt.get("placement"), "system"), "prompt.preamble": (prompt.get("preamble"), "")}
    words += [f"{key}={json.dumps(value)}" for key, (value, usual) in others.items() if value not in (None, usual)]
    return words


def limits(subject: Subject) -> str:
    """What the figures do not say."""
    return "\n".join(f"- {line}" for line in _limits(subject))


def _limits(subject: Subject) -> Sequence[str]:
    record = subject.record
    if record is None:
        return ["Nothing was measured by rg\\_env: these are weights and no more."]
    lines = []
    grading = record.grading
    lines.append(f"Grading {code(grading)}: {_GRADING[grading]}." if grading in _GRADING else "Grading: not recorded.")
    one = subject.after or record.before
    if one:
        n = [f"{whole_of(scores.get('n')) or 0} of {code(name)}" for _, name, scores in named_scores(one)]
        lines.append(f"Questions behind the figures: {', '.join(n)}. Few questions mean wide intervals.")
        told = truncation(one)
        lines.append(f"{told[0].upper()}{told[1:]}." if told else "How many answers were cut off was not measured.")
        if not dict_of(one.get("held_out")):
            lines.append("Nothing was measured on tasks that it was not trained on.")
    lines.append("What guessing would get, general abilities, other languages and safety were not measured.")
    last, step = subject.last_step, subject.source.step
    if record.results.get("interrupted"):
        lines.append("The run was interrupted before its end.")
    if rule := text_of(record.results.get("stopped_by")):
        lines.append(f"The run was ended by the monitor {code(rule)}.")
    if error := text_of(record.results.get("error")):
        lines.append(f"The run ended with an error: {text(error)}.")
    if last is not None and step is not None and step != last:
        lines.append(f"These are the weights of step {step}; the run went on to step {last}.")
    lines += [f"A monitor said: {line}" for line in monitors(record.results)]
    return lines


def files(subject: Subject, paths: Sequence[str]) -> str:
    """What lies where."""
    has = {path.split("/")[0] for path in paths}
    lines = [f"- {'adapters' if subject.adapter else 'model'}, tokenizer and configuration: at the top"]
    if "run" in has:
        lines.append("- `run/`: the run's own files, with which everything above can be checked: config.yaml, "
                     "manifest.json, metrics.jsonl, eval_results with all answers")  # fmt: skip
    if any(path.startswith("run/checkpoint-") for path in paths):
        lines.append("- `run/checkpoint-…`: all that training goes on from; its .pt files are read without executing "
                     "anything in them")  # fmt: skip
    lines.append("- `rg_env.json`: which run this is, for `rg-env push`")
    return "\n".join(lines)
