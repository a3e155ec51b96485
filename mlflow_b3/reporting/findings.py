"""The findings that follow from an audit's own numbers."""

from mlflow_b3.findings import Finding
from mlflow_b3.measurement.outcomes import TOLERATED_FAILURES, FitCounts
from mlflow_b3.measurement.resampling import FEW_CLUSTERS
from mlflow_b3.reporting.method import original_words
from mlflow_b3.reporting.report import AuditReport, Settings
from mlflow_b3.table_checks import IN_TABLE
from mlflow_b3.wording import number

FEW_REFITS = 20
MOSTLY = 0.5
LEAST_AGREEMENT = 0.9


def audit_findings(report: AuditReport, counts: FitCounts) -> list[Finding]:
    """Return what the reader must know before relying on the numbers."""
    found = [*_about_leakage(report), *_about_curve(report), *_about_refits(report)]
    found += _about_fits(report, counts)
    return [Finding(code=code, message=message) for code, message in found]


def _about_leakage(report: AuditReport) -> list[tuple[str, str]]:
    found = []
    settings = report.settings
    if settings.n_validated < FEW_CLUSTERS:
        found.append(
            (
                "B301",
                f"{settings.n_validated} clusters were validated on. The intervals speak of new rows from "
                "these clusters; how far the next cluster differs from them cannot be told from "
                "so few.",
            )
        )
    if report.p0_bound is not None and report.p0_bound.vacuous:
        found.append(("B318", report.p0_bound.statement))
    if report.e0 is None and report.p0_source == "none":
        found.append(
            (
                "B307",
                "no leaked share was given (p0, cluster_error, split_rate, or evidence of a linkage), "
                "and the loss curve cannot tell it: the same curve fits every one. The interval holds "
                "for any share of wrong ids up to 50 %. Have a sample of rows resolved by hand "
                "(mlflow-b3 review), or take the error rate that your record linkage reports, and "
                "audit again with it.",
            )
        )
    test = report.test
    if not test.rejected:
        found.append(
            (
                "B308",
                f"the test did not show that this learner profits from leaked rows (p = "
                f"{test.pvalue:.2g}). That is no proof of absence: it would have found an effect of "
                f"{test.detectable:.3g} with probability 0.8.",
            )
        )
    constant, threshold = report.constant_loss, report.threshold
    if settings.threshold_given and None not in (constant, threshold) and threshold > constant:  # type: ignore[operator]
        found.append(
            (
                "B351",
                f"the threshold of {number(threshold)} is above {number(constant)}, the loss of the best "
                "constant answer: a model that has learned nothing would meet it. Give a smaller one.",
            )
        )
    bound = settings.loss_bound
    if report.e0 is not None and bound is not None and report.e0 >= bound:
        found.append(
            (
                "B314",
                f"e0 reaches the largest possible loss, {bound:g}: the leaked share given is too "
                "large for this curve.",
            )
        )
    return found


def _about_curve(report: AuditReport) -> list[tuple[str, str]]:
    found = []
    shape, settings = report.shape, report.settings
    by_rows = settings.pattern != "fragments"  # split clusters are not read from the curve
    instead = (
        " The interval does not rest on the shape: it is spread over the estimate and a parabola."
        if settings.method == "power"
        else ""
    )
    if not shape.decreasing:
        found.append(
            (
                "B304",
                f"the loss rises when leaked rows are added (z = {shape.slope_z:.1f}): they hurt "
                "this learner."
                + (" No lower limit by a secant is given." + instead if by_rows else ""),
            )
        )
    if not shape.convex:
        found.append(
            (
                "B305",
                f"the loss curve bends the wrong way (z = {shape.curvature_z:.1f})."
                + (" No lower limit by a secant is given." + instead if by_rows else ""),
            )
        )
    if not report.accurate and by_rows:
        found.append(
            (
                "B319",
                f"the solver of method {report.settings.method!r} did not find some of its losses "
                "accurately, so its numbers may be off. Use the method 'power', or other options.",
            )
        )
    low, high = report.e0_interval
    if report.e0 is not None and high is not None and report.settings.pattern == "rows":
        width = high - low
        noise = report.loco_interval[1] - report.loco_interval[0]
        if noise < MOSTLY * width:
            found.append(
                (
                    "B306",
                    f"the interval of e0 is {width:.3g} wide, that of the uncorrected loss "
                    f"{noise:.3g}: most of it comes from extrapolating beyond the measured levels, "
                    "and more refits would not narrow it much.",
                )
            )
    return found


def _about_refits(report: AuditReport) -> list[tuple[str, str]]:
    found = []
    settings = report.settings
    if settings.refit_strength != "full":
        found.append(
            (
                "B321",
                f"the route '{settings.refit}' does not train all of the model again: what it "
                "learned from validation rows stays in it. Its losses are too small, unless what "
                "was trained again does worse than what it replaced; the loss on new clusters is at "
                "least what is shown, and a test that does not reject says nothing. Give a trainer, "
                "or the recipe of a network, for the whole answer.",
            )
        )
    if settings.n_train is not None:
        found.append(
            (
                "B353",
                f"every score here is that of models trained on {settings.n_train} rows drawn with "
                "replacement, not of the audited model, which is trained on more. Leave n_train out "
                "to audit models of full size.",
            )
        )
    agreement = settings.refit_agreement
    if agreement is not None and agreement < LEAST_AGREEMENT:
        what = (
            "of its predictions"
            if settings.task == "classification"
            else "of the variance of its predictions"
        )
        found.append(
            (
                "B322",
                f"trained on all rows of this table, the refit agrees with {original_words(settings)} in "
                f"{100 * agreement:.3g} % {what}. Either these are not the rows it was trained on, "
                "or the training was not the same (parameters, chance, dtypes of columns): then the "
                "numbers are about another model." + _dtypes(settings),
            )
        )
    return found


def _dtypes(settings: Settings) -> str:
    """Return which columns may be of other dtypes than in training."""
    differ = [note for note in settings.refit_notes if IN_TABLE in note]
    return f" Dtypes differ: {'; '.join(differ)}." if differ else ""


def _about_fits(report: AuditReport, counts: FitCounts) -> list[tuple[str, str]]:
    found = []
    if counts.one_class:
        found.append(
            (
                "B303",
                f"in {counts.one_class} of {counts.done} refits the training rows had one class "
                "only; a model that always predicts it took the place of the learner.",
            )
        )
    if counts.failed:
        found.append(("B312", _failures(counts)))
    if counts.retried:
        told = (
            f"{counts.retried} refits failed in an earlier start, and succeeded when tried again."
        )
        found.append(("B312", told))
    if counts.interrupted:
        found.append(
            (
                "B330",
                f"{counts.done} of {counts.planned} refits were made when it was stopped. The numbers "
                "are of these, and no gate takes them: who watches the estimate can stop when it "
                "pleases. Start the same audit again to finish it; with its journal it goes on from "
                "there.",
            )
        )
    elif counts.done < counts.planned:
        found.append(
            (
                "B352",
                f"the time of the budget was over after {counts.done} of {counts.planned} planned "
                "refits. The numbers are of these; a longer time gives a steadier curve.",
            )
        )
    fits = report.curve.fits
    folds = len(report.folds) // report.settings.repeats
    least = 0 if fits is None else min(fits[1:]) * folds
    if least < FEW_REFITS:
        found.append(
            (
                "B315",
                f"a level of the loss curve rests on {least} refits only; a larger budget "
                "gives a steadier curve.",
            )
        )
    if counts.warnings:
        text, times = counts.warnings.most_common(1)[0]
        found.append(
            (
                "B316",
                f"refits raised {sum(counts.warnings.values())} warnings, most often ({times} "
                f"times): {text}",
            )
        )
    return found


def _failures(counts: FitCounts) -> str:
    assert counts.first_error is not None
    late = f", {counts.timed_out} of them by their time limit," if counts.timed_out else ""
    first = counts.first_error.splitlines()[0]
    others = len(counts.causes) - 1
    return (
        f"{counts.failed} of {counts.done} refits failed{late} and are left out of all numbers (up to "
        f"{100 * TOLERATED_FAILURES:g} % are tolerated). If they fail on rows of a certain kind, the "
        f"losses leave these out. The first failed with: {first}"
        + (f" There are {others} other causes." if others else "")
    )
