"""What one search of nearest neighbours for all refits saves, and that it changes no number.

Each audit is made twice: with the shared search, and with refits that search alone. Times are those of
the processor, the smaller of two audits each; the losses of all rows are compared.

    python benchmarks/nearest_neighbours.py
"""

import time
from unittest.mock import patch

import numpy as np
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlflow_b3 import audit, make_clinic
from mlflow_b3.refit import neighbours


def table(patients, columns):
    """Return a clinic with so many columns of noise beside its own five."""
    frame = make_clinic(patients=patients, records=10, cluster_error=0.1, seed=4).frame
    rng = np.random.default_rng(0)
    return frame.assign(**{f"z{n}": rng.standard_normal(len(frame)) for n in range(columns)})


def timed(learner, frame):
    times = []
    for _ in range(2):
        started = time.process_time()
        report = audit(
            learner,
            frame,
            target="disease",
            cluster="patient_id",
            cluster_error=0.1,
            n_jobs=1,
            progress=False,
        )
        times.append(time.process_time() - started)
    return min(times), report


def main():
    print("rows | features | learner | refits | shared, s | alone, s | ratio | largest change")
    for patients, columns in ((200, 0), (2000, 0), (2000, 10)):
        frame = table(patients, columns)
        for name, learner in (
            ("k-NN", KNeighborsClassifier()),
            ("scaler and k-NN", make_pipeline(StandardScaler(), KNeighborsClassifier())),
        ):
            shared, report = timed(learner, frame)
            with patch.object(neighbours, "can_share_search", lambda _: False):
                alone, plain = timed(learner, frame)
            change = max(
                float(np.abs(one - other).max())
                for one, other in zip(
                    report.measurements.row_losses, plain.measurements.row_losses, strict=True
                )
            )
            print(
                f"{len(frame)} | {columns + 5} | {name} | {report.measured.fits} | {shared:.2f} | "
                f"{alone:.2f} | {alone / shared:.1f} | {max(change, abs(report.e0 - plain.e0)):.1g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
