"""Table export: CSV for spreadsheets and booktabs LaTeX for papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from search_spaces.space import SearchSpace
from study.trials.table import PARAM_PREFIX
from study.utils.files import safe_filename

_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "—": "---",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "→": r"$\to$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "η": r"$\eta$",
    "θ": r"$\theta$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "φ": r"$\phi$",
    "ω": r"$\omega$",
    "Δ": r"$\Delta$",
}
_LATEX_TRANSLATION = str.maketrans(_LATEX_ESCAPES)


def escape_tex(text: str) -> str:
    """Return plain text as LaTeX; Greek letters become symbols."""
    return text.translate(_LATEX_TRANSLATION)


def collect_latex_symbols(spaces: Iterable[SearchSpace]) -> dict[str, str]:
    """Return the hyperparameters as their papers write them in LaTeX: `$\\alpha$`.

    A symbol of two hyperparameters is followed by the name. A hyperparameter without a symbol, or
    whose symbol differs between the spaces, is left out.
    """
    symbols: dict[str, set[str]] = {}
    for space in spaces:
        for name, param in space.searched_params.items():
            symbols.setdefault(name, set()).add(param.latex)
    unique = {n: next(iter(s)) for n, s in symbols.items() if len(s) == 1 and s != {""}}
    counts = Counter(unique.values())
    return {
        name: f"${tex}$" if counts[tex] == 1 else f"${tex}$ ({escape_tex(name)})"
        for name, tex in unique.items()
    }


def to_latex(
    frame: pd.DataFrame, *, caption: str, label: str, symbols: Mapping[str, str] | None = None
) -> str:
    """Return a booktabs table with numbers aligned right and text aligned left.

    `DataFrame.to_latex` gives the same bytes from escaped cells, but takes eight times as long: a
    minute for 10,000 trials.

    Args:
        frame: Table to write.
        caption: Caption as plain text.
        label: Label without the prefix `tab:`; only characters that LaTeX allows in labels.
        symbols: LaTeX of the hyperparameters by name (see `collect_latex_symbols`).
    """
    symbols = symbols or {}
    names = [str(c) for c in frame.columns]
    alignment = "".join(
        "r" if pd.api.types.is_numeric_dtype(frame[c]) else "l" for c in frame.columns
    )
    header = [symbols.get(n.removeprefix(PARAM_PREFIX), escape_tex(n)) for n in names]
    # Without a column `knob`, `other` is another loss.
    param_columns = {"knob", "swept"} | ({"other"} if "knob" in names else set())
    columns = [
        _latex_cells(frame.iloc[:, i], symbols if name in param_columns else {})
        for i, name in enumerate(names)
    ]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_tex(caption)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(header) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in zip(*columns, strict=True)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def save_table(
    frame: pd.DataFrame,
    folder: Path,
    key: str,
    *,
    caption: str,
    symbols: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write `folder/key.csv` and `folder/key.tex` and return the paths."""
    csv, tex = folder / f"{safe_filename(key)}.csv", folder / f"{safe_filename(key)}.tex"
    csv.write_text(frame.to_csv(index=False, lineterminator="\n", float_format="%.8g"), "utf-8")
    label = safe_filename(key)  # a % in the name of a loss would comment out the rest of the line
    tex.write_text(to_latex(frame, caption=caption, label=label, symbols=symbols), "utf-8")
    return [csv, tex]


def _latex_cells(column: pd.Series, symbols: Mapping[str, str]) -> list[str]:
    return [symbols.get(str(value)) or escape_tex(_format_cell(value)) for value in column]


def _format_cell(value: Any) -> str:
    if value is None or (isinstance(value, float | np.floating) and not np.isfinite(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return str(value)
