"""Cross-fitting by source: networks that also learn the scans of a head, and features of others that did not.

A head fitted to features of scans that their network has learned is overconfident on scans of other
hospitals. So the network is trained further several times from the same weights: without the scans of each
set of `learn: sources`, which give their features to the head; and with all scans, as the network of the
model. The training is short, so that the features of these networks agree.

Out, in `config.out`: `without_0`, ... with the network that did not learn the first, ... of these sets, and
`with_all` with checkpoints alone.
"""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from ich_mil.config import RunConfig
from ich_mil.errors import DataError
from ich_mil.model.training.training_sets import in_slices, set_names
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.frozen import load_cnn, save_cnn
from ich_mil.progress import say
from ich_mil.ranks import these_ranks
from ich_mil.sets.labels import name_some
from ich_mil.sets.store import PreparedSet

EPOCHS = 2
RATE = 1 / 3
"""Learning rate, as a share of `training.learning_rate`."""


def cross_fit(
    first: AttentionCnn, prepared: PreparedSet, splits: pd.DataFrame, config: RunConfig
) -> AttentionCnn:
    """Train `first` further on the sets of `learn: sources`, beside the scans that it has learned.

    `splits` has the columns scan, patient, label, split, learn.

    Returns:
        The network that learned all scans; the others are saved.

    Raises:
        ConfigError, ModelError: as in `fit_cnn`.
    """
    from ich_mil.network.training.fit_cnn import fit_cnn  # imports Lightning

    before = splits[splits.learn == "all"]
    own = _crossed(splits).assign(split="train")
    training = replace(
        config.training, learning_rate=config.training.learning_rate * RATE, max_epochs=EPOCHS, patience=None
    )
    for folder, scans in [*_sources(splits, config), (config.out / "with_all", [])]:
        if (folder / "cnn.json").is_file():
            continue
        learned = own[~own.patient.isin(own.patient[own.scan.isin(scans)])]
        say(f"{folder.name}: the network learns {len(learned)} of {len(own)} scans too")
        network = fit_cnn(
            prepared,
            pd.concat([before, learned]),
            folder,
            encoder=config.encoder,
            cnn=config.cnn,
            training=training,
            seed=config.seed,
            in_slices=in_slices(config),
            start=first,
        )
        if scans and these_ranks().first:
            save_cnn(network, folder)
    return network


def check_patients(splits: pd.DataFrame) -> None:
    """Raise `DataError` if a patient is in sets of `learn: sources` and of `learn: all`."""
    if shared := sorted({*_crossed(splits).patient} & {*splits.patient[splits.learn == "all"]}):
        raise DataError(
            f"patients of a set of learn: sources are in a set of learn: all too: {len(shared)}, "
            f"{name_some(shared)}; take them out of one"
        )


def networks_without(splits: pd.DataFrame, config: RunConfig) -> list[tuple[AttentionCnn, list[str]]]:
    """The saved networks of `cross_fit`, each with the scans of the set that it did not learn."""
    folders = _sources(splits, config)
    return [(load_cnn(folder), scans) for folder, scans in folders if (folder / "cnn.json").is_file()]


def _crossed(splits: pd.DataFrame) -> pd.DataFrame:
    return splits[(splits.learn == "sources") & (splits.split != "test")]


def _sources(splits: pd.DataFrame, config: RunConfig) -> list[tuple[Path, list[str]]]:
    """Folder of the network that does not learn a set of `learn: sources`, and the scans of the set."""
    own = _crossed(splits).scan
    if not len(own):
        return []
    groups = own.groupby(set_names(own.tolist(), config))
    return [(config.out / f"without_{n}", scans.tolist()) for n, (_, scans) in enumerate(groups)]
