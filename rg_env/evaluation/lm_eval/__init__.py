"""Published benchmarks by lm-eval, in a process of its own."""
