"""Gradient buckets: sums of an encoder's gradients over ranks that begin during backward.

Gradients are sent in buckets of a few megabytes. A bucket is sent as soon as backward has computed
its last gradient, so most of the transfer runs beside the rest of backward.

All ranks must begin their exchanges in the same order, also with respect to those of batch norms.
In the first step the ranks therefore compare which gradients they have and the order in which
backward computes them, and send everything after backward. If all ranks agree, the buckets follow
that order from the second step on; otherwise the ranks compare in every step.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainables.distributed.exchange import PendingExchange
from trainables.distributed.world import World

BUCKET_BYTES = 25 * 2**20

_ABSENT, _NOT_IN_ORDER = -2, -1


class GradientBuckets:
    """Sums the gradients of a model over ranks.

    A step is `start`, any number of backward passes inside `accumulate`, one backward pass outside
    of it, whose gradients are sent, and `finish`. Then every gradient is the sum over ranks of what
    all these passes accumulated. A gradient that no rank has stays None; one that some ranks do not
    have counts as zero there.

    Args:
        parameters: Parameters of the model, in the same order on all ranks.
        world: The ranks.
        bucket_bytes: Size from which a bucket is sent.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        world: World,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._parameters, self._world = list(parameters), world
        self._bucket_bytes = bucket_bytes
        self._trainable: list[bool] = []
        self._hooks: list[Any] = []
        self._buckets: list[_Bucket] | None = None
        self._bucket_of: dict[int, _Bucket] = {}
        self._arrived: list[int] = []
        self._n_started = 0
        self._is_accumulating = self._is_in_step = False

    def start(self) -> None:
        """Begin a step; an earlier one that failed is forgotten."""
        self._follow_trainable_parameters()
        self._arrived, self._n_started = [], 0
        self._is_accumulating, self._is_in_step = False, True
        for bucket in self._buckets or []:
            bucket.reset()

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes inside only add to the gradients; nothing is sent."""
        self._is_accumulating = True
        try:
            yield
        finally:
            self._is_accumulating = False

    def finish(self) -> None:
        """Send what has not been sent and return when all gradients are sums over ranks.

        Raises:
            RuntimeError: If the step was not started, or if the parameters with gradients are
                others than in the first step.
        """
        if not self._is_in_step:
            raise RuntimeError("a step must begin with `GradientBuckets.start` before backward")
        self._is_in_step = False
        if self._buckets is None:
            self._exchange_and_compare()
            return
        self._check_gradients()
        for bucket in self._buckets[self._n_started :]:
            bucket.start(self._world)
        for bucket in self._buckets:
            bucket.wait()

    def _follow_trainable_parameters(self) -> None:
        """Register hooks, and forget the buckets if other parameters are trained than before."""
        trainable = [parameter.requires_grad for parameter in self._parameters]
        if trainable == self._trainable:
            return
        for hook in self._hooks:
            hook.remove()
        self._trainable, self._buckets = trainable, None
        self._hooks = [
            cast(Any, parameter).register_post_accumulate_grad_hook(_make_arrival_hook(self, index))
            for index, parameter in enumerate(self._parameters)
            if parameter.requires_grad
        ]

    def _note_arrival(self, index: int) -> None:
        """Start the buckets that are complete, in order, now that a gradient has been computed."""
        if self._is_accumulating:
            return
        self._arrived.append(index)
        bucket = self._bucket_of.get(index) if self._buckets is not None else None
        if bucket is None or self._buckets is None:
            return
        if bucket.n_missing == 0:
            raise RuntimeError(
                "a second backward pass of a step would change gradients that are being sent; use "
                "`accumulate` for all passes but the last"
            )
        bucket.n_missing -= 1
        while self._n_started < len(self._buckets) and not self._buckets[self._n_started].n_missing:
            self._buckets[self._n_started].start(self._world)
            self._n_started += 1

    def _check_gradients(self) -> None:
        """Check that the gradients are those that the ranks have agreed on."""
        present = {i for i, parameter in enumerate(self._parameters) if parameter.grad is not None}
        changed = sorted(present ^ set(self._bucket_of))
        if changed:
            raise RuntimeError(
                "every step must compute gradients of the same parameters, but parameters "
                f"{changed} of {len(self._parameters)} differ from the first step; set "
                "`requires_grad` of parameters that are not trained to False"
            )

    def _exchange_and_compare(self) -> None:
        """Exchange all gradients after backward, and form buckets if the ranks agree."""
        orders = self._gather_orders()
        found = [
            index
            for index in reversed(range(len(self._parameters)))
            if any(order[index] != _ABSENT for order in orders)
        ]
        for index in found:
            if self._parameters[index].grad is None:
                self._parameters[index].grad = torch.zeros_like(self._parameters[index])
        buckets = self._form_buckets(found)
        for bucket in buckets:
            bucket.start(self._world)
        for bucket in buckets:
            bucket.wait()
        if all(order == orders[0] for order in orders):
            late = [i for i in found if orders[0][i] == _NOT_IN_ORDER]
            self._buckets = self._form_buckets([*self._arrived, *late])
            self._bucket_of = {i: b for b in self._buckets for i in b.indices}

    def _gather_orders(self) -> list[list[int]]:
        """Return for every rank the position of each gradient in the order of backward."""
        order = [
            _ABSENT if parameter.grad is None else _NOT_IN_ORDER for parameter in self._parameters
        ]
        for position, index in enumerate(self._arrived):
            order[index] = position
        own = torch.tensor(order, device=self._world.device)
        orders: list[list[int]] = self._world.all_gather_many([own])[0].tolist()
        return orders

    def _form_buckets(self, indices: Sequence[int]) -> list[_Bucket]:
        """Divide parameters into buckets of one type each."""
        closed: list[list[int]] = []
        current: dict[torch.dtype, list[int]] = {}
        for index in indices:
            dtype = self._parameters[index].dtype
            members = current.setdefault(dtype, [])
            members.append(index)
            if sum(self._parameters[i].nbytes for i in members) >= self._bucket_bytes:
                closed.append(current.pop(dtype))
        return [_Bucket(group, self._parameters) for group in [*closed, *current.values()]]


class _Bucket:
    """Some parameters whose gradients are sent together."""

    def __init__(self, indices: Sequence[int], parameters: Sequence[nn.Parameter]) -> None:
        self.indices = list(indices)
        self._members = [(parameters[i], _gradient_strides(parameters[i])) for i in indices]
        self._pending: PendingExchange | None = None
        self.n_missing = len(self.indices)

    def reset(self) -> None:
        """Wait for all gradients again."""
        self._pending, self.n_missing = None, len(self.indices)

    def start(self, world: World) -> None:
        """Copy the gradients into one tensor, of which they become views, and send it."""
        flat = torch.cat([_flatten_in_memory_order(*member) for member in self._members])
        offset = 0
        for parameter, strides in self._members:
            parameter.grad = flat.as_strided(parameter.shape, strides, offset)
            offset += parameter.numel()
        self._pending = world.start_all_reduce_sum(flat)

    def wait(self) -> None:
        """Return when the gradients may be used."""
        if self._pending is not None:
            self._pending.wait()
        self._pending = None


def exchange_together(tensors: Sequence[Tensor], exchange: Callable[[Tensor], None]) -> None:
    """Exchange several tensors in place, in one collective operation."""
    if len(tensors) == 1:
        exchange(tensors[0])
    elif tensors:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        exchange(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        torch._foreach_copy_(
            list(tensors), [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]
        )


def _make_arrival_hook(buckets: GradientBuckets, index: int) -> Callable[[Tensor], None]:
    """Return a hook that does not keep the buckets, and thereby the model, alive."""
    reference = weakref.ref(buckets)

    def note_arrival(parameter: Tensor) -> None:
        owner = reference()
        if owner is not None:
            owner._note_arrival(index)

    return note_arrival


def _gradient_strides(parameter: Tensor) -> tuple[int, ...]:
    """Return the strides that autograd gives the parameter's gradient.

    They are the parameter's own, or those of a contiguous tensor if its memory has gaps.
    """
    expected = 1
    axes = zip(parameter.stride(), parameter.shape, strict=True)
    for stride, length in sorted(axis for axis in axes if axis[1] > 1):
        if stride != expected:
            return torch.empty(parameter.shape, device="meta").stride()
        expected *= length
    return parameter.stride()


def _flatten_in_memory_order(parameter: nn.Parameter, strides: tuple[int, ...]) -> Tensor:
    """Return the gradient as a vector, without a copy: channels-last weights stay in their order.

    The order is that of the parameter, which is equal on all ranks.
    """
    gradient = parameter.grad
    assert gradient is not None
    axes = zip(gradient.shape, gradient.stride(), strides, strict=True)
    if any(length > 1 and own != expected for length, own, expected in axes):
        ordered = torch.empty_strided(
            gradient.shape, strides, dtype=gradient.dtype, device=gradient.device
        )
        gradient = ordered.copy_(gradient)
    return gradient.as_strided((gradient.numel(),), (1,))
