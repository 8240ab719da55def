"""`docs/configuration.md` and `docs/evaluation.md`, made from the schemas: every key, with type, default and meaning.

python tools/config_docs.py     # writes both in the working folder; a test keeps them equal
"""

import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from rg_env.core.config.parsing import Section
from rg_env.evaluation.config import EvalConfig
from rg_env.training.config.grpo import OWNED_ELSEWHERE, GRPOConfig
from rg_env.training.config.schema import TrainConfig

HEAD = """# Configuration

What `rg-env train CONFIG` reads, made from the schema by `python tools/config_docs.py`.

```bash
rg-env train configs/train/tiny.yaml                                  # a run
rg-env train configs/train/tiny.yaml training.learning_rate=2e-6      # with another value
rg-env train configs/train/tiny.yaml --dry-run                        # what it comes to, in under a second
```

- `extends: base.yaml` or `extends: [a.yaml, b.yaml]` (relative to the file itself) begins with what those files say.
  Later ones win, and the file itself last; mappings are merged key by key, anything else is replaced; `null` takes a
  key away, back to its default.
- `section.key=value` on the command line replaces what stands there; the value is YAML.
- A config holds no secrets: keys of services (`WANDB_API_KEY`, `HF_TOKEN`) are read from the environment, or `.env`.
- Every mistake is told before anything starts, all of them together: path, value, file and line, remedy.
- A key that changes nothing beside the others, such as `engine.port` beside `engine.kind: embedded`, is no mistake. The
  plan (`--dry-run`) and the start of a run name it: `without effect: engine.port (engine.kind: embedded)`.
"""


EVALUATION = """# Evaluating and comparing

What `rg-env eval` reads, made from the schema by `python tools/config_docs.py`.

```bash
rg-env eval configs/eval/tiny.yaml                                            # on any machine
rg-env eval --models tiny outputs/RUN/checkpoint-25 --tasks leg_counting -n 100 -r 3 --max-tokens 90
rg-env eval --models gpt-4o-mini@https://api.openai.com/v1 --tasks maze       # its key: OPENAI_API_KEY
rg-env eval --models tiny --external gsm8k_rg,math_rg -n 200           # benchmarks of lm-evaluation-harness
rg-env eval ... --output-dir DIR --resume                                     # goes on with what DIR holds
rg-env plot DIR/results_all_tasks_*.json                                      # the picture again, to adapt
rg-env report DIR                                                             # one page, with all rollouts
```

- All models are asked the same frozen questions of the evaluation split, in the words of training, and scored by the
  same graders. What a checkpoint was trained on is left out and counted.
- Each rollout is a line of `rollouts.jsonl` as soon as it is there. After Ctrl-C or a crash, `--resume` asks only what
  is missing, and calls that failed once more. Figures are made from that file alone, which one evaluation at a
  time writes; a line that somebody damaged is told, and lines about other questions are counted and left out.
- A call is tried again after 429, 5xx, time-outs and damaged answers. One that fails for good counts as a wrong answer,
  and is counted. A model of which all calls fail has no result; one that cannot be asked to the end ends the evaluation
  with exit code 2, after the others, and nothing is lost.
- Intervals are of 95 %, clustered by question. Two models are compared on the questions that both were asked: the
  difference with its interval, and a permutation test. *Adjusted for guessing* is (accuracy - c) / (1 - c), where c is
  what the best constant answer gets.
- `published:` holds figures of others, such as a paper's. Each is printed and written beside ours, with the difference,
  its interval, and whether it is within the tolerance that the config gives, within what chance explains, or beyond.
  That is a finding: the exit code stays 0. `configs/eval/paper_tables.yaml` has those of the Reasoning Gym paper.
- The folder has `results_<task>_<time>.json`, `results_all_tasks_<time>.json`, `comparison_<task>_<time>.png`,
  `summary_all_tasks_<time>.png`, `summary.md`, `rollouts.jsonl` and `config.yaml`, from which it can be repeated.
- Keys of endpoints come from the environment, or `.env`; no config and no file holds any, and an address with a
  password or a query is refused.
- External benchmarks (`pip install 'rg-env[eval-external]'`) are tasks of
  [lm-evaluation-harness](https://github.com/EleutherAI/lm-evaluation-harness) that ask for an answer: those it has, and
  those of `configs/lm_eval`, which come with rg_env: `gsm8k_rg`, `math_rg` and `mmlu_pro_rg`, under the system
  prompt of training. It says what is asked and grades the answers, with its own metrics; models are asked as for our
  tasks. A model's own `system_prompt` stands before that of the benchmark. Sampling is the benchmark's, unless
  `external` or an option says otherwise. Figures stand in `results_all_tasks_<time>.json` and `summary.md`, answers and
  lm-eval's own results in `external/`. Data sets come from the Hugging Face hub. Code that a model writes is
  never run.
"""


def render() -> str:
    """`docs/configuration.md`."""
    return HEAD + "\n" + _reference(TrainConfig)


def render_evaluation() -> str:
    """`docs/evaluation.md`."""
    return EVALUATION + "\n" + _reference(EvalConfig)


def _reference(schema: type[Section]) -> str:
    plain = [name for name, field in schema.model_fields.items() if not _sections(field.annotation)]
    parts = ["## At the top\n\n" + _table(schema, plain)]
    for name, field in schema.model_fields.items():
        for section in _sections(field.annotation):
            entry = get_origin(_plain(field.annotation)) is dict
            parts += _described(f"`{name}.NAME`" if entry else f"`{name}`", section, field.description)
    return "\n".join(parts)


def _described(title: str, schema: type[Section], description: str | None) -> list[str]:
    text = " ".join((schema.__doc__ or "").split())
    if description:
        text = f"{' '.join(description.split())} {text}"
    nested = [name for name, field in schema.model_fields.items() if _sections(field.annotation)]
    owned = OWNED_ELSEWHERE if schema is GRPOConfig else {}
    plain = [name for name in schema.model_fields if name not in nested and name not in owned]
    parts = [f"## {title}\n\n{text}\n\n{_table(schema, plain)}"]
    for name in nested:
        field = schema.model_fields[name]
        inner = _sections(field.annotation)[0]
        path = f"{title.strip('`')}.{name}{'.NAME' if get_origin(_plain(field.annotation)) is dict else ''}"
        parts += _described(f"`{path}`", inner, field.description)
    return parts


def _table(schema: type[Section], names: list[str]) -> str:
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for name in names:
        field = schema.model_fields[name]
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        rows.append(f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    if value is None:
        return ""
    if value in ({}, []):
        return "none"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{shown}`" if shown else "empty"


def _type(annotation: Any) -> str:
    annotation = _plain(annotation)
    origin = get_origin(annotation)
    if origin is Literal:
        return " \\| ".join(f"`{choice}`" for choice in get_args(annotation))
    if origin is list:
        return f"list of {_type(get_args(annotation)[0])}"
    if origin is dict:
        return "mapping"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}[annotation]


def _plain(annotation: Any) -> Any:
    """Without bounds, and without the None of what may be missing."""
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    return annotation


def _sections(annotation: Any) -> list[type[Section]]:
    annotation = _plain(annotation)
    if get_origin(annotation) is dict:
        annotation = get_args(annotation)[1]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Section) else []


if __name__ == "__main__":
    Path("docs/configuration.md").write_text(render(), encoding="utf-8")
    Path("docs/evaluation.md").write_text(render_evaluation(), encoding="utf-8")
