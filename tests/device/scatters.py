"""What ONNX's scatters make of an element and an update, by the name of the reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
}
