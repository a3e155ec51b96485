"""Holds a candidate against the version that has the alias now."""

from mlflow_b3.comparing import compare_reports
from mlflow_b3.errors import InputError
from mlflow_b3.gating.verdict import FAIL, INCONCLUSIVE, PASS, Reason
from mlflow_b3.reporting.report import AuditReport
from mlflow_b3.wording import number

CHECK = "champion"
CANDIDATE, CHAMPION = "this version", "the champion"


def judge_champion(rule: str, candidate: AuditReport, champion: AuditReport) -> Reason:
    """Return whether a candidate is good enough beside the champion, beyond noise.

    Parameters
    ----------
    rule : {"not_worse", "better"}
    candidate, champion : AuditReport
        Paired where both were audited on the same rows with the same leakage; audits that are not
        decide nothing, because the noise of the folds would be taken for a difference of models.
    """
    try:
        compared = compare_reports({CANDIDATE: candidate, CHAMPION: champion}, by="e0")
    except InputError as error:
        return _open(f"it cannot be compared with the champion: {error}")
    if compared.by != "e0" or not compared.differences:
        return _open("e0 of this version or of the champion is not known")
    found = compared.differences[0]
    words = f"{found.better} is better by {number(found.difference)}"
    words += f" ({number(found.interval[0])} to {number(found.interval[1])})"
    if not (found.comparable and found.paired):
        return _open(f"{words}, but the two were not audited together on the same rows and folds")
    if not found.noise_known:
        return _open(f"{words}, but there are too few clusters to tell that from noise")
    if found.beyond_noise:
        outcome = PASS if found.better == CANDIDATE else FAIL
        return Reason(check=CHECK, outcome=outcome, text=f"{words}, beyond noise")
    if rule == "better":
        return _open(f"{words}, which is within the noise")
    return Reason(check=CHECK, outcome=PASS, text=f"{words}, which is within the noise")


def _open(text: str) -> Reason:
    return Reason(check=CHECK, outcome=INCONCLUSIVE, text=text, waivable=True)
