"""Answer extraction, grading and scoring of completions."""
