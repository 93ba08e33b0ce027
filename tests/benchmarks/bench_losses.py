"""Benchmark of a step of each loss: time and memory against matrix products and the library.

    python tests/benchmarks/bench_losses.py [--quick] [--losses NAME ...] [--out FILE]

One step is forward and backward of 180 x 512 embeddings. For every loss and number of classes, our
loss is timed in turns with the matrix products X P^T, G P and G^T X of its own proxies (all centres
of all classes), and then with the loss of pytorch-metric-learning, if it has one. The three are not
timed in one round, because only our loss would then run right after the one that allocates most.
The table shows medians of the ratios within a round, so that a slower machine affects both sides;
`least` is the ratio of the fastest steps, which other processes affect least. Peak memory is
measured in a new process.
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
from trainables.losses import LOSSES, build_loss, loss_params  # noqa: E402
from trainables.models.backbone import build_backbone  # noqa: E402
from trainables.models.embedding import pool_features  # noqa: E402

BATCH_SIZE, DIM = 180, 512
CLASS_COUNTS = (100, 11_318, 100_000)
QUICK_CLASS_COUNTS = (100, 2_000)
IMAGES_PER_CLASS = 4
IMAGE_BATCH_SHAPE = (60, 3, 64, 64)

Step = Callable[[], None]


def get_published_params(name: str, n_classes: int) -> dict[str, Any]:
    """Return the published point; SoftTriple has 2 centres where 10 give a million vectors."""
    known = loss_params(name)
    params = {k: v for k, v in get_space(name).published[0].values.items() if k in known}
    if "centers" in params and n_classes > 20_000:
        params["centers"] = 2
    return params


def build_own_loss(name: str, n_classes: int) -> nn.Module:
    return build_loss(name, n_classes=n_classes, dim=DIM, **get_published_params(name, n_classes))


def build_pml_loss(name: str, n_classes: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the loss of pytorch-metric-learning at the same point, or None if it has none."""
    from pytorch_metric_learning import losses, miners

    k = get_published_params(name, n_classes)
    hard_miner = miners.BatchHardMiner()
    similarity_miner = miners.MultiSimilarityMiner(epsilon=0.1)
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
        # Without its regulariser, whose (classes x centres)^2 mask does not fit into memory.
        "soft_triple": lambda: losses.SoftTripleLoss(
            n_classes,
            DIM,
            centers_per_class=k["centers"],
            la=k["lambda_"],
            gamma=k["gamma"],
            margin=k["delta"],
        ),
        "circle_pair": lambda: losses.CircleLoss(m=k["m"], gamma=k["gamma"]),
        "triplet": lambda: _add_miner(losses.TripletMarginLoss(margin=k["margin"]), hard_miner),
        "contrastive": lambda: losses.ContrastiveLoss(k["pos_margin"], k["margin"]),
        "multi_similarity": lambda: _add_miner(
            losses.MultiSimilarityLoss(k["alpha"], k["beta"], k["base"]), similarity_miner
        ),
        "margin": lambda: losses.MarginLoss(margin=k["margin"], beta=k["beta"]),
    }
    return builders[name]() if name in builders else None


def _add_miner(loss: Any, miner: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: loss(x, y, miner(x, y))


def make_batch(n_classes: int, size: int = BATCH_SIZE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(12)  # not the proxies' seed
    x = torch.randn(size, DIM, generator=generator).requires_grad_()
    classes = torch.randint(n_classes, (size // IMAGES_PER_CLASS,), generator=generator)
    return x, classes.repeat_interleave(IMAGES_PER_CLASS)


def make_step(loss: Any, x: Tensor, y: Tensor) -> Step:
    parameters = list(loss.parameters()) if isinstance(loss, nn.Module) else []

    def step() -> None:
        for tensor in (x, *parameters):
            tensor.grad = None
        loss(x, y).backward()

    return step


def make_products_step(x: Tensor, n_proxies: int) -> Step:
    p = torch.randn(n_proxies, x.shape[1], generator=torch.Generator().manual_seed(1))
    x = x.detach()

    def step() -> None:
        g = x @ p.T
        _ = g @ p
        _ = g.T @ x

    return step


def time_in_turns(steps: dict[str, Step], *, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each step per round; the steps take turns within a round."""
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


def compute_median_ratio(times: dict[str, list[float]], above: str, below: str) -> float | None:
    if above not in times or below not in times:
        return None
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def compute_fastest_ratio(times: dict[str, list[float]], above: str, below: str) -> float | None:
    """Return the ratio of the fastest steps, on which other processes have the least effect."""
    if above not in times or below not in times:
        return None
    return min(times[above]) / min(times[below])


def time_loss(name: str, n_classes: int, *, seconds: float, rounds: int) -> dict[str, Any]:
    x, y = make_batch(n_classes)
    loss = build_own_loss(name, n_classes)
    own_step = make_step(loss, x, y)
    proxies = getattr(loss, "proxies", None)
    products: dict[str, Step] = {}
    if isinstance(proxies, Tensor):
        products["products"] = make_products_step(x, proxies.numel() // DIM)
    timings = [time_in_turns({"ours": own_step} | products, seconds=seconds, rounds=rounds)]
    pml_loss = build_pml_loss(name, n_classes)
    if pml_loss is not None:
        pml_step = make_step(pml_loss, x.detach().clone().requires_grad_(), y)
        timings.append(
            time_in_turns({"ours": own_step, "pml": pml_step}, seconds=seconds, rounds=rounds)
        )
    medians = {side: statistics.median(t) for times in timings[::-1] for side, t in times.items()}
    return {
        "loss": name,
        "classes": n_classes,
        **{f"{side}_ms": value for side, value in medians.items()},
        "ours_over_products": compute_median_ratio(timings[0], "ours", "products"),
        "least_over_products": compute_fastest_ratio(timings[0], "ours", "products"),
        "pml_over_ours": compute_median_ratio(timings[-1], "pml", "ours"),
    }


def time_synthesis(name: str, n_classes: int, *, seconds: float, rounds: int) -> dict[str, Any]:
    """Compare the plug-in with its host loss on batches as large as the plug-in's (mu = 1)."""
    x, y = make_batch(n_classes)
    plugin = build_own_loss(f"{name}+synthesis", n_classes)
    x2, y2 = make_batch(n_classes + BATCH_SIZE, size=2 * BATCH_SIZE)
    larger = build_loss(
        name, n_classes=n_classes + BATCH_SIZE, dim=DIM, **get_published_params(name, n_classes)
    )
    steps = {
        "plugin": make_step(plugin, x, y),
        "same sizes": make_step(larger, x2, y2),
        "host": make_step(build_own_loss(name, n_classes), x, y),
    }
    times = time_in_turns(steps, seconds=seconds, rounds=rounds)
    return {
        "loss": f"{name}+synthesis",
        "classes": n_classes,
        "plugin_ms": statistics.median(times["plugin"]),
        "plugin_over_same_sizes": compute_median_ratio(times, "plugin", "same sizes"),
        "plugin_over_host": compute_median_ratio(times, "plugin", "host"),
    }


def time_training(name: str, *, seconds: float, rounds: int) -> dict[str, Any]:
    """Compare steps with images and a backbone, to which the plug-in adds no work."""
    images = torch.randn(*IMAGE_BATCH_SHAPE, generator=torch.Generator().manual_seed(3))
    y = make_batch(100, size=len(images))[1]
    backbone = build_backbone(
        "resnet18", in_channels=IMAGE_BATCH_SHAPE[1], image_size=IMAGE_BATCH_SHAPE[2]
    )

    def step_with(loss: nn.Module) -> Step:
        def step() -> None:
            backbone.zero_grad()
            loss.zero_grad()
            loss(pool_features(backbone(images), "avg"), y).backward()

        return step

    steps = {n: step_with(build_own_loss(n, 100)) for n in (f"{name}+synthesis", name)}
    times = time_in_turns(steps, seconds=seconds, rounds=rounds)
    return {
        "loss": f"{name}+synthesis",
        "host_step_ms": statistics.median(times[name]),
        "step_over_host_step": compute_median_ratio(times, f"{name}+synthesis", name),
    }


def measure_peak_in_process(side: str, name: str, n_classes: int) -> float:
    """Return the MiB that a step needs beyond inputs and parameters, in a new process."""
    command = [sys.executable, __file__, "--peak", side, name, str(n_classes)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return float(result.stdout.split()[-1])


def measure_peak(side: str, name: str, n_classes: int) -> float:
    x, y = make_batch(100)
    small = build_own_loss(name, 100) if side == "ours" else build_pml_loss(name, 100)
    make_step(small, x, y)()  # allocates libraries, thread pools and buffers
    loss = build_own_loss(name, n_classes) if side == "ours" else build_pml_loss(name, n_classes)
    step = make_step(loss, *make_batch(n_classes))
    # On Linux, writing 5 resets the peak of resident memory to the current value.
    Path("/proc/self/clear_refs").write_text("5")
    before = _read_status_kib("VmRSS")
    step()
    return (_read_status_kib("VmHWM") - before) / 1024


def _read_status_kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))


def print_table(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], *, header: bool = True
) -> None:
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
    parser.add_argument("--peak", nargs=3, metavar=("SIDE", "LOSS", "CLASSES"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        side, name, n_classes = options.peak
        print(measure_peak(side, name, int(n_classes)))
        return
    sizes = options.sizes or (QUICK_CLASS_COUNTS if options.quick else CLASS_COUNTS)
    seconds = options.seconds or (0.3 if options.quick else 4.0)
    rounds = 3 if options.quick else 5
    result = run_benchmark(options.losses, sizes, seconds=seconds, rounds=rounds)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwritten to {options.out}")


def run_benchmark(
    names: Sequence[str], sizes: Sequence[int], *, seconds: float, rounds: int
) -> dict[str, Any]:
    proxy = [n for n in names if LOSSES[n].family == "proxy"]
    print(f"Step of {BATCH_SIZE} x {DIM}, {torch.get_num_threads()} threads (medians)\n")
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
    print_table([], columns)
    for n_classes in sizes:
        for name in names:
            if name in proxy or n_classes == sizes[0]:
                rows.append(time_loss(name, n_classes, seconds=seconds, rounds=rounds))
                print_table(rows[-1:], columns, header=False)
    print("\nThe plug-in (mu = 1) against its host loss, on equally large batches and alone\n")
    middle = sizes[min(1, len(sizes) - 1)]
    plugin = [time_synthesis(n, middle, seconds=seconds, rounds=rounds) for n in proxy]
    print_table(
        plugin, ("loss", "classes", "plugin_ms", "plugin_over_same_sizes", "plugin_over_host")
    )
    n_images, _, height, width = IMAGE_BATCH_SHAPE
    print(f"\nA training step of ResNet-18 with {n_images} images of {height} x {width}\n")
    training = [time_training(n, seconds=seconds, rounds=rounds) for n in proxy]
    print_table(training, ("loss", "host_step_ms", "step_over_host_step"))
    print(f"\nPeak memory of a step at {sizes[-1]:,} classes, beyond inputs and parameters (MiB)\n")
    memory = []
    for name in proxy:
        ours_mib = measure_peak_in_process("ours", name, sizes[-1])
        has_pml_loss = build_pml_loss(name, 2) is not None
        pml_mib = measure_peak_in_process("pml", name, sizes[-1]) if has_pml_loss else None
        memory.append(
            {
                "loss": name,
                "classes": sizes[-1],
                "ours_mib": ours_mib,
                "pml_mib": pml_mib,
                "ours_over_pml": ours_mib / pml_mib if pml_mib else None,
            }
        )
    print_table(memory, ("loss", "classes", "ours_mib", "pml_mib", "ours_over_pml"))
    return summarise_results(rows, plugin, training, memory)


def summarise_results(
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
        "batch": BATCH_SIZE,
        "dim": DIM,
        "figures": figures,
        "times": rows,
        "synthesis": plugin,
        "training": training,
        "memory": memory,
    }


if __name__ == "__main__":
    main()
