"""False alarms of the likeness check and the drift alarm within a site, and alarm for another site.

    python -m research.benchmarks.headct.drift --networks checkpoints/headct_base [--write]

In: the run behind the bundled model, whose networks were not trained on CT-ICH scans; the public features of
one network for RSNA and CQ500. Out: the share of held-out CT-ICH scans called unlike by a check fitted to the
others; the alarm rate of the drift alarm for batches of one site, and its result for CQ500 against RSNA.
"""

from pathlib import Path

import numpy as np
from sklearn.model_selection import ShuffleSplit

from ich_mil.evaluate.deployment.drift import DriftAlarm, column_names, summarise
from ich_mil.evaluate.deployment.out_of_distribution import Likeness
from ich_mil.gp.head import Head
from ich_mil.sets.features import FeatureSet, read_features
from research.benchmarks.public_features import cq500, rsna
from research.benchmarks.record import command_line, record, table
from research.reproduce.statistics.drift_rates import BATCH, DRAWS, alarm_rates

SPLITS = 40
HELD = 18
"""Number of held-out scans per split, the size of part b of CT-ICH."""


def unlike_shares(features: FeatureSet) -> list[str]:
    """Share of held-out scans called unlike: mean and maximum over splits."""
    shares = []
    for learn, held in ShuffleSplit(SPLITS, test_size=HELD, random_state=0).split(features.scans):
        parts = [features.select([features.scans[b] for b in part]) for part in (learn, held)]
        check = Likeness.fit(parts[0], sources=["CT-ICH"] * parts[0].n_scans, seed=0)
        assert check is not None  # every scan is a separate patient
        shares.append(float((check.scores(parts[1]) > check.threshold).mean()))
    return [f"{np.mean(shares):.3f}", f"{max(shares):.3f}"]


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
    chosen = parser.parse_args()
    rows = []
    for folder in sorted(chosen.networks.glob("member_*")):
        every = read_features(folder / "features" / "train.safetensors")
        sizes = every.offsets.diff().tolist()
        scans = every.select([scan for scan, size in zip(every.scans, sizes, strict=True) if size > 1])
        name = f"CT-ICH, {folder.name}"
        rows.append([f"{name}: called unlike, of {HELD} held out, {SPLITS} times", *unlike_shares(scans)])
        rates = alarm_rates(
            scans.x.numpy(), scans.offsets.numpy(), scans.cnn_scan.numpy(), scans.patients, seed=0
        ).set_index("step")
        for step in (0.0, 0.25):
            row = rates.loc[step]
            interval = f"[{row.low:.3f}, {row.high:.3f}]"
            what = f"{name}: alarm for batches of {BATCH}, moved by {step:g} deviations, {DRAWS} times"
            rows.append([what, f"{row.share:.3f}", interval])
    rows.append(["CQ500 against RSNA, public features", *another_site()])
    record("Unlike the training, and drift", table(["what", "share", "largest, or 95 %"], rows))


if __name__ == "__main__":
    main()
