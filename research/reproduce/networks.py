"""Scan metrics of each network of a set, and of the average of their scan probabilities.

In: scan scores of every model with the features of each network. Out: `networks.csv` and one report section
for each scored set.

Shapes: B scans.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ich_mil.evaluate.metrics import SCAN
from ich_mil.evaluate.scores import Scores
from ich_mil.files import write_csv
from ich_mil.sets.features import FeatureSet
from research.reproduce.page import Section
from research.reproduce.protocol import BenchmarkSet, ProtocolConfig
from research.reproduce.scoring import Model
from research.reproduce.tables import metrics_over_seeds, wide

Networks = Mapping[tuple[str, int], tuple[FeatureSet, list[Scores]]]
"""Scans and scores with each network, by scored set and width."""


def network_sections(
    one: BenchmarkSet, runs: Mapping[Model, Networks], folder: Path, config: ProtocolConfig
) -> Iterator[Section]:
    """Generate the sections, and write `networks.csv`: each network, and the average as network `average`."""
    parts = []
    for model, networks in runs.items():
        for (scored, width), (bags, scores) in networks.items():
            probabilities = [score.scan for score in scores if score.scan is not None]
            if len(probabilities) < len(one.cnn_seeds):
                continue
            named = zip(
                (*map(str, one.cnn_seeds), "average"),
                (*probabilities, np.mean(probabilities, 0)),
                strict=True,
            )
            for network, p in named:
                rows = metrics_over_seeds(
                    [Scores(model.title, p, None)], bags, seed=config.seeds[0], resamples=config.resamples
                )
                parts.append(
                    rows[rows.level == SCAN].assign(
                        scored=scored,
                        width=width,
                        network=network,
                        model=model.name,
                        n_inducing=model.n_inducing,
                    )
                )
    table = pd.concat(parts, ignore_index=True)
    write_csv(folder / "networks.csv", table)
    for place, rows in table.groupby(["scored", "width"], sort=False):
        parts = []
        for name, own in rows.groupby("network", sort=False):
            parts.append(wide(own))
            parts[-1].insert(0, "network", name)
        yield Section(
            "Each network and their average on {}, D={}".format(*place),
            "Scan probabilities with one network's features, and the mean of these probabilities; 95 % "
            "intervals by patient.",
            pd.concat(parts, ignore_index=True),
        )
