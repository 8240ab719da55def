"""The grading of `llama_math_rg.yaml`: the last \\boxed{} of the answer, compared as in lm-eval's minerva_math."""

from typing import Any

from lm_eval.tasks.minerva_math.utils import (
    is_equiv,
    last_boxed_only_string,
    normalize_final_answer,
    remove_boxed,
)


def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, int]:
    boxed = last_boxed_only_string(results[0])
    answer = normalize_final_answer(remove_boxed(boxed)) if boxed and boxed.startswith("\\boxed") else ""
    return {"exact_match": int(is_equiv(normalize_final_answer(answer), doc["answer"]))}
