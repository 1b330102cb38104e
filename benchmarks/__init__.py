"""Time and memory compared with common alternatives; `python -m benchmarks --help`."""
