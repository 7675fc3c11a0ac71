"""The field on the same bags: one table for each problem, the best first.

    python -m research.benchmarks.field --out $D [--only CT-ICH ...] [--methods ABMIL ...] [--write]

In: public features, MUSK and tiger in ../shared/data; a finished run of configs/headct_base.yaml. Out: tables
of scan AUC, log-loss, slice AUC and seconds. Scores are kept in `$D`; a second call completes them.
"""

from pathlib import Path

import torch

from research.benchmarks.field.heads import DEFAULT, ON_BAGS, ON_SCANS
from research.benchmarks.field.measure import Estimate, Scores, estimates, kept_scores
from research.benchmarks.field.networks import NETWORKS, ORDERED
from research.benchmarks.field.pooled import POOLED
from research.benchmarks.field.primary import PRIMARY
from research.benchmarks.field.problems import PROBLEMS, Problem
from research.benchmarks.field.tuning import Method
from research.benchmarks.record import command_line, record, table

COLUMNS = {
    "scan auc": "AUC",
    "scan auc_less": "AUC less {base}",
    "scan log_loss": "log-loss",
    "scan log_loss_less": "log-loss less {base}",
    "scan calibration_slope": "slope",
    "slice auc": "AUC of instances",
    "inside auc": "inside positive bags",
    "inside auc_less": "inside less {base}",
}
"""Titles of the columns of a table."""


def methods_of(name: str) -> dict[str, Method]:
    """Methods that a problem can be given to, by name."""
    if name in ("MUSK1", "MUSK2", "tiger"):
        return ON_BAGS | PRIMARY | POOLED | NETWORKS
    return ON_SCANS | PRIMARY | POOLED | NETWORKS | (ORDERED if name == "CT-ICH" else {})


def targets(name: str, problem: Problem) -> dict[str, list[str]]:
    """Scans of each table of a problem, by title."""
    scans = problem.test.scans
    if name != "RSNA-1000":
        return {name: scans}
    away = [scan for scan in scans if scan.startswith("CQ500")]
    return {
        "RSNA-1000 to RSNA-150": [scan for scan in scans if scan not in {*away}],
        "RSNA-1000 to CQ500": away,
    }


def cell(estimate: Estimate) -> str:
    """A value with its interval."""
    value, ends = estimate
    return f"{value:.3f} [{ends.low:.3f}, {ends.high:.3f}]"


def section(problem: Problem, scores: dict[str, Scores], scans: list[str], base: str) -> str:
    """Table of the methods and their differences to `base`, by log-loss."""
    found = estimates(problem.test, scores, base, scans)
    known = [key for key in COLUMNS if key in found[base]]
    rows = []
    for name in sorted(found, key=lambda name: found[name]["scan log_loss"][0]):
        rows.append([name, *(cell(found[name][key]) for key in known), f"{scores[name].seconds:.1f}"])
    head = [f"mean of {len(scores[base].bags)} seeds, {len(scans)} bags"]
    return table([*head, *(COLUMNS[key].format(base=base) for key in known), "s"], rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the scores")
    parser.add_argument("--only", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all of the problem")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.only:
        problem, scores = PROBLEMS[name](), {}
        for title, method in methods_of(name).items():
            if chosen.methods is None or title in (*chosen.methods, DEFAULT):
                path = chosen.out / name / f"{title}.npz"
                scores[title] = kept_scores(path, problem, method, chosen.seeds)
                print(f"{name}: {title}, {scores[title].seconds:.1f} s", flush=True)
        for title, scans in targets(name, problem).items():
            record(title, section(problem, scores, scans, DEFAULT))


if __name__ == "__main__":
    main()
