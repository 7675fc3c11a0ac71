"""The field on the same bags, and context across slices: one table for each problem, the best first.

    python -m research.benchmarks.field --out $D [--only CT-ICH ...] [--methods ABMIL ...] [--write]

In: public features, MUSK and tiger in ../shared/data; a finished run of configs/headct_base.yaml. Out: tables
of scan AUC, log-loss, slice AUC and seconds. Scores are kept in `$D`; a second call completes them.
"""

from pathlib import Path

import torch

from research.benchmarks.field.context import ON_HEADS
from research.benchmarks.field.heads import DEFAULT, ON_BAGS, ON_SCANS
from research.benchmarks.field.measure import Estimate, Scores, estimates, kept_scores
from research.benchmarks.field.networks import CONTEXT, NETWORKS, ORDERED
from research.benchmarks.field.pooled import POOLED
from research.benchmarks.field.problems import PROBLEMS, Problem
from research.benchmarks.field.tuning import Method
from research.benchmarks.record import command_line, record, table

COLUMNS = {
    "auc": "AUC",
    "gain": "AUC less ours",
    "log_loss": "log-loss",
    "difference": "log-loss less ours",
    "calibration_slope": "slope",
    "slices": "AUC of instances",
    "inside": "inside positive bags",
}
"""Titles of the columns of a table."""


def methods_of(name: str) -> dict[str, Method]:
    """Methods that a problem can be given to, by name."""
    if name in ("MUSK1", "MUSK2", "tiger"):
        return ON_BAGS | POOLED | NETWORKS
    return ON_SCANS | POOLED | NETWORKS | (ORDERED | CONTEXT | ON_HEADS if name == "CT-ICH" else {})


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


def cell(estimate: Estimate | None) -> str:
    """A value with its interval, or a dash."""
    if estimate is None:
        return "–"
    value, ends = estimate
    return f"{value:.3f} [{ends.low:.3f}, {ends.high:.3f}]"


def section(problem: Problem, scores: dict[str, Scores], scans: list[str]) -> str:
    """Table of the methods, by log-loss."""
    found = estimates(problem.test, scores, DEFAULT, scans)
    known = [key for key in COLUMNS if any(key in own for own in found.values())]
    rows = []
    for name in sorted(found, key=lambda name: found[name]["log_loss"][0]):
        rows.append([name, *(cell(found[name].get(key)) for key in known), f"{scores[name].seconds:.1f}"])
    seeds = len(scores[DEFAULT].bags)
    head = [f"mean of {seeds} seeds, {len(scans)} bags", *(COLUMNS[key] for key in known), "s"]
    return table(head, rows)


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
            record(title, section(problem, scores, scans))


if __name__ == "__main__":
    main()
