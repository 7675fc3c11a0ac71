"""Coverage of the 95 % intervals of the result tables, by simulation.

    python -m research.benchmarks.intervals [--samples 500] [--write]

Scans are simulated with normal scores, classes a given number of standard deviations apart, and calibrated
probabilities. Scans of one patient share a part of their noise. Each sample is evaluated as in a result
table; the true value of a metric is that of 400,000 scans. The coverage of plain percentile intervals of the
same resamples, without `proportion_interval` and `ece_interval`, is given for comparison.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ich_mil.evaluate.metrics import SCAN, measured, metrics_of
from ich_mil.evaluate.model_metrics import estimates
from research.benchmarks.record import command_line, record, table

RESAMPLES = 1000
SHARED = 0.6
"""Share of the noise variance that is common to the scans of one patient."""
WHOLE = 400_000


@dataclass(frozen=True)
class Setting:
    """Patients of a sample, scans of a patient, P(bleed), distance of the classes in standard deviations."""

    patients: int
    scans: int
    positive: float
    apart: float

    def draw(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw a sample with both classes: labels, probabilities and patients of its scans."""
        bleeds = np.zeros(self.patients, dtype=np.int64)
        while not 0 < bleeds.sum() < self.patients:
            bleeds = (generator.random(self.patients) < self.positive).astype(np.int64)
        owner = np.repeat(np.arange(self.patients), self.scans)
        common = SHARED if self.scans > 1 else 0.0
        noise = np.sqrt(common) * generator.normal(size=self.patients)[owner]
        noise += np.sqrt(1 - common) * generator.normal(size=len(owner))
        labels = bleeds[owner]
        prior = np.log(self.positive / (1 - self.positive))
        logit = self.apart * (self.apart * labels + noise - self.apart / 2) + prior
        return labels, 1 / (1 + np.exp(-logit)), owner.astype(str)


SETTINGS = (
    Setting(20, 1, 0.5, 2.0),
    Setting(20, 1, 0.5, 3.4),
    Setting(60, 1, 0.4, 2.0),
    Setting(60, 2, 0.4, 2.0),
    Setting(490, 1, 0.4, 2.0),
    Setting(490, 1, 0.03, 2.0),
)


def held(setting: Setting, *, samples: int, seed: int) -> dict[str, tuple[float, float, float]]:
    """True value of each metric, coverage of its interval, and coverage of its percentile interval."""
    generator, metrics = np.random.default_rng(seed), metrics_of(SCAN)
    truth = measured(metrics, *Setting(WHOLE, 1, setting.positive, setting.apart).draw(generator)[:2])
    hits: dict[str, list[tuple[bool, bool]]] = {metric: [] for metric in truth}
    for number in range(samples):
        labels, p, owner = setting.draw(generator)
        found = estimates(metrics, labels, [p], owner, resamples=RESAMPLES, seed=number)
        for metric, estimate in found.items():
            ends, plain, true = estimate.interval, estimate.percentiles, truth[metric]
            if ends is not None:
                hits[metric].append((ends.low <= true <= ends.high, plain.low <= true <= plain.high))
    return {metric: (truth[metric], *np.mean(pairs, axis=0)) for metric, pairs in hits.items() if pairs}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--samples", type=int, default=500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = [held(setting, samples=arguments.samples, seed=0) for setting in SETTINGS]
    head = ["metric"] + [
        f"{one.patients} patients of {one.scans}, {one.positive:.0%} positive, {one.apart:g} apart"
        for one in SETTINGS
    ]
    rows = [
        (metric, *("{:.3f}: {:.2f} ({:.2f})".format(*found[metric]) for found in columns))
        for metric in columns[0]
    ]
    text = (
        f"The truth, the share of {arguments.samples} samples whose interval held it, and in brackets that "
        f"of percentiles alone; {RESAMPLES:,} resamples.\n\n{table(head, rows)}"
    )
    record("Intervals: how often they hold the truth", text)


if __name__ == "__main__":
    main()
