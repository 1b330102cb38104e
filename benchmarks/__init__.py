"""Time and memory beside what one would use instead; `python -m benchmarks --help`."""
