"""Rate of the likeness check on sources left out, and of the drift alarm within a site and for another.

    python -m research.benchmarks.headct.drift --networks checkpoints/headct_base [--write]

In: the run behind the bundled model; the public features of one network for RSNA and CQ500. Out: the share of
scans of each source called unlike by a check fitted to the other sources; the alarm rate of the drift alarm
for batches of the first source, and its result for CQ500 against RSNA.
"""

from pathlib import Path

import numpy as np
from sklearn.model_selection import ShuffleSplit

from ich_mil.config import read_config
from ich_mil.evaluate.deployment.drift import DriftAlarm, column_names, summarise
from ich_mil.evaluate.deployment.out_of_distribution import Likeness
from ich_mil.gp.head import Head
from ich_mil.model.training.training_sets import set_names
from ich_mil.sets.features import FeatureSet, read_features
from research.benchmarks.public_features import cq500, rsna
from research.benchmarks.record import command_line, record, table
from research.reproduce.statistics.drift_rates import BATCH, DRAWS, alarm_rates


def left_out(features: FeatureSet, sources: dict[str, list[str]]) -> list[list[str]]:
    """For each source: share of its scans unlike the others, and quantiles of their unlikeness."""
    source_of = {scan: name for name, scans in sources.items() for scan in scans}
    rows = []
    for source, scans in sources.items():
        learn = features.select([scan for scan in features.scans if source_of[scan] != source])
        check = Likeness.fit(learn, sources=[source_of[scan] for scan in learn.scans], seed=0)
        if check is None:  # the others are single slices
            continue
        unlikeness = check.scores(features.select(scans)) / check.threshold
        low, middle, high = np.quantile(unlikeness, [0.05, 0.5, 0.95])
        what = f"{source}, left out: unlike, of {len(scans)}; 5, 50 and 95 % of the unlikeness"
        rows.append([what, f"{(unlikeness > 1).mean():.3f}", f"{low:.2f}, {middle:.2f}, {high:.2f}"])
    return rows


def another_site() -> list[str]:
    """Drift alarm for CQ500, with the half of the RSNA scans not used to fit the head as reference."""
    home, away = rsna(), cq500()
    learn, held = next(ShuffleSplit(1, test_size=0.5, random_state=0).split(home.scans))
    fitted, reference = (home.select([home.scans[b] for b in part]) for part in (learn, held))
    head = Head().fit(fitted.x, fitted.offsets, fitted.labels, groups=fitted.patients)
    scores = [np.asarray(head.predict_bag_proba(one.x, one.offsets)) for one in (reference, away)]
    names = column_names(home.x.shape[1])
    known, new = (summarise(one.x.numpy(), one.offsets.numpy()) for one in (reference, away))
    alarm = DriftAlarm.fit(known, scores[0], reference.patients, names=names, seed=0)
    found = alarm.test(new, scores[1], away.patients)
    says = "rings" if found.alarm else "silent"
    return [f"{says}: p = {found.p_features:.3f} of features, {found.p_scores:.3f} of scores", ""]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--networks", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path("configs/headct_base.yaml"))
    chosen, rest = parser.parse_known_args()
    config = read_config(["--config", str(chosen.config), *rest])
    rows = []
    for folder in sorted(chosen.networks.glob("member_*")):
        every = read_features(folder / "features" / "train.safetensors")
        sources: dict[str, list[str]] = {}
        for scan, name in zip(every.scans, set_names(every.scans, config), strict=True):
            sources.setdefault(config.training_sets[name].name, []).append(scan)
        first = next(iter(sources))
        rows += [[f"{folder.name}: {row[0]}", *row[1:]] for row in left_out(every, sources)]
        scans, name = every.select(sources[first]), f"{first}, {folder.name}"
        rates = alarm_rates(
            scans.x.numpy(), scans.offsets.numpy(), scans.cnn_scan.numpy(), scans.patients, seed=0
        ).set_index("step")
        for step in (0.0, 0.25):
            row = rates.loc[step]
            interval = f"[{row.low:.3f}, {row.high:.3f}]"
            what = f"{name}: alarm for batches of {BATCH}, moved by {step:g} deviations, {DRAWS} times"
            rows.append([what, f"{row.share:.3f}", interval])
    rows.append(["CQ500 against RSNA, public features", *another_site()])
    record("Unlike the training, and drift", table(["what", "share", "interval, or unlikeness"], rows))


if __name__ == "__main__":
    main()
