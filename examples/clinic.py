"""Audit a k-nearest-neighbour model of a simulated clinic, and draw what was measured.

    python examples/clinic.py
    python examples/clinic.py --split-rate 0.4 --picture clinic.png

No MLflow run is needed: the model is given as a scikit-learn estimator.
"""

import argparse

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

import mlflow_b3 as b3


def draw(report: b3.AuditReport, truth: float, path: str) -> None:
    """Draw the loss by dose and the sensitivity curve side by side."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    blue, orange, grey = "#0072b2", "#d55e00", "0.45"
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    report.dose.plot(left)
    left.set_ylim(0, 0.5)
    left.set_title("Error rate by rows of the same patient in training")
    left.set_xlabel("other rows of the same patient in training")
    left.set_ylabel("error rate")
    left.legend(loc="upper right", fontsize=8)
    sense = report.sensitivity
    if report.claim.pattern == "fragments":
        sense = report.fragment_sensitivity
    rate = 100 * np.array(sense.error)
    right.fill_between(rate, sense.low, sense.high, color=blue, alpha=0.2, label="95% interval")
    right.plot(rate, sense.e0, color=blue, label="e0, error rate on new patients")
    right.axhline(truth, color=orange, linestyle="--", label="truth of this simulation")
    right.axhline(report.loco, color=grey, linestyle=":", label="score by noisy ids (LOCO)")
    if report.claim.range:
        right.axvline(100 * report.claim.range[0], color=grey, linewidth=0.8)
    right.set_xlim(0, 30 if sense.pattern == "rows" else 50)
    right.set_ylim(0.2, 0.7)
    right.set_title("Error rate on new patients by rate of wrong ids")
    right.set_xlabel(f"{'cluster error' if sense.pattern == 'rows' else 'split rate'} (%)")
    right.legend(loc="upper left", fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--split-rate", type=float, help="split patients instead of misplacing rows"
    )
    parser.add_argument("--cluster-error", type=float, default=0.1)
    parser.add_argument("--budget", default=None)
    parser.add_argument("--picture", help="write a picture to this file")
    options = parser.parse_args()
    rate = {"cluster_error": options.cluster_error}
    if options.split_rate is not None:
        rate = {"split_rate": options.split_rate}
    clinic = b3.make_clinic(seed=0, **rate)
    model = KNeighborsClassifier(5)
    report = b3.audit(
        model, clinic.frame, target="disease", cluster="patient_id", budget=options.budget, **rate
    )
    truth = clinic.truth(model)
    print(report)
    print(f"\nTruth (error rate on fresh patients): {truth:.3f}")
    if options.picture:
        draw(report, truth, options.picture)


if __name__ == "__main__":
    main()
