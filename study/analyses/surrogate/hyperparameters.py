"""Which hyperparameters of the process do the trials support, and how surely?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

from study.analyses.encoding import Cliff, Encoding
from study.analyses.kernel import SMOOTHNESSES, Smoothness, with_slope
from study.analyses.samples import Array, Samples
from study.analyses.warp import Standard

JITTER = 1e-8


@dataclass(frozen=True)
class Fitted:
    """Hyperparameters: a shape, logs of lengths, ratios and four variances, perhaps a cliff.

    There is one length per group of inputs for what it does alone. What inputs do together has
    lengths of its own, so that a knob can matter alone and not together with others; a ratio says
    how much longer each is.
    """

    theta: Array
    smoothness: Smoothness
    cliff: Cliff | None = None

    @property
    def groups(self) -> int:
        """How many lengths there are."""
        return (len(self.theta) - 4) // 2

    @property
    def lengths(self) -> Array:
        """One per group, of the one-dimensional terms."""
        return np.asarray(np.exp(self.theta[: self.groups]))

    @property
    def joint_lengths(self) -> Array:
        """One per group, of the term over all inputs."""
        ratios = self.theta[self.groups : 2 * self.groups]
        return np.asarray(np.exp(self.theta[: self.groups] + ratios))

    @property
    def alone(self) -> float:
        """Variance of each one-dimensional term."""
        return float(np.exp(self.theta[-4])) / self.groups

    @property
    def joint(self) -> float:
        """Variance of the term over all inputs."""
        return float(np.exp(self.theta[-3]))

    @property
    def trial(self) -> float:
        """Variance that a seed gives to all epochs of a trial."""
        return float(np.exp(self.theta[-2]))

    @property
    def noise(self) -> float:
        """Variance left at an epoch."""
        return float(np.exp(self.theta[-1]))


class Evidence:
    """Negative log posterior of the hyperparameters and its gradient, on at most `most` rows."""

    def __init__(
        self,
        samples: Samples,
        standard: Standard,
        *,
        smoothness: Smoothness = "smooth",
        cliff: Cliff | None = None,
        most: int = 180,
        seed: int = 0,
    ) -> None:
        self.rows = _thin(samples, most, seed)
        self.smoothness, self.cliff = smoothness, cliff
        encoding = Encoding.of(samples.distributions, cliff)
        inputs = encoding(self.rows.units, self.rows.epochs, samples.full_epochs)
        self.y, self.groups = standard.latent(self.rows.scores), encoding.groups
        n, g = len(self.y), encoding.groups
        # Covariances are symmetric: half of each matrix, as a row, is enough.
        self.half = np.tril_indices(n)
        row, column = self.half
        squares = np.zeros((g, len(row)))
        for k, group in enumerate(encoding.group_of):
            gap = inputs[row, k] - inputs[column, k]
            squares[group] += gap * gap
        self.squares = squares
        self.diagonal = row == column
        self.same = (self.rows.trial[row] == self.rows.trial[column]).astype(np.float64)
        # With one row per trial the two noises are one: the seed's is kept at nothing.
        self.paired = bool(self.same.sum() > n)
        # Lengths near the width of the cube, longer where there are more knobs to tell apart.
        d = encoding.knobs
        side = [] if cliff is None else [np.log(0.7)]
        knobs = np.full(d, np.log(0.6) + 0.25 * np.log(max(d, 1)))
        ratios = [*np.full(d, 0.3), 1.0, *(0.3 for _ in side)]
        self.prior_mean = np.array([*knobs, np.log(0.8), *side, *ratios, 0.0, -0.7, -3.5, -4.0])
        lengths_sd = [*np.full(d, 1.1), 0.8, *(0.7 for _ in side)]
        self.prior_sd = np.array([*lengths_sd, *np.full(g, 1.0), 1.2, 1.5, 1.5, 1.7])
        seeds = np.log([1e-7, np.e if self.paired else 1e-7])
        self.bounds = np.array(
            [np.log([0.03, 30.0])] * g
            + [np.array([-1.5, 5.0])] * g
            + [np.log([1e-4, 50.0])] * 2
            + [seeds, np.log([1e-6, np.e])]
        )

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient, up to a constant."""
        n, g = len(self.y), self.groups
        alone, joint, trial, noise = np.exp(theta[2 * g :])
        scaled = self.squares * np.exp(-2.0 * theta[:g])[:, None]
        together = scaled * np.exp(-2.0 * theta[g : 2 * g])[:, None]
        each, each_slope = with_slope(scaled, self.smoothness)
        shape, shape_slope = with_slope(together.sum(axis=0), self.smoothness)
        terms = each.mean(axis=0)
        half = alone * terms + joint * shape + trial * self.same + 1.0
        half[self.diagonal] += noise + JITTER
        covariance = np.zeros((n, n))
        covariance[self.half] = half
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        alpha = cho_solve((factor, True), self.y, check_finite=False)
        value = 0.5 * self.y @ alpha + np.log(np.diag(factor)).sum()
        inverse = dpotri(factor, lower=1)[0][self.half]
        weight = inverse - alpha[self.half[0]] * alpha[self.half[1]]
        # An entry off the diagonal stands for two.
        weight[self.diagonal] *= 0.5
        gradient = np.empty_like(theta)
        gradient[g : 2 * g] = joint * (together @ (shape_slope * weight))
        gradient[:g] = (alone / g) * ((each_slope * scaled) @ weight) + gradient[g : 2 * g]
        gradient[-4] = alone * float(weight @ terms)
        gradient[-3] = joint * float(weight @ shape)
        gradient[-2] = trial * float(weight @ self.same) if self.paired else 0.0
        gradient[-1] = noise * float(weight[self.diagonal].sum())
        pull = (theta - self.prior_mean) / self.prior_sd
        return float(value + 0.5 * pull @ pull), gradient + pull / self.prior_sd

    def maximise(self, start: Array, steps: int) -> tuple[float, Array]:
        """Lowest value and where it is, from one start."""
        start = np.clip(start, self.bounds[:, 0], self.bounds[:, 1])
        found = minimize(
            self, start, jac=True, method="L-BFGS-B", bounds=self.bounds, options={"maxiter": steps}
        )
        return float(found.fun), np.asarray(found.x)

    def with_shape(self, smoothness: Smoothness) -> Evidence:
        """The same rows, another smoothness."""
        other = object.__new__(Evidence)
        other.__dict__.update(self.__dict__, smoothness=smoothness)
        return other


def best_shape(evidence: Evidence, starts: Sequence[Array], *, steps: int) -> tuple[float, Fitted]:
    """The smoothness and hyperparameters of highest posterior; the first shape from all starts."""
    order: tuple[Smoothness, ...] = ("smooth", *(s for s in SMOOTHNESSES if s != "smooth"))
    found: list[tuple[float, Fitted]] = []
    for smoothness in order:
        shaped = evidence.with_shape(smoothness)
        first = [found[0][1].theta] if found else starts
        tries = [shaped.maximise(s, steps if not found else steps // 2) for s in first]
        value, theta = min(tries, key=lambda t: t[0])
        found.append((value, Fitted(theta, smoothness, evidence.cliff)))
    best = min(found, key=lambda f: f[0])[1]
    value, theta = evidence.with_shape(best.smoothness).maximise(best.theta, steps)
    return value, replace(best, theta=theta)


def plausible(
    samples: Samples, standard: Standard, fitted: Fitted, *, count: int, seed: int, most: int = 180
) -> list[Fitted]:
    """Hyperparameters drawn from their posterior, by Laplace's approximation at the best ones.

    A draw where the posterior falls faster than the approximation says is pulled back.
    """
    evidence = Evidence(
        samples, standard, smoothness=fitted.smoothness, cliff=fitted.cliff, most=most, seed=seed
    )
    lowest, centre = evidence(fitted.theta)[0], fitted.theta
    size, step = len(centre), 0.1
    hessian = np.empty((size, size))
    for i in range(size):
        shift = np.eye(size)[i] * step
        hessian[i] = (evidence(centre + shift)[1] - evidence(centre - shift)[1]) / (2 * step)
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    # No direction is less certain than the prior left it.
    spread = vectors / np.sqrt(np.maximum(values, 1.0 / evidence.prior_sd.max() ** 2))
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        z = rng.standard_normal(size)
        for _ in range(4):
            theta = np.clip(centre + spread @ z, evidence.bounds[:, 0], evidence.bounds[:, 1])
            if evidence(theta)[0] - lowest <= 0.5 * float(z @ z) + 2.0:
                break
            z = 0.6 * z
        out.append(replace(fitted, theta=theta))
    return out


def _thin(samples: Samples, most: int, seed: int) -> Samples:
    """At most `most` rows: last ones before early ones, and of Sobol and repeated points first.

    A search crowds where the score is high and flat; lengths learned there alone would be taken
    for those of the whole space, and bands would be far too sure of it. Repeated seeds tell noise
    from roughness, which few scattered points cannot. Early epochs say least about the knobs.
    """
    if len(samples) <= most:
        return samples
    last = samples.rows(samples.last)
    repeated = np.bincount(last.point, minlength=int(samples.point.max()) + 1) > 1
    wanted = samples.blind | repeated[samples.point]
    rng = np.random.default_rng(seed)
    turn = rng.permutation(int(samples.trial.max()) + 1)[samples.trial]
    order = np.lexsort((turn, ~wanted, ~samples.last))
    return samples.rows(np.sort(order[:most]))
