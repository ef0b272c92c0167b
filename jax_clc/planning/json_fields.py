"""Fields of JSON objects, read with their types checked: an error names the field, what it holds and what it should.

Each function of a field raises ValueError where it is missing or a number out of range, TypeError for a wrong type.
"""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(path: Path) -> Mapping[str, Any]:
    """The object in a file. Raises OSError, or ValueError in words for what is no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"it holds {shown(content)}, expected an object")
    return content


def text(fields: Mapping[str, Any], name: str) -> str:
    value = _field(fields, name)
    if not isinstance(value, str):
        raise _wrong_type(name, value, "text")
    return value


def texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = _field(fields, name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _wrong_type(name, values, "a list of texts")
    return tuple(values)


def flag(fields: Mapping[str, Any], name: str) -> bool:
    value = _field(fields, name)
    if not isinstance(value, bool):
        raise _wrong_type(name, value, "true or false")
    return value


def whole(fields: Mapping[str, Any], name: str, least: int, most: int | None = None) -> int:
    """A whole number from `least` to `most` (None: no bound)."""
    value = _field(fields, name)
    expected = f"a whole number from {least}" + ("" if most is None else f" to {most}")
    if not _is_whole(value):
        raise _wrong_type(name, value, expected)
    if value < least or (most is not None and value > most):
        raise _out_of_range(name, value, expected)
    return value


def wholes(fields: Mapping[str, Any], name: str, count: int, least: int) -> tuple[int, ...]:
    """So many whole numbers from `least`."""
    values = _field(fields, name)
    expected = f"{count} whole numbers from {least}"
    if not isinstance(values, list) or len(values) != count or not all(map(_is_whole, values)):
        raise _wrong_type(name, values, expected)
    if min(values) < least:
        raise _out_of_range(name, values, expected)
    return tuple(values)


def positive(fields: Mapping[str, Any], name: str) -> float:
    """A number above 0 that a float can hold."""
    value = _field(fields, name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong_type(name, value, "a positive number")
    if not 0 < value <= sys.float_info.max:
        raise _out_of_range(name, value, "a positive number")
    return float(value)


def part(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object within the object."""
    value = _field(fields, name)
    if not isinstance(value, dict):
        raise _wrong_type(name, value, "an object")
    return value


def parts(fields: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """A list of objects."""
    values = _field(fields, name)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise _wrong_type(name, values, "a list of objects")
    return values


def shown(value: object) -> str:
    """The value for an error's text: shortened, however long or deep it is."""
    return reprlib.repr(value)


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"the field '{name}' is missing")
    return fields[name]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong_type(name: str, value: object, expected: str) -> TypeError:
    return TypeError(f"the field '{name}' is {shown(value)}, expected {expected}")


def _out_of_range(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"the field '{name}' is {shown(value)}, expected {expected}")
