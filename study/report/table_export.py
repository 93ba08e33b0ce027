"""How is a table written for a spreadsheet and for a paper?"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from search_spaces.space import Space
from study.table import KNOB

_TEX = {
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
}
_GREEK = {
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "δ": "delta",
    "ε": "varepsilon",
    "η": "eta",
    "θ": "theta",
    "κ": "kappa",
    "λ": "lambda",
    "μ": "mu",
    "ρ": "rho",
    "σ": "sigma",
    "τ": "tau",
    "φ": "phi",
    "ω": "omega",
    "Δ": "Delta",
}


def escape_tex(text: str) -> str:
    """Plain text as LaTeX; Greek letters become symbols."""
    out = []
    for letter in text:
        greek = _GREEK.get(letter)
        out.append(f"$\\{greek}$" if greek else _TEX.get(letter, letter))
    return "".join(out)


def symbols(spaces: Iterable[Space]) -> dict[str, str]:
    """Knobs as their papers write them, ready for LaTeX: `$\\alpha$`.

    A symbol that stands for two knobs, or differs between the spaces, is followed by the name.
    """
    known: dict[str, set[str]] = {}
    for space in spaces:
        for name, knob in space.searched.items():
            known.setdefault(name, set()).add(knob.latex)
    written = {n: next(iter(k)) for n, k in known.items() if len(k) == 1 and k != {""}}
    shared = Counter(written.values())
    return {
        name: f"${tex}$" if shared[tex] == 1 else f"${tex}$ ({escape_tex(name)})"
        for name, tex in written.items()
    }


def to_latex(
    frame: pd.DataFrame, *, caption: str, label: str, symbols: Mapping[str, str] | None = None
) -> str:
    """A booktabs table; numbers are set right, words left, knobs as `symbols` writes them."""
    known = symbols or {}
    kinds = ["r" if pd.api.types.is_numeric_dtype(frame[c]) else "l" for c in frame.columns]
    names = [str(c) for c in frame.columns]
    head = " & ".join(known.get(n.removeprefix(KNOB), escape_tex(n)) for n in names)
    # Without a knob beside it, `other` is another loss.
    knobs = {"knob", "swept"} | ({"other"} if "knob" in names else set())
    body = [
        " & ".join(
            known.get(str(v), escape_tex(_cell(v))) if n in knobs else escape_tex(_cell(v))
            for n, v in zip(names, row, strict=True)
        )
        + r" \\"
        for row in frame.itertuples(index=False, name=None)
    ]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_tex(caption)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{''.join(kinds)}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def safe_name(key: str) -> str:
    """A key as a file name: loss names are the user's, and must not leave the folder."""
    plain = re.sub(r"[^A-Za-z0-9._+-]", "_", key).lstrip(".") or "_"
    if plain == key:
        return plain
    return f"{plain[:80]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def save(
    frame: pd.DataFrame,
    folder: Path,
    key: str,
    *,
    caption: str,
    symbols: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write `key.csv` and `key.tex`."""
    csv, tex = folder / f"{safe_name(key)}.csv", folder / f"{safe_name(key)}.tex"
    csv.write_text(frame.to_csv(index=False, lineterminator="\n", float_format="%.8g"), "utf-8")
    label = safe_name(key)  # a loss may have a % in its name, which would end the line
    tex.write_text(to_latex(frame, caption=caption, label=label, symbols=symbols), "utf-8")
    return [csv, tex]


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float | np.floating) and not np.isfinite(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return str(value)
