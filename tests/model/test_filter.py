"""Filter of slice probabilities along z."""

import math
from dataclasses import fields, replace

import numpy as np
import torch

from ich_mil.gp.bags import Bags
from ich_mil.gp.fit import fit
from ich_mil.gp.settings import HeadSettings
from ich_mil.heads.gaussian_process import GaussianProcessHead
from ich_mil.model.model import Member, TrainedModel, filtered
from ich_mil.sets.features import FeatureSet
from ich_mil.sets.views import Views
from tests.gp.synthetic import scans


def test_weights_of_the_filter_by_hand():
    p = torch.tensor([[0.2, 0.8, 0.5], [0.0, 1.0, 0.0]], dtype=torch.float64)
    near, far, farther = math.exp(-0.5), math.exp(-2.0), math.exp(-4.5)  # 5, 10 and 15 mm
    W = np.array([[1, near, farther], [near, 1, far], [farther, far, 1]])
    expected = p.numpy() @ (W / W.sum(1, keepdims=True)).T
    z = torch.tensor([-7.0, -2.0, 8.0])
    np.testing.assert_allclose(filtered(p, z), expected, rtol=1e-6)
    np.testing.assert_allclose(filtered(p, z + 300), expected, rtol=1e-5)  # from any origin
    np.testing.assert_allclose(filtered(p[:, [2, 0, 1]], z[[2, 0, 1]]), expected[:, [2, 0, 1]], rtol=1e-6)
    assert torch.equal(filtered(p[:, :1], z[:1]), p[:, :1])


def test_unknown_positions_leave_probabilities_as_they_are():
    p = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(filtered(p, torch.tensor([0.0, 5.0, math.nan])), p)


def test_a_model_filters_where_positions_are_known(tmp_path):
    x, offsets, labels = scans(6)
    head, _ = fit(Bags(x, offsets, labels), HeadSettings(n_inducing=6, sweeps=3))
    n, names = len(x), [f"s{b}" for b in range(6)]
    unknown = torch.full((n,), math.nan)
    z = 3.0 * torch.arange(n, dtype=torch.float64)
    features = FeatureSet(
        scans=names,
        patients=names,
        x=x.float(),
        offsets=offsets,
        labels=labels,
        slice_names=[str(i) for i in range(n)],
        slice_labels=torch.full((n,), -1),
        positions=unknown,
        cnn_scan=torch.full((6,), math.nan),
        cnn_slice=unknown,
        attention=unknown,
    )
    member = Member(tmp_path, None, GaussianProcessHead(head), None, 0, None)
    values = dict.fromkeys(field.name for field in fields(TrainedModel)) | {
        "members": (member,),
        "samples": 50,
    }
    model = TrainedModel(**values)
    plain, with_z = (model.predict(Views.of([one])) for one in (features, replace(features, positions_mm=z)))
    assert torch.equal(plain.scan_mean, with_z.scan_mean)
    pairs = zip(
        plain.slice_mean.split(offsets.diff().tolist()), z.split(offsets.diff().tolist()), strict=True
    )
    expected = torch.cat([filtered(p[None], own)[0] for p, own in pairs])
    torch.testing.assert_close(with_z.slice_mean, expected, rtol=1e-10, atol=0)
    assert not torch.allclose(expected, plain.slice_mean)
