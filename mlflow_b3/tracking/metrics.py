"""What an audit writes to MLflow as numbers and texts: metrics, curves, parameters and tags."""

from mlflow_b3.correlated.report import CvcReport
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import number

LONGEST_PARAMETER = 500
#: The metrics that only audits by the method "cvc" have.
OF_CVC = tuple(f"b3/{name}" for name in ("cvc", "cvc_low", "cvc_high", "cvc_bias", "cvc_grouped"))


def metrics_of(report: AuditReport) -> dict[str, float | None]:
    """Return the scalar metrics of a report; None where there is no value."""
    low, high = report.e0_interval
    split = report.settings.pattern == "fragments"
    seen = report.settings.claim if report.linkage is not None else None
    values = {
        # a lower bound must not pass for the loss itself where a threshold is set on this metric
        "e0": report.e0 if report.settings.refit_strength == "full" else None,
        "e0_low": low,
        "e0_high": high,
        "e0_secant": report.e0_secant,
        # shares of split clusters must not be held against tipping_p0, which counts misplaced rows
        "p0": None if split else report.p0,
        "seen_share": report.p0 if split else None,
        "seen_share_low": seen and seen[0],
        "seen_share_high": seen and seen[1],
        "p0_star": report.search.p0_star,
        "residual": report.residual,
        "loco": report.loco,
        "iid": report.iid,
        "inflation": report.inflation,
        "test_statistic": report.test.statistic,
        "test_pvalue": report.test.pvalue,
        "tipping_p0": report.tipping_p0,
        "tipping_cluster_error": report.tipping_cluster_error,
        "tipping_split_rate": report.tipping_split_rate,
        "fits": float(report.settings.fits),
        "refit_full": float(report.settings.refit_strength == "full"),
        "refit_agreement": report.settings.refit_agreement,
    }
    found = {f"b3/{name}": value for name, value in values.items()}
    if report.cvc is not None:
        found |= zip(OF_CVC, _corrected(report.cvc, report.settings.refit_strength), strict=True)
    return {name: None if value is None else float(value) for name, value in found.items()}


def _corrected(cvc: CvcReport, strength: str) -> tuple[float | None, ...]:
    """Return CV_c and what belongs to it, in the order of `OF_CVC`."""
    low, high = cvc.interval or (None, None)
    if cvc.lower_quality or strength != "full":
        # what misses part of the bias must not pass for CV_c where a threshold is set on it
        return None, None, None, cvc.bias, cvc.grouped
    return cvc.cvc, low, high, cvc.bias, cvc.grouped


def curves_of(report: AuditReport) -> dict[str, list[tuple[int, float]]]:
    """Return the stepped metrics of a report: (permille of the axis, value).

    The axis of the loss is the exposure, which is the same for all folds and data; that of the
    residual is p0, that of the sensitivity curves the cluster error or split rate, that of CV_c the
    multiple of the estimated standard deviations.
    """
    axis = report.sensitivity.error or report.sensitivity.p0
    series = {
        "loss": zip(report.curve.exposure, report.curve.loss, strict=True),
        "residual": zip(report.search.p0, report.search.residual, strict=True),
        "sensitivity": zip(axis, report.sensitivity.e0, strict=True),
    }
    split = report.fragment_sensitivity
    if split is not None and split.error is not None:
        series["sensitivity_split"] = zip(split.error, split.e0, strict=True)
    if report.cvc is not None:
        series["cvc"] = zip(report.cvc.multipliers, report.cvc.sensitivity, strict=True)
    return {
        f"b3_curve/{name}": [(round(1000 * x), float(y)) for x, y in points]
        for name, points in series.items()
    }


def parameters_of(report: AuditReport) -> dict[str, str]:
    """Return the parameters of the audit's own run: what was audited, and how."""
    s = report.settings
    values = {
        "model": s.uri or s.model,
        "data": s.data_source,
        "target": s.target,
        "cluster": s.cluster,
        "loss": s.loss,
        "p0_source": report.p0_source,
        "claim": s.claim and " to ".join(dict.fromkeys(f"{end:.6g}" for end in s.claim)),
        "pattern": s.pattern,
        "fragments": s.fragments if s.pattern != "rows" else None,
        "folds": str(len(report.folds) // s.repeats),
        "repeats": str(s.repeats),
        "folds_digest": s.folds_digest,
        "fold_threshold": s.fold_threshold,
        "purge_threshold": s.purge_threshold,
        "threshold": number(report.threshold) if s.threshold_given else None,
        "method": s.method,
        "scheme": s.scheme,
        "test": report.test.method,
        "refit": s.refit,
        "sample_weight": s.sample_weight,
        "seed": s.seed,
    }
    if report.cvc is not None:
        values |= _of_correction(report.cvc)
    return {
        f"b3/{name}": str(value)[:LONGEST_PARAMETER]
        for name, value in values.items()
        if value not in (None, "")
    }


def _of_correction(cvc: CvcReport) -> dict[str, str]:
    """Return how cross-validation was corrected."""
    return {
        "cvc_groups": ", ".join(group.name for group in cvc.groups),
        "cvc_new": ", ".join(cvc.new) or "none",
        "cvc_coordinates": "" if cvc.field is None else ", ".join(cvc.field.coordinates),
        "cvc_engine": cvc.engine,
        "cvc_working": cvc.working,
        "cvc_draws": str(cvc.draws),
    }


def tags_of(report: AuditReport, audit_run_id: str) -> dict[str, str]:
    """Return the tags by which an audit is found and read without opening its files."""
    settings = report.settings
    unknown = [name for name, value in metrics_of(report).items() if value is None]
    return {
        "b3.audit_run_id": audit_run_id,
        # which audits are of the same model: a run may hold several models
        "b3.subject": settings.model_id or settings.uri or settings.run_id or "none",
        "b3.p0_source": report.p0_source,
        "b3.pattern": settings.pattern,
        "b3.refit": settings.refit,
        "b3.refit_strength": settings.refit_strength,
        "b3.version": settings.version,
        "b3.data_digest": settings.data_digest,
        # MLflow keeps the values of older audits on the LoggedModel; these are not of this one
        "b3.not_known": ", ".join(unknown) or "none",
    }
