"""Arguments that name a file to be written: refused when they are read, not when everything has been measured."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def output_file(text: str) -> Path:
    """A path that can be written; nothing is left there if nothing was."""
    path = Path(text)
    if path.exists() and not path.is_file() and not path.is_dir():
        return path  # a pipe or a device: opening it would already be use
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from None
    if not existed:
        path.unlink()
    return path


def picture_file(text: str) -> Path:
    """An output file of a format that can be drawn, where matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("pictures need matplotlib: pip install 'jax_clc[plot]'")
    path = output_file(text)
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r}: the suffix decides the format: {', '.join(PICTURE_SUFFIXES)}")
    return path
