"""Report of a benchmark protocol as Markdown with tables, figures and explanations."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil.files import write_text


@dataclass(frozen=True)
class Section:
    """One section of a report; `figures` are paths relative to the report."""

    title: str
    text: str
    table: pd.DataFrame | None = None
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """One benchmark set, or the detailed analysis of one scored set."""

    title: str
    sections: Sequence[Section]


def write_page(path: Path, title: str, facts: Sequence[str], chapters: Iterable[Chapter]) -> None:
    """Write the chapters as Markdown, below a title and a list of facts about the run."""
    lines = [f"# {title}", "", *(f"* {fact}" for fact in facts), ""]
    for chapter in chapters:
        lines += [f"## {chapter.title}", ""]
        for section in chapter.sections:
            lines += [f"### {section.title}", "", section.text, ""]
            if section.table is not None:
                lines += [markdown_table(section.table), ""]
            lines += [f"![{section.title}]({figure})" for figure in section.figures]
            lines += [""] if section.figures else []
    write_text(path, "\n".join(lines).rstrip() + "\n")


def markdown_table(frame: pd.DataFrame) -> str:
    """Format a data frame as a Markdown table: floats with three decimals, missing values as a dash.

    A p-value (in a column `p` or `..._p`) that would be 0.000 is written '< 0.001'.
    """
    head = [str(name) for name in frame.columns]
    rows = [
        [_cell(name, value) for name, value in zip(head, row, strict=True)] for row in frame.to_numpy(object)
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows))


def _cell(name: str, value: object) -> str:
    if value is None or value != value:  # NaN
        return "–"
    if isinstance(value, float | np.floating):
        is_p = name == "p" or name.endswith("_p")
        return "< 0.001" if is_p and value < 5e-4 else f"{value:.3f}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def spread(mean: float, std: float, low: float = math.nan, high: float = math.nan) -> str:
    """Format as '0.911 ± 0.016 [0.886, 0.936]'; values that are NaN are left out."""
    if np.isnan(mean):
        return "–"
    text = f"{mean:.3f}" if np.isnan(std) else f"{mean:.3f} ± {std:.3f}"
    return text if np.isnan(low) else f"{text} [{low:.3f}, {high:.3f}]"
