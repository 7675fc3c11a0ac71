"""Moments over independent samples against numpy on explicit samples, and against integrals."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from ich_mil.kernels.bag_samples import bag_samples
from ich_mil.kernels.counter import normals, scan_key

POINTS, WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def case(sizes, replicates=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = replicates, sum(sizes)
    mu = -1 + 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    sigma = 0.2 + torch.rand(shape, generator=generator, dtype=torch.float64)
    keys = torch.tensor([scan_key(f"scan {b}") for b in range(len(sizes))])
    return mu, sigma, torch.tensor([0, *sizes]).cumsum(0), keys


def by_numpy(mu, sigma, offsets, keys, *, samples, seed, rule):
    """All results from f (L, n) of one scan after the other, in 80-bit numbers."""
    found = []
    for b, (start, end) in enumerate(pairwise(offsets.tolist())):
        z = normals(seed, int(keys[b]), end - start, samples=samples).numpy().astype(np.longdouble)
        for r in range(len(mu)):
            f = mu[r, start:end].numpy() + sigma[r, start:end].numpy() * z
            p, q = 1 / (1 + np.exp(-f)), 1 / (1 + np.exp(f))
            none = q.min(1) if rule == "max" else q.prod(1)
            scan, logit = 1 - none, np.log1p(-none) - np.log(none)
            found.append((r, b, p.mean(0), p.var(0), scan.mean(), scan.var(), logit))
    rows = [[one for one in found if one[0] == r] for r in range(len(mu))]
    slices = [np.stack([np.concatenate([one[k] for one in row]) for row in rows]) for k in (2, 3)]
    scans = [np.array([[one[k] for one in row] for row in rows]) for k in (4, 5)]
    return *slices, *scans, np.stack([np.stack([one[6] for one in row], 1) for row in rows])


def error(got, expected):
    """Largest difference, relative to the expected value or to 1 where that is less."""
    return [
        float((np.abs(a.cpu().numpy() - b) / np.maximum(np.abs(b), 1)).max())
        for a, b in zip(got, expected, strict=True)
    ]


RULES = ["noisy_or", "max"]
SHAPES = [([1], 1, 1), ([2], 1, 2), ([4, 1, 3], 1, 7), ([2, 1], 2, 130)]
"""Sizes of the bags, replicates and samples; 130 samples are two parts."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("sizes", "replicates", "samples"), [*SHAPES, ([400, 1, 30], 1, 1000), ([1000], 1, 6)]
)
def test_the_definition_equals_numpy(sizes, replicates, samples, rule):
    given, how = case(sizes, replicates), {"samples": samples, "seed": 3, "rule": rule}
    got = bag_samples(*given, **how)
    assert [tuple(part.shape[:1]) for part in got] == [(replicates,)] * 5
    assert max(error(got, by_numpy(*given, **how))) < 1e-13


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("sizes", "replicates", "samples"), SHAPES)
def test_the_kernel_is_as_exact_as_the_definition(
    sizes, replicates, samples, rule, kernel_device, nan_memory, monkeypatch
):
    monkeypatch.setattr("ich_mil.kernels.triton.bag_samples.COLUMNS", 8)  # several programs join parts
    given, how = case(sizes, replicates), {"samples": samples, "seed": 2**63 + 3, "rule": rule}
    expected = by_numpy(*given, **how)
    by_torch = error(bag_samples(*given, **how, impl="torch"), expected)
    got = bag_samples(*(part.to(kernel_device) for part in given), **how, impl="triton")
    # the floor is 8 ulp: exp, log, sin and cos of another library, and z up to 6 of them
    for of_kernel, of_torch in zip(error(got, expected), by_torch, strict=True):
        assert of_kernel <= 2 * of_torch + 8 * 2.0**-52


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("rule", RULES)
def test_saturated_slices_keep_their_digits(rule, impl, kernel_device):
    mu = torch.tensor([[1e4, -1e4, 0.0, -1e4, -40.0, -700.0]], dtype=torch.float64)
    sigma = torch.tensor([[3.0, 3.0, 0.0, 5.0, 0.0, 0.0]], dtype=torch.float64)
    offsets = torch.tensor([0, 1, 2, 3, 4, 6])
    given = (part.to(kernel_device) for part in (mu, sigma, offsets, torch.arange(5)))
    got = [part.cpu() for part in bag_samples(*given, samples=5, seed=1, rule=rule, impl=impl)]
    slice_mean, slice_variance, scan_mean, scan_variance, logit = got
    assert all(bool(part.isfinite().all()) for part in got)
    assert slice_mean[0, :4].tolist() == [1, 0, 0.5, 0]
    assert slice_variance[0, :4].tolist() == [0, 0, 0, 0]
    assert scan_mean[0, :4].tolist()[::2] == [1, 0.5]
    # noisy-or keeps a logit above log 1e-300 = -690
    assert scan_mean[0, [1, 3]].tolist() == pytest.approx([0, 0], abs=1e-290)
    assert scan_variance[0, :4].tolist() == pytest.approx([0, 0, 0, 0], abs=1e-290)
    assert float(slice_mean[0, 4]) == pytest.approx(np.exp(-40), rel=1e-14, abs=0)
    assert logit[0, :, 4].tolist() == pytest.approx([-40] * 5, rel=1e-14)
    # the logit of a scan of one slice is that slice's
    above = mu[0, 0] + sigma[0, 0] * normals(1, 0, 1, samples=5)[:, 0]
    torch.testing.assert_close(logit[0, :, 0], above, rtol=1e-14, atol=0)
    assert bool((logit[0, :, 2] == 0).all())
    assert min(float(slice_variance.min()), float(scan_variance.min())) >= 0


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_variances_do_not_cancel_next_to_1(impl, kernel_device):
    mu, sigma = torch.full((1, 2), 20.0, dtype=torch.float64), torch.full((1, 2), 0.5, dtype=torch.float64)
    given = (part.to(kernel_device) for part in (mu, sigma, torch.tensor([0, 1, 2]), torch.arange(2)))
    got = bag_samples(*given, samples=130, seed=1, impl=impl)
    for b in range(2):
        f = 20 + 0.5 * normals(1, b, 1, samples=130)[:, 0].numpy()
        # 1 - p is some 2e-9 and varies by half of it; p has steps of 1e-16, so its variance has 7 digits
        expected = (1 / (1 + np.exp(f))).var()
        assert 1e-20 < expected < 1e-17
        assert float(got.slice_variance[0, b]) == pytest.approx(expected, rel=1e-6, abs=0)
        assert float(got.scan_variance[0, b]) == pytest.approx(expected, rel=1e-6, abs=0)


def test_no_mean_of_probabilities_is_above_1(kernel_device):
    # seeds for which four reciprocals from one, each rounded, give a first sample above 1
    mu = torch.tensor([[20.0]]).double()
    given = [part.to(kernel_device) for part in (mu, mu, torch.tensor([0, 1]), torch.tensor([0]))]
    for seed in (46, 570, 809, 981, 1224):
        mean = float(bag_samples(*given, samples=1, seed=seed, impl="triton").slice_mean)
        assert 1 - 2e-16 < mean <= 1  # Triton 3.6 interprets a fused product and sum as two roundings


def test_the_product_over_many_slices_neither_overflows_nor_forgets(kernel_device, interpreted, monkeypatch):
    most = 9 if interpreted else 1000  # interpreted, a slice takes a tenth of a second
    if interpreted:
        monkeypatch.setattr("ich_mil.kernels.triton.bag_samples.MOST", most)
    n = 2 * most + 3  # three products, each of numbers close to 2
    mu, sigma = torch.linspace(-1e-3, 1e-3, n).double()[None], torch.zeros(1, n).double()
    given = [part.to(kernel_device) for part in (mu, sigma, torch.tensor([0, n]), torch.tensor([7]))]
    got = bag_samples(*given, samples=2, seed=0, impl="triton")
    s = np.logaddexp(0, mu[0].numpy()).sum()
    assert got.scan_logit.flatten().tolist() == pytest.approx([s + np.log1p(-np.exp(-s))] * 2, rel=1e-13)


def test_moments_are_the_integrals_to_four_standard_errors():
    mu, sigma, offsets, keys = case([3, 7, 1, 20], seed=4)
    samples = 20_000
    got = bag_samples(mu, sigma, offsets, keys, samples=samples, seed=1)
    p = 1 / (1 + np.exp(-(mu[0].numpy()[:, None] + sigma[0].numpy()[:, None] * POINTS)))
    mean, square = p @ WEIGHTS, p**2 @ WEIGHTS
    assert (np.abs(got.slice_mean[0].numpy() - mean) / np.sqrt((square - mean**2) / samples)).max() < 4
    np.testing.assert_allclose(got.slice_variance[0], square - mean**2, rtol=0.05)
    # slices are independent: E Π(1 - p) is the product of the means, and so is that of the squares
    for b, (start, end) in enumerate(pairwise(offsets.tolist())):
        none, squares = (1 - p[start:end]) @ WEIGHTS, (1 - p[start:end]) ** 2 @ WEIGHTS
        variance = squares.prod() - none.prod() ** 2
        assert abs(float(got.scan_mean[0, b]) - (1 - none.prod())) < 4 * np.sqrt(variance / samples)
        assert float(got.scan_variance[0, b]) == pytest.approx(variance, rel=0.06)


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_a_scan_is_the_same_to_the_bit_in_any_batch(impl, kernel_device):
    how = {"samples": 5, "seed": 2, "impl": impl}
    mu, sigma, offsets, keys = (part.to(kernel_device) for part in case([2, 1, 1]))
    whole = bag_samples(mu, sigma, offsets, keys, **how)
    order, rows = [2, 0], [3, 0, 1]
    part = bag_samples(mu[:, rows], sigma[:, rows], torch.tensor([0, 1, 3]), keys[order], **how)
    assert torch.equal(part.slice_mean, whole.slice_mean[:, rows])
    assert torch.equal(part.slice_variance, whole.slice_variance[:, rows])
    for a, b in zip(part[2:], whole[2:], strict=True):
        assert torch.equal(a, b[..., order])
    # a change in one scan changes that scan alone
    changed = mu.clone()
    changed[:, 2] += 1
    other = bag_samples(changed, sigma, offsets, keys, **how)
    assert (other.scan_mean == whole.scan_mean).tolist() == [[True, False, True]]
    assert (other.slice_mean == whole.slice_mean).tolist() == [[True, True, False, True]]


def test_seed_and_key_change_all_samples():
    mu, sigma, offsets, keys = case([4, 4])
    means = [
        bag_samples(mu, sigma, offsets, some, samples=20, seed=seed).slice_mean
        for some, seed in ((keys, 0), (keys, 1), (keys.flip(0), 0))
    ]
    assert bool((means[0] != means[1]).all())
    assert bool((means[0] != means[2]).all())


@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_replicates_share_the_noise_and_strides_do_not_matter(impl, kernel_device):
    mu, sigma, offsets, keys = (part.to(kernel_device) for part in case([2, 1]))
    alone = bag_samples(mu, sigma, offsets, keys, samples=6, seed=2, impl=impl)
    both, wide = torch.stack([mu[0], mu[0] + 1, mu[0]], 1).mT, sigma.expand(3, -1)
    assert not both.is_contiguous()
    assert not wide.is_contiguous()
    offsets, keys = (torch.stack([one, one], 1)[:, 0] for one in (offsets, keys))
    got = bag_samples(both, wide, offsets, keys, samples=6, seed=2, impl=impl)
    for a, b in zip(got, alone, strict=True):
        assert [torch.equal(part, b[0]) for part in a] == [True, False, True]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"offsets": [0, 2, 2, 9]}, "bag 1"),
        ({"samples": 0}, "sample"),
        ({"rule": "top_3"}, "rule"),
        ({"offsets": [0, 3, 4, 8]}, r"\(R, 8\)"),  # a slice that no bag has
        ({"offsets": [0, 3, 4, 12]}, r"\(R, 12\)"),
        ({"sigma": lambda sigma: sigma[:1]}, r"\(R, 9\)"),
        ({"keys": lambda keys: keys[:2]}, r"\(3,\)"),
        ({"mu": lambda mu: mu.float()}, "float64"),
    ],
)
def test_invalid_input_is_refused_by_both_implementations(wrong, says):
    given = dict(zip(("mu", "sigma", "offsets", "keys"), case([3, 1, 5], replicates=2), strict=True))
    given |= {"samples": 5, "seed": 0}
    for name, value in wrong.items():
        given[name] = value(given[name]) if callable(value) else value
    given["offsets"] = torch.as_tensor(given["offsets"])
    for impl in ("torch", "triton"):
        with pytest.raises(ValueError, match=says):
            bag_samples(**given, impl=impl)


@pytest.mark.slow
def test_opcheck(kernel_device):
    from ich_mil.kernels.triton.bag_samples import sample

    given = [part.to(kernel_device) for part in case([2, 1], replicates=2)]
    torch.library.opcheck(sample, (*given, 5, 1, True))
