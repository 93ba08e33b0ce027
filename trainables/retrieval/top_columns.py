"""Largest entries of each row of a matrix, faster than `topk` over complete rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def select_top_columns(similarities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return values and columns of the `count` largest entries of each row, largest first.

    The columns are divided into groups. The largest `count` values lie in the `count` groups with
    the largest maxima. Group maxima cost one pass at memory speed, and the selection then considers
    only the maxima and the members of the best groups, where `topk` over complete rows would cost
    more than the matrix product.
    """
    n_rows, n_columns = similarities.shape
    # This size makes both selections about equally long.
    size = 2 ** round(np.log2(max(1.0, n_columns / count)) / 2)
    if size < 4:
        top = similarities.topk(count, dim=1)
        return top.values, top.indices
    groups = n_columns // size  # group g holds columns g, g + groups, g + 2 groups, ...
    main = similarities[:, : groups * size].view(n_rows, size, groups)
    best = main.amax(dim=1).topk(count, dim=1, sorted=False).indices
    steps = groups * torch.arange(size, device=best.device)
    columns = (best[:, None, :] + steps[:, None]).flatten(1)
    tail = torch.arange(groups * size, n_columns, device=best.device).expand(n_rows, -1)
    columns = torch.cat([columns, tail], dim=1)
    top = similarities.gather(1, columns).topk(count, dim=1)
    return top.values, columns.gather(1, top.indices)
