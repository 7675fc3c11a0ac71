"""Our heads under the rule of `tuning`: the kernel is chosen by the inner folds, or is that of the preset.

Held-out logits come from replicates of the fit without each inner fold (`fit_with_folds`), logits of bags by
the head's rule from the mean logits of their instances. The first seed serves for all: it only starts
k-means, and the AUC of five seeds differs by 0.0001 (`research/RESULTS.md`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import gpytorch

from ich_mil.gp.aggregation import scan_logit
from ich_mil.gp.fit_calibration import fit_with_folds
from ich_mil.gp.inference.inducing import place_points
from ich_mil.gp.inference.kernel_choice import BIAS, VARIANCE
from ich_mil.gp.predict import mean_logits
from ich_mil.gp.settings import HeadSettings
from ich_mil.sets.features import FeatureSet
from research.benchmarks.field.tuning import Method, Scored, calibrated, held_out_loss, inner_folds
from research.benchmarks.public_features import bags_of

LENGTHS = (0.25, 1.0, 4.0)
"""ℓ / D of the candidates beside the kernel of the preset, as in `ich_mil.gp.inference.kernel_choice`."""

MakeKernel = Callable[[int, HeadSettings], gpytorch.kernels.Kernel]
"""Kernel object of a number of features and the settings of a candidate."""


def head(settings: HeadSettings, *, choose: bool = True, make_kernel: MakeKernel | None = None) -> Method:
    """Method of a head; `choose` among four kernels, else that of the preset."""

    def method(train: FeatureSet, test: FeatureSet, seeds: Sequence[int]) -> list[Scored]:
        folds, bags, out = inner_folds(train), bags_of(train), bags_of(test)
        candidates = kernels(replace(settings, random_state=seeds[0]), train.x.shape[1])
        points = place_points(bags, candidates[0])
        fits = []
        for one in candidates if choose else candidates[:1]:
            kernel = None if make_kernel is None else make_kernel(train.x.shape[1], one)
            fitted = fit_with_folds(bags, one, points, folds, kernel=kernel)
            held = fitted.scores(one)
            fits.append((held_out_loss(held, train.labels), held, fitted.fitted[0]))
        _, held, model = min(fits, key=lambda fit: fit[0])
        slices = mean_logits([model], out)[0]
        scans = scan_logit(slices, out.offsets, settings.variant.rule)
        return [Scored(calibrated(held, train.labels, scans), slices)] * len(seeds)

    return method


def kernels(settings: HeadSettings, n_features: int) -> list[HeadSettings]:
    """Settings with each candidate kernel, that of the preset first."""
    preset = settings.variant
    cells = [(preset.variance, preset.bias, preset.length_per_feature)]
    cells += [(VARIANCE, BIAS, length) for length in LENGTHS]
    return [
        replace(settings, variance=v, bias=bias, lengthscale_squared=length * n_features)
        for v, bias, length in cells
    ]


DEFAULT = "VGPMIL"
"""Our default head: kernel of the preset on scans (as in runs), chosen by inner folds on other bags."""

FAMILIES = {
    "VGPMIL": HeadSettings(),
    "G-VGPMIL(1, 2.5)": HeadSettings(density="gamma"),
    "LM-VGPMIL": HeadSettings(family="large_margin"),
    "MIL-GP-Probit": HeadSettings(family="probit"),
}
"""Heads by name."""

ON_SCANS = {name: head(settings, choose=False) for name, settings in FAMILIES.items()} | {
    "VGPMIL, top 3": head(HeadSettings(rule="top_3"), choose=False),
    "VGPMIL, kernel chosen": head(HeadSettings()),
}
"""Methods for scans, by name."""

ON_BAGS = {name: head(settings) for name, settings in FAMILIES.items()}
"""Methods for other bags, by name."""
