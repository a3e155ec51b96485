"""`run_leakage_test`: the leakage test of a model alone."""

from collections.abc import Mapping
from typing import Any

from mlflow_b3.audit_checks import check_kinds
from mlflow_b3.conclusions import conclude_test
from mlflow_b3.errors import check_seed, choose
from mlflow_b3.fold_table import load_folds
from mlflow_b3.folds import make_folds
from mlflow_b3.hypothesis import TESTS, LeakageTest
from mlflow_b3.measurement.campaign import Campaign, check_timed_test
from mlflow_b3.measurement.comparison import check_test, measure_test
from mlflow_b3.measurement.levels import parse_seconds
from mlflow_b3.measurement.sessions import Means
from mlflow_b3.measurement.workers import WorkerSettings
from mlflow_b3.refit import without_autologging
from mlflow_b3.subject import load_subject


def run_leakage_test(
    model: Any,
    data: Any,
    *,
    target: str,
    cluster: Any,
    loss: Any = None,
    folds: Any = None,
    test: str = "paired",
    budget: int | str | None = None,
    trainer: Any = None,
    refit: str = "auto",
    refit_options: Mapping[str, Any] | None = None,
    sample_weight: str | None = None,
    row_id: str | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    backend: str | None = None,
    address: str | None = None,
    fit_timeout: float | str | None = None,
    progress: bool | None = None,
) -> LeakageTest:
    """Run the leakage test of a model alone.

    See `audit` for the parameters; all of the budget is the test's here. By default `paired` has
    150 refits, and `permutation` 99 rearrangements of the rows. `permutation` fits its number of
    rearrangements to a time; `welch` cannot be cut short and takes no time.
    """
    choose("test", test, TESTS)
    if test == "welch":
        check_timed_test(test, budget)
    check_seed(seed)
    check_kinds(None, refit, refit_options, False)
    means = Means(
        workers=WorkerSettings(n_jobs=n_jobs, backend=backend, address=address),
        fit_timeout=parse_seconds("fit_timeout", fit_timeout),
        progress=progress,
    )
    subject = load_subject(
        model,
        data,
        target=target,
        cluster=cluster,
        loss=loss,
        trainer=trainer,
        refit=refit,
        refit_options=refit_options,
        sample_weight=sample_weight,
        row_id=row_id,
    )
    campaign = Campaign(
        data=subject.rows,
        learner=subject.learner,
        loss=subject.loss,
        folds=make_folds(subject.table, load_folds(folds), seed=seed),
        seed=seed,
        budget=budget,
        means=means,
        test=test,
    )
    check_test(campaign.folds, test, budget)
    with without_autologging(), campaign.session() as session:
        losses = measure_test(campaign, session, budget)
        session.check_failures()
    return conclude_test(losses, test, splits=campaign.folds)
