"""Train a model: prepare data, train the CNN, extract features, fit the Gaussian-process head.

In: a `RunConfig`. Out, in `config.out`:

    config.yaml            the whole configuration
    splits.csv             scan, patient, label, split, learn, content
    run.json               format, configuration and its hash, library versions at the start
    cnn/                   Lightning checkpoints and log.csv
    without_0/ ...         networks that did not learn a set (`cross_fit`); with sets of `learn: sources`
    cnn.safetensors/.json  the frozen CNN
    location.safetensors   location of bleeds within slices; with boxes
    features/train.safetensors   features of all labelled scans
    head.safetensors/.json the Gaussian process with its calibration
    cnn_sigmoid.json       calibration of the CNN's own probability in result tables
    likeness.safetensors   check of the likeness of new scans to the training scans; not for too few scans
    reference.safetensors  reference scans of the drift test; not for too few held-out scans
    head_fit.json          bound and validation loss of each sweep

Before the data are read and split, only a lock file is written; the lock excludes other runs. With `resume`,
a step whose file exists is skipped, and the CNN continues from its last epoch.

Under `torchrun`, all ranks train the CNN and extract features; rank 0 alone prepares data, fits the head and
writes files. All ranks must see the same folders.
"""

from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import torch

from ich_mil.config import RunConfig
from ich_mil.errors import check_installed, named
from ich_mil.evaluate.baselines import CNN_SIGMOID, CnnSigmoid
from ich_mil.evaluate.deployment.out_of_distribution import Likeness
from ich_mil.families import FAMILIES
from ich_mil.files import alone, write_json
from ich_mil.gp.fit_calibration import calibrating
from ich_mil.gp.sparse_gp import check_kernel, make_kernel
from ich_mil.model.model import Member
from ich_mil.model.site.drift import write_reference
from ich_mil.model.storage import load_model
from ich_mil.model.training.begin import begin_run, check_stopping
from ich_mil.model.training.cross_fit import cross_fit, networks_without
from ich_mil.model.training.resume import check_folder
from ich_mil.model.training.training_sets import (
    has_single_slices,
    head_scans,
    head_slices,
    in_slices,
    keeps_networks,
    open_training,
    prepare_training,
    set_names,
    training_boxes,
    training_extras,
    unseen_by_network,
)
from ich_mil.network.attention_cnn import AttentionCnn
from ich_mil.network.frozen import load_cnn, save_cnn, stored_features
from ich_mil.network.location import LOCATION, Location
from ich_mil.network.training.loggers import check_logger
from ich_mil.progress import say
from ich_mil.ranks import Ranks, device, these_ranks
from ich_mil.sets.features import FeatureSet, read_feature_table
from ich_mil.sets.store import PreparedSet


def train(config: RunConfig, *, resume: bool, external: PreparedSet | None = None) -> PreparedSet | None:
    """Prepare data, train the CNN, extract features, fit and calibrate the head.

    Args:
        config: configuration of the run.
        resume: continue the run in `config.out`; without it that folder must not hold a run.
        external: the external set of pictures, if it is prepared already.

    Returns:
        The prepared external set; None where there is none, or where a resumed run has checked it before.

    Raises:
        ConfigError: the folder holds a run (with `resume`: of other settings), or a kernel cannot be used.
        DataError: data that cannot be used, or a folder that another process is writing.
        ModelError: a CNN that cannot be built.
    """
    ranks = these_ranks()
    start = None if config.start is None else _start_member(config.start, config.seed)
    if start is not None and start.cnn is not None:
        encoder = replace(start.cnn.encoder_settings, freeze=config.encoder.freeze)
        config = replace(config, encoder=encoder, cnn=start.cnn.settings)
    check_config(config)
    features = None
    if config.train.layout == "features":
        features = read_feature_table(config.train.path, config.train.columns)
    width = config.cnn.features if features is None else features.x.shape[1]
    check_kernel(make_kernel(config.head, width), torch.zeros(2, width, dtype=torch.float64))
    with ExitStack() as held:
        with ranks.first_ahead():
            if ranks.first:
                held.enter_context(alone(config.out, doing="writing"))
            check_folder(config, resume or not ranks.first)
            if features is None:
                prepared = (
                    prepare_training(config, jobs=config.workers) if ranks.first else open_training(config)
                )
            scans = prepared.scans if features is None else features.table
            extras = training_extras(config, scans.index)
            splits, external = begin_run(config, scans, extras, features, external)
        if features is None:
            features = _cnn_features(config, prepared, splits, ranks, start)
        features = replace(features, extras=extras)
        if not (config.out / "head.json").is_file():
            fit_head(features, splits, config, ranks)
    return external


def check_config(config: RunConfig) -> None:
    """Check the sets and the network before any work is done.

    Raises:
        ConfigError: features and pictures mixed, `out` within a set, no validation scans for a CNN, or
            Lightning or the logger is not installed.
        DataError: a set that does not exist.
        ModelError: a CNN that cannot be built.
    """
    check_logger(config.training.logger)
    if config.split.file is None and config.start is None:  # else when the scans are known
        check_stopping(config, bool(config.split.validation))
    if config.train.layout != "features" and not (config.out / "cnn.json").is_file():
        if config.start is None:  # else its networks may be kept
            check_installed("lightning", "train", "training a network")
        AttentionCnn(config.encoder, config.cnn)  # fails here rather than after a long preparation
    config.check_paths()


def _start_member(run: Path, seed: int) -> Member:
    """Load the member to start from, of an ensemble member `seed` modulo their number; it has a network."""
    model = load_model(run)
    model.check_input(pictures=True)
    return model.members[seed % len(model.members)]


def _cnn_features(
    config: RunConfig, prepared: PreparedSet, splits: pd.DataFrame, ranks: Ranks, start: Member | None
) -> FeatureSet:
    """Train and freeze the CNN, or keep that of `start`, and compute the features of all scans."""
    if (config.out / "cnn.json").is_file():
        model = load_cnn(config.out)
    # a resumed run keeps them too where no scan of its split trains a network, whatever was added since
    elif (
        start is not None
        and start.cnn is not None
        and (keeps_networks(config, prepared.scans.index) or not (splits.learn == "all").any())
    ):
        say(
            f"network {config.encoder.name} of {config.encoder.size} pixels: kept as in {config.start}; "
            f"a head alone is fitted to {len(splits)} scans; encoder.freeze: all, or a number, trains more"
        )
        model = start.cnn
        if ranks.first:
            if start.location is not None:
                start.location.save(config.out)
            save_cnn(model, config.out)
    else:
        check_installed("lightning", "train", "training a network")
        from ich_mil.network.training.fit_cnn import fit_cnn

        model = fit_cnn(
            prepared,
            splits[splits.learn == "all"],
            config.out / "cnn",
            encoder=config.encoder,
            cnn=config.cnn,
            training=config.training,
            seed=config.seed,
            in_slices=in_slices(config),
            start=None if start is None else start.cnn,
        )
        if (splits.learn == "sources").any():
            model = cross_fit(model, prepared, splits, config)
        if ranks.first:
            save_cnn(model, config.out)
    if ranks.first and not (config.out / LOCATION).is_file() and (boxes := training_boxes(config)):
        learned = splits.scan[splits.split == "train"]
        Location.fit(model.to(device()), prepared, learned, boxes).save(config.out)
    return stored_features(
        config.out / "features" / "train.safetensors",
        model.to(device()),
        prepared,
        splits.scan[splits.learn != "boxes"].tolist(),
        workers=config.training.workers,
        held=[(network.to(device()), own) for network, own in networks_without(splits, config)],
    )


def fit_head(features: FeatureSet, splits: pd.DataFrame, config: RunConfig, ranks: Ranks) -> None:
    """Fit, calibrate and save the head, with the CNN's sigmoid, likeness check and drift reference.

    `head_slices` enter the fit as single slices. `head_scans` selects the scans of the fit and of the
    calibration. Only rank 0 fits.
    """
    if not ranks.first:
        return
    scans = head_scans(features, splits, config)
    watch = None if scans.watch is None else features.select(scans.watch)
    whole = features.select(scans.learn)
    learn = whole.as_slices(head_slices(config, features))
    family = FAMILIES[config.head.family].head()
    mixed = has_single_slices(config)
    with named(config.train.path):
        head = family.fit(learn, config.head, config.own, watch=watch, mixed=mixed)
    held = watch or whole
    used = calibrating(held.offsets, held.labels) if mixed else slice(None)
    if sigmoid := CnnSigmoid.fit(held.cnn_scan[used], held.labels[used]):
        sigmoid.save(config.out / CNN_SIGMOID)
    sources = set_names(whole.scans, config)
    if likeness := Likeness.fit(whole, sources=sources, seed=config.head.random_state):
        likeness.save(config.out)
    if unseen := unseen_by_network(features, splits, config):
        write_reference(features.select(unseen), config.out)
    write_json(config.out / "head_fit.json", asdict(head.report_))
    head.save(config.out)
    say(f"head: {head.report_.message}")
