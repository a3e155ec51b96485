"""What the tests of flavours share: a small table, and a way to log, audit and compare."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from stores import *  # noqa: F403 - fixtures

from mlflow_b3 import AuditReport, audit
from mlflow_b3.refit.learner import AuditedModel, Learner, Rows

N, CLUSTERS = 120, 20


@dataclass(frozen=True)
class Table:
    """Features, targets of every kind, and clusters of six rows."""

    X: pd.DataFrame
    binary: Any
    words: Any
    three: Any
    values: Any
    cluster: Any

    def frame(self, target: Any) -> pd.DataFrame:
        """Return the table of an audit of this target."""
        return self.X.assign(y=target, cluster=self.cluster)

    def rows(self, target: Any, X: Any = None) -> Rows:
        """Return all rows, for a refit that should be the original again."""
        return Rows(
            X=self.X if X is None else X, target=np.asarray(target), ids=np.arange(len(self.X))
        )

    def audit_by_both(self, uris: Sequence[str], target: Any) -> AuditReport:
        """Audit a model by both of its addresses, which must give the same."""
        first, second = (
            audit(
                uri,
                self.frame(target),
                target="y",
                cluster="cluster",
                loss="log",
                p0=0.1,
                folds=3,
                budget=70,
            )
            for uri in uris
        )
        assert first.e0 == second.e0
        return first

    def check_weights_and_seeds(self, learner: Learner) -> None:
        """Check that both change what a learner of the binary target learns."""
        rows, weight = self.rows(self.binary), np.where(self.binary, 3.0, 1.0)
        weighted = replace(rows, weight=weight)
        plain, heavy, first, again, other = (
            learner.fit(given, seed).predict("probability", self.X)
            for given, seed in ((rows, None), (weighted, None), (rows, 1), (rows, 1), (rows, 2))
        )
        assert heavy[:, 1].mean() > plain[:, 1].mean()
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)

    def check_given_an_array(self, audited: AuditedModel) -> None:
        """Check that a model of the binary target knows it was trained on an array, and is again."""
        X = self.X.to_numpy()
        assert (audited.inputs.count, audited.inputs.as_array) == (3, True)
        refitted = audited.learner.fit(self.rows(self.binary, X))
        original = audited.learner.original
        assert original is not None
        np.testing.assert_array_equal(
            refitted.predict("probability", X), original.predict("probability", X)
        )


@pytest.fixture(scope="session")
def table() -> Table:
    """Make the table: labels follow the features and the cluster."""
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(CLUSTERS), N // CLUSTERS)
    X = pd.DataFrame(rng.normal(size=(N, 3)), columns=["age", "bmi", "glucose"])
    score = X["age"].to_numpy() + rng.normal(size=CLUSTERS)[cluster] + 0.5 * rng.normal(size=N)
    binary = (score > 0).astype(int)
    return Table(
        X=X,
        binary=binary,
        words=np.where(binary, "sick", "well"),
        three=np.digitize(score, [-0.5, 0.7]),
        values=3 * score,
        cluster=cluster,
    )
