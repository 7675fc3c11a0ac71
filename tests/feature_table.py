"""A small public feature table, as CSV."""

import numpy as np
import pandas as pd

from ich_mil.files import write_text


def write_features(path, n_scans, seed):
    """A public feature table: up to three slices of a positive scan are shifted, and labelled so."""
    generator = np.random.default_rng(seed)
    rows = []
    for b in range(n_scans):
        for n in range(generator.integers(2, 8)):
            x = generator.normal(size=3) + (2.0 if b % 2 and n < 3 else 0.0)
            one = {f"feature_{i}": value for i, value in enumerate(x)}
            one |= {"bag_label": b % 2, "instance_label": int(b % 2 and n < 3)}
            rows.append(one | {"bag_name": f"s{seed}-{b}", "instance_name": f"s{seed}-{b}-{n}"})
    write_text(path, pd.DataFrame(rows).to_csv(index=False))


def name_patients(path, name):
    """A column `patient` into a table: `name` of the number b of each scan."""
    table = pd.read_csv(path)
    write_text(
        path,
        table.assign(patient=table.bag_name.str.split("-").str[1].map(int).map(name)).to_csv(index=False),
    )
