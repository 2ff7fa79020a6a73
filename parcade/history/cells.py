"""Cells of the CSV files in which curves are exported."""

from __future__ import annotations

import math


def number_cell(value: float) -> str:
    """Return a value with ten digits, or all those of a whole number; nothing for NaN."""
    if math.isnan(value):
        return ""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 2**53 else f"{value:.10g}"


def text_cell(name: str) -> str:
    """Return the name of a run or metric so that a spreadsheet does not read it as a formula."""
    return f"'{name}" if name[:1] in "=+-@" else name
