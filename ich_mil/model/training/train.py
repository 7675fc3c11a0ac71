"""Train a model: prepare data, train the CNN, extract features, fit the Gaussian-process head.

In: a `RunConfig`. Out, in `config.out`:

    config.yaml            the whole configuration
    splits.csv             scan, patient, label, split, content
    run.json               format, configuration and its hash, library versions at the start
    cnn/                   Lightning checkpoints and log.csv
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

import gpytorch
import pandas as pd
import torch
import yaml

from ich_mil import __version__
from ich_mil.config import RunConfig
from ich_mil.errors import ConfigError, DataError, check_installed, named
from ich_mil.evaluate.baselines import CNN_SIGMOID, CnnSigmoid
from ich_mil.evaluate.deployment.out_of_distribution import Likeness
from ich_mil.families import FAMILIES
from ich_mil.files import alone, digest, write_json, write_text
from ich_mil.gp.fit_calibration import FOLDS
from ich_mil.gp.inference.folds import folds_of
from ich_mil.gp.sparse_gp import check_kernel, make_kernel
from ich_mil.model.folder import RUN_FORMAT, read_run, run_folder
from ich_mil.model.site.drift import write_reference
from ich_mil.model.storage import learned_table, load_model
from ich_mil.model.training.resume import check_folder
from ich_mil.model.training.training_sets import (
    has_single_slices,
    head_scans,
    in_slices,
    learned_by,
    learned_for,
    open_training,
    prepare_set,
    prepare_training,
    set_names,
    slice_labels_digest,
    trained_on,
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
from ich_mil.sets.extras import Extras
from ich_mil.sets.feature_files import contents
from ich_mil.sets.features import FeatureSet, read_feature_table, read_unseen_table
from ich_mil.sets.labels import name_some
from ich_mil.sets.splits import (
    check_current,
    check_same,
    check_splits,
    check_unseen,
    draw_splits,
    learned_from,
    load_splits,
    network_learned,
    read_splits,
    splits_before,
    with_inherited,
    write_splits,
)
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
    start = None if config.start is None else _start_network(config.start, config.seed)
    if start is not None:
        encoder = replace(start.encoder_settings, freeze=config.encoder.freeze)
        config = replace(config, encoder=encoder, cnn=start.settings)
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
            splits, external = _start(config, scans, extras, features, external)
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
    if config.split.file is None:
        _check_stopping(config, bool(config.split.validation))
    if config.train.layout != "features" and not (config.out / "cnn.json").is_file():
        check_installed("lightning", "train", "training a network")
        AttentionCnn(config.encoder, config.cnn)  # fails here rather than after a long preparation
    config.check_paths()


def _check_stopping(config: RunConfig, validation: bool) -> None:
    if config.train.layout != "features" and not validation:
        raise ConfigError("split: a CNN needs validation scans for early stopping; set split.validation")


def _start(
    config: RunConfig,
    scans: pd.DataFrame,
    extras: Extras,
    features: FeatureSet | None,
    external: PreparedSet | None,
) -> tuple[pd.DataFrame, PreparedSet | None]:
    """Split the scans and write the first files of the run; a resumed run keeps its split.

    Returns the split, and the prepared external set as returned by `train`. `splits.csv` also names the scans
    that the networks to start from have learned.
    """
    path = config.out / "splits.csv"
    # pictures need no digest: changed files are prepared again. Slice labels do: they are not in `splits.csv`
    table = slice_labels_digest(config) if features is None else digest(*contents(config.train.path))
    table += extras.digest
    if path.is_file() and (config.out / "run.json").is_file():
        if read_run(config.out)["table"] != table:
            what = f"{config.prepared}: a label of a slice" if features is None else f"{config.train.path}:"
            raise DataError(f"{what} has changed since {config.out} began; start a new run")
        splits = load_splits(path)
        check_current(splits, scans, str(path))
        if config.split.file is not None:
            check_same(splits, read_splits(config.split.file, scans), str(config.split.file))
        return splits, external
    before = None if config.start is None else learned_table(run_folder(config.start))
    splits = _divide(config, scans.assign(learn=learned_by(scans.index, config)), before)
    learned = with_inherited(splits, [] if before is None else [before])
    external = _check_external(config, learned, features, external)
    write_text(config.out / "config.yaml", yaml.safe_dump(config.as_dict(), sort_keys=False))
    versions = {"ich_mil": __version__, "torch": str(torch.__version__), "gpytorch": gpytorch.__version__}
    about = {
        "format": RUN_FORMAT,
        "cnn": config.train.layout != "features",
        "table": table,
        "config_hash": config.hash,
        "config": config.as_dict(),
        "trained_on": trained_on(config, splits),
        "versions": versions,
    }
    write_json(config.out / "run.json", about)
    write_splits(learned, path)
    return splits, external


def _divide(config: RunConfig, scans: pd.DataFrame, before: pd.DataFrame | None) -> pd.DataFrame:
    """Split the scans by `split.file` or at random, and check that the head can be calibrated.

    `before` is the `splits.csv` of the networks to start from: what they were trained on is not held out.
    """
    file = config.split.file
    kept = {}
    if before is not None:
        held = before[before.split == "test"] if config.split.test else before[:0]
        kept = splits_before(scans, pd.concat([network_learned(before), held]))
    if file is not None:
        splits = read_splits(file, scans, kept=kept)
        _check_stopping(config, bool((splits.split == "validation").any()))
        if rest := sorted(set(scans.index) - set(splits.scan)):
            say(f"{file}: {len(rest)} scans are in no split and are not used: {name_some(rest)}")
    else:
        shares = {"validation": config.split.validation, "test": config.split.test}
        with named(config.train.path):
            splits = draw_splits(scans, **shares, seed=config.seed, kept=kept)
        if kept:
            check_splits(splits, f"{config.start}: scans that its networks learned are not held out")
    if not (splits.split == "validation").any() and config.head.calibration != "none":
        learn = splits[splits.split == "train"]
        labels = torch.tensor(learn.label.tolist())
        with named(config.train.path):  # raises before anything is written if calibration is impossible
            folds_of(labels, learn.patient.tolist(), folds=FOLDS, seed=config.head.random_state)
    return splits


def _check_external(
    config: RunConfig, splits: pd.DataFrame, features: FeatureSet | None, prepared: PreparedSet | None
) -> PreparedSet | None:
    """Prepare the external set of pictures; `DataError` if the run trains on one of its patients."""
    one, learned = config.external, learned_from(splits)
    if one is None:
        return None
    if features is not None:
        unseen = read_unseen_table(one.path, one.columns, width=features.x.shape[1], learned=learned)
        one.extras.read(unseen.scans)
        return None
    prepared = prepared or prepare_set(one, "external", config, jobs=config.workers)
    check_unseen(prepared.scans, learned, str(one.path))
    one.extras.read(prepared.scans.index, prepared)
    return prepared


def _start_network(run: Path, seed: int) -> AttentionCnn:
    """Load the network to start from; for an ensemble, member `seed` modulo the number of members."""
    model = load_model(run)
    model.check_input(pictures=True)
    network = model.members[seed % len(model.members)].cnn
    assert network is not None  # checked by `check_input`
    return network


def _cnn_features(
    config: RunConfig, prepared: PreparedSet, splits: pd.DataFrame, ranks: Ranks, start: AttentionCnn | None
) -> FeatureSet:
    """Train and freeze the CNN, and compute the features of all scans of the split."""
    without = learned_for(config, "boxes")
    if (config.out / "cnn.json").is_file():
        model = load_cnn(config.out)
    else:
        from ich_mil.network.training.fit_cnn import fit_cnn  # needs the extra `train`

        model = fit_cnn(
            prepared,
            splits[~splits.scan.isin(learned_for(config, "heads", "boxes"))],
            config.out / "cnn",
            encoder=config.encoder,
            cnn=config.cnn,
            training=config.training,
            seed=config.seed,
            in_slices=in_slices(config),
            start=start,
        )
        if ranks.first:
            save_cnn(model, config.out)
    if ranks.first and not (config.out / LOCATION).is_file() and (boxes := training_boxes(config)):
        learned = splits.scan[splits.split == "train"]
        Location.fit(model.to(device()), prepared, learned, boxes).save(config.out)
    return stored_features(
        config.out / "features" / "train.safetensors",
        model.to(device()),
        prepared,
        splits.scan[~splits.scan.isin(without)].tolist(),
        workers=config.training.workers,
    )


def fit_head(features: FeatureSet, splits: pd.DataFrame, config: RunConfig, ranks: Ranks) -> None:
    """Fit, calibrate and save the head, with the CNN's sigmoid, likeness check and drift reference.

    Scans of `in_slices` enter the fit as single slices. `head_scans` selects the scans of the fit and of the
    calibration. Only rank 0 fits.
    """
    if not ranks.first:
        return
    scans = head_scans(features, splits, config)
    watch = None if scans.watch is None else features.select(scans.watch)
    whole = features.select(scans.learn)
    learn = whole.as_slices(in_slices(config, features))
    family = FAMILIES[config.head.family].head()
    with named(config.train.path):
        head = family.fit(learn, config.head, config.own, watch=watch, mixed=has_single_slices(config))
    calibrates = watch or whole
    if sigmoid := CnnSigmoid.fit(calibrates.cnn_scan, calibrates.labels):
        sigmoid.save(config.out / CNN_SIGMOID)
    sources = set_names(whole.scans, config)
    if likeness := Likeness.fit(whole, sources=sources, seed=config.head.random_state):
        likeness.save(config.out)
    if unseen := unseen_by_network(features, splits, config):
        write_reference(features.select(unseen), config.out)
    write_json(config.out / "head_fit.json", asdict(head.report_))
    head.save(config.out)
    say(f"head: {head.report_.message}")
