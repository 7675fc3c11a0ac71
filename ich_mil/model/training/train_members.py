"""Train an ensemble: several runs of one configuration, with different seeds and encoders, as one model.

In: a `RunConfig` with `members` above 1. Out, in `config.out`: `config.yaml`, and the files that
`ich_mil.model.training.ensemble` lists. Members are trained in sequence, and each resumes like a single run.
"""

import gc
from contextlib import ExitStack

import yaml

from ich_mil.config import RunConfig
from ich_mil.errors import IchMilError
from ich_mil.files import alone, copy_files, write_json, write_text
from ich_mil.model.folder import ENSEMBLE, read_run
from ich_mil.model.training.ensemble import finish
from ich_mil.model.training.resume import check_folder
from ich_mil.model.training.train import check_config, train
from ich_mil.progress import say
from ich_mil.ranks import these_ranks
from ich_mil.sets.features import read_feature_table
from ich_mil.sets.store import PreparedSet
from ich_mil.sets.views import Views


def train_ensemble(config: RunConfig, *, resume: bool) -> PreparedSet | None:
    """Train all members and calibrate their mixture; finished members of a resumed run are not trained again.

    Returns:
        The prepared external set, as returned by `ich_mil.model.training.train.train`.

    Raises:
        IchMilError: as in `train`, with the number of the member. Members finished before the error are kept.
    """
    ranks = these_ranks()
    runs = [config.member(number) for number in range(config.members)]
    for run in runs:
        check_config(run)
    for sets in ([run.train for run in runs], [run.external for run in runs]):
        if tables := [set_ for set_ in sets if set_ is not None and set_.layout == "features"]:
            views = [read_feature_table(table.path, table.columns) for table in tables]
            Views.of(views, [table.path for table in tables])
    external: PreparedSet | None = None
    with ExitStack() as held:
        with ranks.first_ahead():
            if ranks.first:
                held.enter_context(alone(config.out, doing="writing"))
            check_folder(config, resume or not ranks.first)
        finished = not ranks.first or (config.out / ENSEMBLE).is_file()
        for number, run in enumerate(runs):
            say(f"member {number} of {config.members}: {run.out}")
            try:
                external = train(run, resume=resume, external=external)
            except IchMilError as error:
                error.args = (f"member {number}: {error}",)  # keeps the class of the error
                raise
            gc.collect()  # the trainer holds gigabytes of pictures in reference cycles
            if number == 0 and not finished:
                _begin(config)
        if not finished:
            finish(config.out, runs)
    return external


def _begin(config: RunConfig) -> None:
    """Write the shared files of the ensemble, after its first member is trained."""
    first = config.member(0).out
    write_text(config.out / "config.yaml", yaml.safe_dump(config.as_dict(), sort_keys=False))
    copy_files(first, config.out, "splits.csv")
    shared = {"config": config.as_dict(), "config_hash": config.hash}
    names = [config.member(number).out.name for number in range(config.members)]
    write_json(config.out / "run.json", read_run(first) | shared | {"members": names})
