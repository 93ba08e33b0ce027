"""Pretend device: an accelerator that computes on the CPU and counts what a GPU would be asked for.

The device uses torch's PrivateUse1 key with Python hooks, so it needs neither a GPU nor a compiled
extension. Its tensors wrap CPU tensors. Inside `count_device_work` a dispatch mode runs every
operation on the wrapped tensors, raises where a GPU would (operands on two devices), and counts

- launches: operations that start a kernel,
- waits: operations whose result the host waits for (`item`, `nonzero`, `unique`, boolean masks,
  downloads, and uploads from memory that is not pinned),
- uploads: copies from the host,

each with the file and line of the repository that asked for it.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE_TYPE = "pretend"
REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE_PACKAGES = tuple(str(REPOSITORY / name) for name in ("trainables", "study", "tests"))

aten = torch.ops.aten
_COPIES = {aten.copy_.default, aten._to_copy.default}
_INDEXED = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
}
_SCALAR_READS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
}
# Operations that change sizes, strides or storage only.
_NO_KERNEL = {
    "view",
    "_unsafe_view",
    "t",
    "transpose",
    "permute",
    "expand",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "alias",
    "detach",
    "as_strided",
    "split",
    "unbind",
    "diagonal",
    "reshape",
    "_reshape_alias",
    "split_with_sizes",
    "view_as",
    "narrow",
    "unfold",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "set",
    "resize",
    "record_stream",
    "lift_fresh",
}


class PretendStream:
    """Stream of the pretend device; work is done at once, so there is nothing to order."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device(DEVICE_TYPE, 0)

    def wait_stream(self, stream: PretendStream) -> None:
        """Do nothing."""

    def wait_event(self, event: PretendEvent) -> None:
        """Do nothing."""

    def record_event(self, event: PretendEvent | None = None) -> PretendEvent:
        """Return an event that has happened."""
        return event or PretendEvent()

    def synchronize(self) -> None:
        """Count a wait."""
        _count_wait("synchronize")


class PretendEvent:
    """Event of the pretend device; it has always happened."""

    def __init__(self, **_: Any) -> None:
        pass

    def record(self, stream: PretendStream | None = None) -> None:
        """Do nothing."""

    def wait(self, stream: PretendStream | None = None) -> None:
        """Do nothing: a stream waits, not the host."""

    def query(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Return at once: the event was recorded before the work that the host queued since."""


class PretendModule(backend_registration._DummyBackendModule):
    """The module `torch.pretend`, with what the trainables use of `torch.cuda`."""

    Stream, Event = PretendStream, PretendEvent
    total_bytes = 80 * 2**30
    free_bytes = 70 * 2**30

    def current_stream(self, device: Any = None) -> PretendStream:
        """Return the only stream."""
        return PretendStream()

    @contextlib.contextmanager
    def stream(self, stream: PretendStream | None) -> Iterator[None]:
        """Use a stream."""
        yield

    def synchronize(self, device: Any = None) -> None:
        """Count a wait."""
        _count_wait("synchronize")

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Return free and total bytes."""
        return self.free_bytes, self.total_bytes

    def empty_cache(self) -> None:
        """Do nothing."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the types of autocast, which torch asks every registered device for."""
        return [torch.bfloat16]


def register_pretend_device() -> torch.device:
    """Register the device with torch, once in a process, and return it."""
    if not hasattr(torch, DEVICE_TYPE):
        backend_registration._setup_privateuseone_for_python_backend(
            DEVICE_TYPE, backend_module=PretendModule()
        )
    return torch.device(DEVICE_TYPE, 0)


class PretendTensor(Tensor):
    """Tensor on the pretend device.

    Args:
        host_tensor: CPU tensor with the values.
    """

    host_tensor: Tensor

    @staticmethod
    def __new__(cls, host_tensor: Tensor) -> PretendTensor:
        """Wrap a tensor with its sizes, strides and type."""
        wrapped: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host_tensor.size(),
            strides=host_tensor.stride(),
            storage_offset=host_tensor.storage_offset(),
            dtype=host_tensor.dtype,
            device=register_pretend_device(),
            requires_grad=False,
        )
        return wrapped

    def __init__(self, host_tensor: Tensor) -> None:
        self.host_tensor = host_tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PretendTensor({self.host_tensor!r})"

    def new_tensor(  # type: ignore[override]
        self, data: Any, dtype: torch.dtype | None = None, device: Any = None, **_: Any
    ) -> Tensor:
        """Return a tensor on this device; the base class builds it without the dispatcher."""
        return torch.tensor(data, dtype=dtype or self.dtype).to(self.device)

    def record_stream(self, s: Any) -> None:
        """Do nothing: memory is freed by Python's reference counts."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        counters = DeviceCounters.active[-1] if DeviceCounters.active else DeviceCounters()
        return counters.run(func, args, kwargs or {})


class DeviceCounters(TorchDispatchMode):
    """What the host asked of the pretend device.

    Attributes:
        launches: Kernels started, by operation.
        waits: Operations that the host waited for, by place.
        uploads: Copies from the host, by place.
        uploaded_bytes: Bytes of these copies.
    """

    active: list[DeviceCounters] = []  # noqa: RUF012  (modes are a stack)

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()
        self.uploaded_bytes = 0

    def __enter__(self) -> DeviceCounters:
        DeviceCounters.active.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        DeviceCounters.active.pop()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation on the wrapped tensors and count it."""
        leaves = tree_leaves((args, kwargs))
        remote = [leaf for leaf in leaves if isinstance(leaf, PretendTensor)]
        target = kwargs.get("device")
        target_type = None if target is None else torch.device(target).type
        if not remote and target_type != DEVICE_TYPE:
            return func(*args, **kwargs)
        self._check_devices(func, args, leaves)
        self._count(func, args, kwargs, remote, target_type)
        inner_args, inner_kwargs = tree_map(_unwrap, (args, kwargs))
        if target_type == DEVICE_TYPE:
            inner_kwargs = {**inner_kwargs, "device": torch.device("cpu")}
        result = func(*inner_args, **inner_kwargs)
        if func in _SCALAR_READS or (func is aten._to_copy.default and target_type == "cpu"):
            return result
        if func is aten.copy_.default and not isinstance(args[0], PretendTensor):
            return args[0]
        wrapped = tree_map(_wrap, result)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)  # type: ignore[no-untyped-call]

    def _check_devices(self, func: Any, args: Any, leaves: Sequence[Any]) -> None:
        """Raise if operands are on two devices; scalars and indices from the host are allowed."""
        if func in _COPIES:
            return
        on_host = [
            leaf
            for leaf in leaves
            if isinstance(leaf, Tensor) and not isinstance(leaf, PretendTensor)
        ]
        is_mixed = any(leaf.dim() > 0 for leaf in on_host)
        if not is_mixed or not any(isinstance(leaf, PretendTensor) for leaf in leaves):
            return
        if func in _INDEXED and isinstance(args[0], PretendTensor):
            self._count_upload(on_host[0], "index from the host")
            return
        raise RuntimeError(f"expected all tensors on one device, but not so: {func} at {_place()}")

    def _count(
        self,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        remote: Sequence[Tensor],
        target_type: str | None,
    ) -> None:
        name = func._schema.name.split("::")[1]
        if func is aten._to_copy.default and target_type == "cpu":
            self.waits[f"{_place()} download"] += 1
        elif func is aten._to_copy.default and not remote:
            self._count_upload(args[0], "upload", non_blocking=bool(kwargs.get("non_blocking")))
        elif func is aten.copy_.default and not isinstance(args[0], PretendTensor):
            if not (_flag(args, 2) and is_pinned(args[0])):
                self.waits[f"{_place()} download"] += 1
        elif func is aten.copy_.default and not isinstance(args[1], PretendTensor):
            self._count_upload(args[1], "upload", non_blocking=_flag(args, 2))
        elif func in _SCALAR_READS:
            self.waits[f"{_place()} {name}"] += 1
        elif _has_dynamic_shape(func, args):
            self.waits[f"{_place()} {name}"] += 1
            self.launches[name] += 2
        elif name.rstrip("_") not in _NO_KERNEL:
            self.launches[name] += 1

    def _count_upload(self, source: Tensor, kind: str, *, non_blocking: bool = False) -> None:
        if source.dim() == 0 and source.numel() == 1 and kind != "upload":
            return
        self.uploads[f"{_place()} {kind}"] += 1
        self.uploaded_bytes += source.numel() * source.element_size()
        if not (non_blocking and is_pinned(source)):  # the host waits for a pageable copy
            self.waits[f"{_place()} {kind}"] += 1


class _ConstructorMode(TorchFunctionMode):
    """Constructors that reach the backend without the dispatcher's modes."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor):
            device = kwargs.pop("device", None)
            result = func(*args, **kwargs)
            return result if device is None else result.to(device)
        if func is torch.Tensor.tolist and isinstance(args[0], PretendTensor):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


@contextlib.contextmanager
def count_device_work(counters: DeviceCounters | None = None) -> Iterator[DeviceCounters]:
    """Count the work that the host asks of the pretend device, in new or in given counters."""
    register_pretend_device()
    with _ConstructorMode(), counters or DeviceCounters() as active:
        yield active


_PINNED_POINTERS: set[int] = set()


def pin(tensor: Tensor) -> Tensor:
    """Treat a CPU tensor's memory as pinned."""
    _PINNED_POINTERS.add(tensor.untyped_storage().data_ptr())
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """Whether a CPU tensor's memory is treated as pinned."""
    return tensor.untyped_storage().data_ptr() in _PINNED_POINTERS


def _count_wait(kind: str) -> None:
    if DeviceCounters.active:
        DeviceCounters.active[-1].waits[f"{_place()} {kind}"] += 1


def _wrap(value: Any) -> Any:
    is_host_tensor = isinstance(value, Tensor) and not isinstance(value, PretendTensor)
    return PretendTensor(value) if is_host_tensor else value


def _unwrap(value: Any) -> Any:
    return value.host_tensor if isinstance(value, PretendTensor) else value


def _flag(args: Sequence[Any], position: int) -> bool:
    return len(args) > position and bool(args[position])


def _has_dynamic_shape(func: Any, args: Any) -> bool:
    """Whether the size of the result depends on values, so that the host must know them."""
    if func in _INDEXED:
        indices = args[1] or []
        return any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)
    return torch.Tag.dynamic_output_shape in func.tags


def _place() -> str:
    """Return the innermost file and line of this repository, without this module."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and name.startswith(SOURCE_PACKAGES):
            return f"{Path(name).relative_to(REPOSITORY)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "autograd"
