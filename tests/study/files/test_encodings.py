"""Every encoding that occurs is read to the HU that were written."""

import numpy as np
import pytest

from ich_mil.study.files.header import read_headers
from ich_mil.study.pixels.read import read_slice
from tests.study.encodings import Case, cases

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_seed_is_read_rightly(tmp_path, case: Case):
    path = tmp_path / "seed.dcm"
    path.write_bytes(case.content)
    headers = read_headers(path)
    assert len(headers) == len(case.hu)
    for header, expected in zip(headers, case.hu, strict=True):
        hu, _ = read_slice(header)
        np.testing.assert_allclose(hu.astype(float), expected, rtol=0, atol=case.tolerance)
