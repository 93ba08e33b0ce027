"""Entries of a (batch, classes) matrix at the own class of each sample, on the CPU and elsewhere.

On the CPU only the samples whose class is in a block are listed, so that a block costs as little as
it has samples. The number of these samples is a value that a device would have to send to the host:
there every sample is listed, and a mask tells which of them have their class in the block.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# Types of device whose values the host reads without waiting.
HOST_DEVICE_TYPES = frozenset({"cpu"})


def can_read_values(tensor: Tensor) -> bool:
    """Whether the host can read the values of a tensor without waiting for a device.

    This is the only place where the losses choose between a form for the CPU, whose shapes may
    depend on values, and one of fixed shapes for other devices.
    """
    return tensor.device.type in HOST_DEVICE_TYPES


class OwnEntries(Protocol):
    """The entries of the own classes in a block of classes, (batch, classes)."""

    def take(self, matrix: Tensor) -> Tensor:
        """Return the entry of each listed sample; undefined if its class is not in the block."""

    def write_(self, matrix: Tensor, values: Tensor | float) -> None:
        """Replace the entries by one value, or by one of each listed sample."""

    def copy_to_rows_(self, vector: Tensor, values: Tensor) -> None:
        """Replace the numbers of the samples with a class in the block."""

    def subtract_from_rows_(self, vector: Tensor, values: Tensor) -> None:
        """Subtract from the numbers of the samples with a class in the block."""

    def select_rows(self, vector: Tensor) -> Tensor:
        """Return the numbers of the listed samples."""

    def select_columns(self, vector: Tensor) -> Tensor:
        """Return the numbers of the classes of the listed samples."""


class ListedEntries(NamedTuple):
    """Entries of the samples whose class is in the block: `rows[i]` has its class `columns[i]`."""

    rows: Tensor
    columns: Tensor

    def take(self, matrix: Tensor) -> Tensor:
        """Return the entry of each listed sample."""
        return matrix[self.rows, self.columns]

    def write_(self, matrix: Tensor, values: Tensor | float) -> None:
        """Replace the entries by one value, or by one of each listed sample."""
        matrix[self.rows, self.columns] = values

    def copy_to_rows_(self, vector: Tensor, values: Tensor) -> None:
        """Replace the numbers of the listed samples."""
        vector[self.rows] = values

    def subtract_from_rows_(self, vector: Tensor, values: Tensor) -> None:
        """Subtract from the numbers of the listed samples."""
        vector[self.rows] -= values

    def select_rows(self, vector: Tensor) -> Tensor:
        """Return the numbers of the listed samples."""
        return vector[self.rows]

    def select_columns(self, vector: Tensor) -> Tensor:
        """Return the numbers of the classes of the listed samples."""
        return vector[self.columns]


class MaskedEntries(NamedTuple):
    """Entries of all samples, with a mask of those whose class is in the block.

    Args:
        columns: Class of each sample relative to the block, any column if it is not in the block.
        is_inside: Whether the class is in the block; None if all are.
    """

    columns: Tensor
    is_inside: Tensor | None = None

    @classmethod
    def from_labels(cls, labels: Tensor, first: int, width: int) -> MaskedEntries:
        """Return the entries in a block of the classes `first` ... `first + width - 1`."""
        places = labels - first
        columns = places.clamp(0, width - 1)
        return cls(columns, places == columns)

    def take(self, matrix: Tensor) -> Tensor:
        """Return one entry of each sample."""
        return matrix.gather(1, self.columns[:, None])[:, 0]

    def write_(self, matrix: Tensor, values: Tensor | float) -> None:
        """Replace the entries by one value, or by one of each sample."""
        index = self.columns[:, None]
        if self.is_inside is not None:
            values = torch.where(self.is_inside, values, self.take(matrix))
        if isinstance(values, Tensor):
            matrix.scatter_(1, index, values[:, None])
        else:
            matrix.scatter_(1, index, values)

    def copy_to_rows_(self, vector: Tensor, values: Tensor) -> None:
        """Replace the numbers of the samples with a class in the block."""
        if self.is_inside is None:
            vector.copy_(values)
        else:
            vector.copy_(torch.where(self.is_inside, values, vector))

    def subtract_from_rows_(self, vector: Tensor, values: Tensor) -> None:
        """Subtract from the numbers of the samples with a class in the block."""
        vector.sub_(values if self.is_inside is None else values * self.is_inside)

    def select_rows(self, vector: Tensor) -> Tensor:
        """Return the numbers of all samples."""
        return vector

    def select_columns(self, vector: Tensor) -> Tensor:
        """Return one number for each sample."""
        return vector[self.columns]
