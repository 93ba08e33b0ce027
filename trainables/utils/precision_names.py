"""Names of numeric precisions, for code that must not import torch."""

from __future__ import annotations

from typing import Literal, get_args

Precision = Literal["bf16", "tf32", "fp32"]
"""Precision of a model: autocast to bfloat16, float32 with TF32 products, or strict float32."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""All precisions, the most precise last."""
PrecisionSetting = Literal["auto", "bf16", "tf32", "fp32"]
