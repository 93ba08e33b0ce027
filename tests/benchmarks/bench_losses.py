"""How fast and how large is a step of each loss, beside its matrix products and the library's?

    python tests/benchmarks/bench_losses.py [--quick] [--losses NAME ...] [--out FILE]

One step is forward and backward of 180 x 512 embeddings. For every loss and number of classes ours
takes turns in the same run with the bare matrix products X P^T, G P and G^T X of the loss's own
proxies (all centres of all classes), and then with pytorch-metric-learning's (where it has the
loss); all three in one circle would let ours, and no other, follow the one that allocates most. The
table shows medians of the ratios within a round, so a machine that slows down slows both; `least`
is the ratio of the fastest steps, what is left when nothing else ran. Peak memory is that of a
fresh process each.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from search_spaces import get_space  # noqa: E402
from trainables.backbone import build_backbone  # noqa: E402
from trainables.losses import LOSSES, build_loss, loss_knobs  # noqa: E402
from trainables.model import pool  # noqa: E402

BATCH, DIM = 180, 512
SIZES = (100, 11_318, 100_000)
QUICK_SIZES = (100, 2_000)
IMAGES_PER_CLASS = 4
IMAGES = (60, 3, 64, 64)

Step = Callable[[], None]


def knobs_of(name: str, n_classes: int) -> dict[str, Any]:
    """The published point; SoftTriple with 2 centres where 10 would be a million vectors."""
    known = loss_knobs(name)
    knobs = {k: v for k, v in get_space(name).published[0].values.items() if k in known}
    if "centers" in knobs and n_classes > 20_000:
        knobs["centers"] = 2
    return knobs


def ours(name: str, n_classes: int) -> nn.Module:
    return build_loss(name, n_classes=n_classes, dim=DIM, **knobs_of(name, n_classes))


def theirs(name: str, n_classes: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """pytorch-metric-learning's loss at the same point; None where it has none."""
    from pytorch_metric_learning import losses, miners

    k = knobs_of(name, n_classes)
    hard, mine = miners.BatchHardMiner(), miners.MultiSimilarityMiner(epsilon=0.1)
    builders: dict[str, Callable[[], Any]] = {
        "norm_softmax": lambda: losses.NormalizedSoftmaxLoss(
            n_classes, DIM, temperature=k["temperature"]
        ),
        "am_softmax": lambda: losses.CosFaceLoss(n_classes, DIM, margin=k["m"], scale=k["gamma"]),
        "unified": lambda: losses.CosFaceLoss(n_classes, DIM, margin=k["m"], scale=k["gamma"]),
        "arcface": lambda: losses.ArcFaceLoss(n_classes, DIM, margin=28.6, scale=k["gamma"]),
        "proxy_nca_pp": lambda: losses.ProxyNCALoss(
            n_classes, DIM, softmax_scale=1 / k["temperature"]
        ),
        "proxy_anchor": lambda: losses.ProxyAnchorLoss(
            n_classes, DIM, margin=k["delta"], alpha=k["alpha"]
        ),
        # Without its regulariser, whose (classes x centres)^2 mask does not fit any memory.
        "soft_triple": lambda: losses.SoftTripleLoss(
            n_classes,
            DIM,
            centers_per_class=k["centers"],
            la=k["lambda_"],
            gamma=k["gamma"],
            margin=k["delta"],
        ),
        "circle_pair": lambda: losses.CircleLoss(m=k["m"], gamma=k["gamma"]),
        "triplet": lambda: _mined(losses.TripletMarginLoss(margin=k["margin"]), hard),
        "contrastive": lambda: losses.ContrastiveLoss(k["pos_margin"], k["margin"]),
        "multi_similarity": lambda: _mined(
            losses.MultiSimilarityLoss(k["alpha"], k["beta"], k["base"]), mine
        ),
        "margin": lambda: losses.MarginLoss(margin=k["margin"], beta=k["beta"]),
    }
    return builders[name]() if name in builders else None


def _mined(loss: Any, miner: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: loss(x, y, miner(x, y))


def batch(n_classes: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(12)  # not the proxies' seed
    x = torch.randn(size, DIM, generator=generator).requires_grad_()
    classes = torch.randint(n_classes, (size // IMAGES_PER_CLASS,), generator=generator)
    return x, classes.repeat_interleave(IMAGES_PER_CLASS)


def step_of(loss: Any, x: Tensor, y: Tensor) -> Step:
    parameters = list(loss.parameters()) if isinstance(loss, nn.Module) else []

    def step() -> None:
        for tensor in (x, *parameters):
            tensor.grad = None
        loss(x, y).backward()

    return step


def products_of(x: Tensor, n_proxies: int) -> Step:
    p = torch.randn(n_proxies, x.shape[1], generator=torch.Generator().manual_seed(1))
    x = x.detach()

    def step() -> None:
        g = x @ p.T
        _ = g @ p
        _ = g.T @ x

    return step


def race(steps: dict[str, Step], *, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each contender per round; they take turns within a round."""
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while len(times[next(iter(times))]) < rounds or time.perf_counter() < end:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
        if len(times[next(iter(times))]) >= 50 * rounds:
            break
    return times


def ratio(times: dict[str, list[float]], above: str, below: str) -> float | None:
    if above not in times or below not in times:
        return None
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def least_ratio(times: dict[str, list[float]], above: str, below: str) -> float | None:
    """Of the fastest steps: another process on the cores hits many short operations hardest."""
    if above not in times or below not in times:
        return None
    return min(times[above]) / min(times[below])


def time_loss(name: str, n_classes: int, *, seconds: float, rounds: int) -> dict[str, Any]:
    x, y = batch(n_classes)
    loss = ours(name, n_classes)
    own = step_of(loss, x, y)
    proxies = getattr(loss, "proxies", None)
    beside: dict[str, Step] = {}
    if isinstance(proxies, Tensor):
        beside["products"] = products_of(x, proxies.numel() // DIM)
    races = [race({"ours": own} | beside, seconds=seconds, rounds=rounds)]
    other = theirs(name, n_classes)
    if other is not None:
        rival = step_of(other, x.detach().clone().requires_grad_(), y)
        races.append(race({"ours": own, "pml": rival}, seconds=seconds, rounds=rounds))
    medians = {who: statistics.median(t) for times in races[::-1] for who, t in times.items()}
    return {
        "loss": name,
        "classes": n_classes,
        **{f"{who}_ms": value for who, value in medians.items()},
        "ours_over_products": ratio(races[0], "ours", "products"),
        "least_over_products": least_ratio(races[0], "ours", "products"),
        "pml_over_ours": ratio(races[-1], "pml", "ours"),
    }


def time_synthesis(name: str, n_classes: int, *, seconds: float, rounds: int) -> dict[str, Any]:
    """The plug-in against its host on sets as large as the plug-in makes them (mu = 1)."""
    x, y = batch(n_classes)
    plugin = ours(f"{name}+synthesis", n_classes)
    x2, y2 = batch(n_classes + BATCH, size=2 * BATCH)
    larger = build_loss(name, n_classes=n_classes + BATCH, dim=DIM, **knobs_of(name, n_classes))
    steps = {
        "plugin": step_of(plugin, x, y),
        "same sizes": step_of(larger, x2, y2),
        "host": step_of(ours(name, n_classes), x, y),
    }
    times = race(steps, seconds=seconds, rounds=rounds)
    return {
        "loss": f"{name}+synthesis",
        "classes": n_classes,
        "plugin_ms": statistics.median(times["plugin"]),
        "plugin_over_same_sizes": ratio(times, "plugin", "same sizes"),
        "plugin_over_host": ratio(times, "plugin", "host"),
    }


def time_training(name: str, *, seconds: float, rounds: int) -> dict[str, Any]:
    """A step with images and a backbone: the plug-in makes none of these."""
    images = torch.randn(*IMAGES, generator=torch.Generator().manual_seed(3))
    y = batch(100, size=len(images))[1]
    backbone = build_backbone("resnet18", in_channels=IMAGES[1], image_size=IMAGES[2])

    def step_with(loss: nn.Module) -> Step:
        def step() -> None:
            backbone.zero_grad()
            loss.zero_grad()
            loss(pool(backbone(images), "avg"), y).backward()

        return step

    steps = {who: step_with(ours(who, 100)) for who in (f"{name}+synthesis", name)}
    times = race(steps, seconds=seconds, rounds=rounds)
    return {
        "loss": f"{name}+synthesis",
        "host_step_ms": statistics.median(times[name]),
        "step_over_host_step": ratio(times, f"{name}+synthesis", name),
    }


def peak_memory(who: str, name: str, n_classes: int) -> float:
    """MiB that one step needs beyond inputs and parameters, in a fresh process."""
    command = [sys.executable, __file__, "--peak", who, name, str(n_classes)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return float(result.stdout.split()[-1])


def measure_peak(who: str, name: str, n_classes: int) -> float:
    x, y = batch(100)
    small = ours(name, 100) if who == "ours" else theirs(name, 100)
    step_of(small, x, y)()  # libraries, thread pools and their buffers
    loss = ours(name, n_classes) if who == "ours" else theirs(name, n_classes)
    step = step_of(loss, *batch(n_classes))
    # Linux: writing 5 resets the high-water mark of resident memory to what is resident now.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    step()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))


def show(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, header: bool = True) -> None:
    if header:
        print("  ".join(f"{c:>22}" for c in columns))
    for row in rows:
        cells = [row.get(c) for c in columns]
        text = [
            "-" if c is None else (f"{c:.3f}" if isinstance(c, float) else f"{c}") for c in cells
        ]
        print("  ".join(f"{t:>22}" for t in text), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--losses", nargs="*", default=list(LOSSES))
    parser.add_argument("--sizes", nargs="*", type=int)
    parser.add_argument("--seconds", type=float, default=None, help="per loss and size")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "tests/benchmarks/results/losses.json")
    parser.add_argument("--peak", nargs=3, metavar=("WHO", "LOSS", "CLASSES"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        who, name, n_classes = options.peak
        print(measure_peak(who, name, int(n_classes)))
        return
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    seconds = options.seconds or (0.3 if options.quick else 4.0)
    rounds = 3 if options.quick else 5
    result = run(options.losses, sizes, seconds=seconds, rounds=rounds)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwritten to {options.out}")


def run(
    names: Sequence[str], sizes: Sequence[int], *, seconds: float, rounds: int
) -> dict[str, Any]:
    proxy = [n for n in names if LOSSES[n].family == "proxy"]
    print(f"Step of {BATCH} x {DIM}, {torch.get_num_threads()} threads (medians)\n")
    rows = []
    columns = (
        "loss",
        "classes",
        "ours_ms",
        "pml_ms",
        "ours_over_products",
        "least_over_products",
        "pml_over_ours",
    )
    show([], columns)
    for n_classes in sizes:
        for name in names:
            if name in proxy or n_classes == sizes[0]:
                rows.append(time_loss(name, n_classes, seconds=seconds, rounds=rounds))
                show(rows[-1:], columns, header=False)
    print("\nThe plug-in (mu = 1) beside its host: on sets as large as it makes them, and alone\n")
    middle = sizes[min(1, len(sizes) - 1)]
    plugin = [time_synthesis(n, middle, seconds=seconds, rounds=rounds) for n in proxy]
    show(plugin, ("loss", "classes", "plugin_ms", "plugin_over_same_sizes", "plugin_over_host"))
    print(f"\nA training step of ResNet-18 with {IMAGES[0]} images of {IMAGES[2]} x {IMAGES[3]}\n")
    training = [time_training(n, seconds=seconds, rounds=rounds) for n in proxy]
    show(training, ("loss", "host_step_ms", "step_over_host_step"))
    print(f"\nPeak memory of a step at {sizes[-1]:,} classes, beyond inputs and parameters (MiB)\n")
    memory = []
    for name in proxy:
        ours_mib = peak_memory("ours", name, sizes[-1])
        other = theirs(name, 2) is not None
        pml_mib = peak_memory("pml", name, sizes[-1]) if other else None
        memory.append(
            {
                "loss": name,
                "classes": sizes[-1],
                "ours_mib": ours_mib,
                "pml_mib": pml_mib,
                "ours_over_pml": ours_mib / pml_mib if pml_mib else None,
            }
        )
    show(memory, ("loss", "classes", "ours_mib", "pml_mib", "ours_over_pml"))
    return summary(rows, plugin, training, memory)


def summary(
    rows: list[dict[str, Any]],
    plugin: list[dict[str, Any]],
    training: list[dict[str, Any]],
    memory: list[dict[str, Any]],
) -> dict[str, Any]:
    import pytorch_metric_learning

    speedups = [row["pml_over_ours"] for row in rows if row["pml_over_ours"]]
    large = [
        row["ours_over_products"]
        for row in rows
        if row["ours_over_products"] and row["classes"] >= 2_000
    ]
    least = [
        row["least_over_products"]
        for row in rows
        if row["least_over_products"] and row["classes"] >= 2_000
    ]
    shares = [row["ours_over_pml"] for row in memory if row["ours_over_pml"]]
    figures = {
        "geometric_mean_speedup_over_pml": statistics.geometric_mean(speedups) if speedups else 0,
        "least_speedup_over_pml": min(speedups, default=0),
        "largest_ours_over_products": max(large, default=0),
        "largest_least_over_products": max(least, default=0),
        "largest_memory_share_of_pml": max(shares, default=0),
        "largest_plugin_over_same_sizes": max(
            (row["plugin_over_same_sizes"] for row in plugin), default=0
        ),
        "largest_plugin_over_host": max((row["plugin_over_host"] for row in plugin), default=0),
        "largest_step_over_host_step": max(
            (row["step_over_host_step"] for row in training), default=0
        ),
    }
    print()
    for key, value in figures.items():
        print(f"{key.replace('_', ' ')}: {value:.3f}")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "cores": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "pytorch_metric_learning": pytorch_metric_learning.__version__,
        },
        "batch": BATCH,
        "dim": DIM,
        "figures": figures,
        "times": rows,
        "synthesis": plugin,
        "training": training,
        "memory": memory,
    }


if __name__ == "__main__":
    main()
