"""Virtual clock: how long a sequence of launches, waits, copies and exchanges takes on a GPU.

The clock knows two actors. The host issues events one after the other; the device works on kernels
in the order in which they were launched. The device is idle while it has no kernel to work on,
which happens whenever the host waits for it, or needs longer to launch than the device to compute.
All durations are assumptions or published figures, so every result is modelled, not measured.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from trainables.data.feed import STAGED_BATCHES_AHEAD

LAUNCH_SECONDS = 8e-6
WAIT_SECONDS = 15e-6
EXCHANGE_LAUNCH_SECONDS = 20e-6
PAGEABLE_BYTES_PER_SECOND = 8e9
PINNED_BYTES_PER_SECOND = 24e9
SMALL_KERNEL_SECONDS = 3e-6


@dataclass(frozen=True)
class Launch:
    """The host starts a kernel."""

    kernel: str = ""


@dataclass(frozen=True)
class Wait:
    """The host waits until the device has done everything that was launched."""


@dataclass(frozen=True)
class Upload:
    """The host copies to the device; it waits for the copy unless the source is pinned."""

    n_bytes: float = 0.0
    is_blocking: bool = True


@dataclass(frozen=True)
class Exchange:
    """All ranks exchange a tensor on the device.

    Args:
        n_bytes: Bytes of one rank.
        is_overlapped: Whether kernels launched later may run beside it, until `AwaitExchanges`.
    """

    n_bytes: float = 0.0
    is_overlapped: bool = False


@dataclass(frozen=True)
class AwaitExchanges:
    """Kernels launched from here on need the results of all overlapped exchanges."""


@dataclass(frozen=True)
class HostWork:
    """The host computes."""

    seconds: float


Event = Launch | Wait | Upload | Exchange | AwaitExchanges | HostWork


@dataclass(frozen=True)
class DeviceFigures:
    """Figures of a GPU.

    Args:
        name: Name in tables.
        images_per_second: Training throughput of ResNet-50 at 224 px, by precision.
        transform_seconds: Device time of crop, resize and normalisation of an image.
        exchange_seconds: Latency of an exchange between 8 GPUs of a machine.
        exchange_bytes_per_second: Bytes of a rank that all ranks sum in a second.
    """

    name: str
    images_per_second: dict[str, float]
    transform_seconds: float
    exchange_seconds: float
    exchange_bytes_per_second: float


# Throughput: NVIDIA DeepLearningExamples, ResNet50 v1.5, A100 80 GB, TF32 and AMP. An H100 trains
# vision models about twice as fast (Lambda). The other figures are estimates.
A100 = DeviceFigures(
    name="A100",
    images_per_second={"fp32": 938.0, "bf16": 2470.0},
    transform_seconds=1.5e-3 / 120,
    exchange_seconds=40e-6,
    exchange_bytes_per_second=1e11,
)
H100 = replace(
    A100,
    name="H100",
    images_per_second={"fp32": 2 * 938.0, "bf16": 2 * 2470.0},
    transform_seconds=0.75e-3 / 120,
    exchange_bytes_per_second=2e11,
)


@dataclass(frozen=True)
class Timing:
    """What the clock says about a sequence of events.

    Args:
        seconds: From the first event until host and device are done.
        computing_seconds: Time in which the device runs kernels.
        exchanging_seconds: Time in which kernels wait for an exchange.
    """

    seconds: float
    computing_seconds: float
    exchanging_seconds: float

    @property
    def busy_share(self) -> float:
        """Share of the time in which the device runs kernels or exchanges, as nvidia-smi shows."""
        return (self.computing_seconds + self.exchanging_seconds) / self.seconds

    @property
    def computing_share(self) -> float:
        """Share of the time in which the device runs kernels."""
        return self.computing_seconds / self.seconds


class VirtualClock:
    """Times of the host and of the device while events happen.

    Args:
        kernel_seconds: Duration of a kernel, by its name.
        figures: Figures of the GPU.
        launch_seconds: Time that the host needs to start a kernel.
    """

    def __init__(
        self,
        kernel_seconds: Callable[[str], float],
        figures: DeviceFigures = A100,
        *,
        launch_seconds: float = LAUNCH_SECONDS,
    ) -> None:
        self._kernel_seconds, self._figures = kernel_seconds, figures
        self._launch_seconds = launch_seconds
        self.host_time = self.device_time = 0.0
        self.computing_seconds = self.exchanging_seconds = 0.0
        self._exchange_time = 0.0
        self._copy_time = 0.0
        self._copies: deque[float] = deque(maxlen=STAGED_BATCHES_AHEAD + 1)

    def play(self, events: Iterable[Event]) -> Timing:
        """Let events happen and return the timing of all events so far."""
        for event in events:
            self._handle(event)
        return Timing(
            max(self.host_time, self.device_time, self._exchange_time),
            self.computing_seconds,
            self.exchanging_seconds,
        )

    def _handle(self, event: Event) -> None:
        match event:
            case Launch(kernel):
                self.host_time += self._launch_seconds
                seconds = self._kernel_seconds(kernel)
                self.device_time = max(self.device_time, self.host_time) + seconds
                self.computing_seconds += seconds
            case Wait():
                self.host_time = max(self.host_time, self.device_time) + WAIT_SECONDS
            case Upload(n_bytes, is_blocking):
                self._upload(n_bytes, is_blocking)
            case Exchange(n_bytes, is_overlapped):
                self._exchange(n_bytes, is_overlapped)
            case AwaitExchanges():
                self._await_exchanges()
            case HostWork(seconds):
                self.host_time += seconds

    def _upload(self, n_bytes: float, is_blocking: bool) -> None:
        if is_blocking:
            self.host_time = max(self.host_time, self.device_time) + WAIT_SECONDS
            self.host_time += n_bytes / PAGEABLE_BYTES_PER_SECOND
            return
        self.host_time += self._launch_seconds
        self._copy_time = max(self._copy_time, self.host_time) + n_bytes / PINNED_BYTES_PER_SECOND
        self._copies.append(self._copy_time)
        # Kernels that follow use the batch that was copied some uploads ago.
        self.device_time = max(self.device_time, self._copies[0])

    def _exchange(self, n_bytes: float, is_overlapped: bool) -> None:
        self.host_time += EXCHANGE_LAUNCH_SECONDS
        figures = self._figures
        seconds = figures.exchange_seconds + n_bytes / figures.exchange_bytes_per_second
        started = max(self._exchange_time, self.device_time, self.host_time)
        self._exchange_time = started + seconds
        if not is_overlapped:
            self._await_exchanges()

    def _await_exchanges(self) -> None:
        started = max(self.device_time, self.host_time)
        if self._exchange_time > started:
            self.exchanging_seconds += self._exchange_time - started
            self.device_time = self._exchange_time


def spread_evenly(events: Sequence[Event], seconds: float) -> Callable[[str], float]:
    """Return kernel durations with which the kernels of a sequence last `seconds`, all the same."""
    n_launches = sum(isinstance(event, Launch) for event in events)
    return lambda kernel: seconds / n_launches


def spread_over_convolutions(events: Sequence[Event], seconds: float) -> Callable[[str], float]:
    """Return kernel durations where convolutions share the time that small kernels leave.

    All other kernels last `SMALL_KERNEL_SECONDS`, less than it takes to launch one: the device
    becomes idle if the host is not ahead.
    """
    counts = Counter(event.kernel for event in events if isinstance(event, Launch))
    n_large = sum(count for kernel, count in counts.items() if "convolution" in kernel)
    rest = seconds - SMALL_KERNEL_SECONDS * (counts.total() - n_large)
    if not n_large or rest <= 0:
        return spread_evenly(events, seconds)
    large = rest / n_large
    return lambda kernel: large if "convolution" in kernel else SMALL_KERNEL_SECONDS
