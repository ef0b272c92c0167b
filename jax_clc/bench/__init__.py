"""Timing of products against peers in one process: checked first, interleaved, in device time."""
