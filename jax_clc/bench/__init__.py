"""Timing of products against peers in one process: checked first, interleaved, device time. Used by the CLI and benchmarks/."""
