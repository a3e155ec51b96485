"""What an audit by doses found, in words: the loss by mates in training, and its noise."""

from mlflow_b3.auditing.doses import NEGLIGIBLE, USUAL_ERROR
from mlflow_b3.auditing.findings import ids_part, ids_remedy
from mlflow_b3.auditing.report import AuditReport
from mlflow_b3.estimation.dose import DoseCurve, DoseSolution
from mlflow_b3.reporting.phrases import ids_are_right, joined
from mlflow_b3.results import loss_words, number, percent

TITLE = "The score by rows of the same cluster in training"
#: The doses that a sentence names, as far as they were reached, beside the largest.
NAMED_DOSES = (1, 3)
COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def dose_sentence(report: AuditReport, curve: DoseCurve) -> str:
    """Return the loss with none, one, three and the most of a row's mates in training."""
    losses = dict(zip(curve.d, curve.loss, strict=True))
    named = [d for d in (*NAMED_DOSES, curve.d[-1]) if d in losses and d > 0]
    in_percent = report.subject.loss == "zero_one"
    values = {d: _of_hundred(loss) if in_percent else number(loss) for d, loss in losses.items()}
    first = f"With none of the other rows of the same {report.subject.cluster!r} in training, "
    if not report.leakage.is_known:
        first = f"{dose_premise(report)}: {first[0].lower()}{first[1:]}"
    if in_percent:
        first += f"{values[curve.d[0]]} of 100 rows are wrong"
    else:
        first += f"the {loss_words(report.subject.loss)} is {values[curve.d[0]]}"
    others = [f"with {_count(d)} {values[d]}" for d in dict.fromkeys(named)]
    return f"{first}; {', '.join(others)}." if others else f"{first}."


def _of_hundred(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"


def _count(rows: int) -> str:
    return COUNTS[rows] if rows < len(COUNTS) else str(rows)


def dose_caption(report: AuditReport, found: DoseSolution) -> str:
    """Return what the curve over the doses shows, and for which rate."""
    return f"{dose_sentence(report, found.curve)}{_rate(report)}"


def doses_measured() -> str:
    """Return how the curve over the doses was measured and solved."""
    return (
        "Some rows of each validation cluster were put into training on purpose, and the others were "
        "scored. Wrong ids put more of them there unnoticed, but how often each number occurs follows from "
        "the rate of wrong ids. The curve is solved from differences between scores of the same rows."
    )


def _rate(report: AuditReport) -> str:
    """Return the rate of wrong ids that the curve is for, unless it is the given one."""
    if not report.leakage.is_known:
        return (
            f" Nothing is known about the ids here; the curve is for a cluster error of "
            f"{percent(USUAL_ERROR)}."
        )
    low, high = report.claim.range or (0.0, 0.0)
    if report.e0 is None:
        return " The evidence excludes nothing; the curve is for the middle of its range."
    if low < high:
        return " It is for the middle of the given range."
    return ""


def dose_premise(report: AuditReport) -> str:
    """Return the rate of wrong ids that a table of the losses is for, unless it is the given one."""
    if not report.leakage.is_known:
        return f"If {percent(USUAL_ERROR)} of the rows carried a wrong id, which nobody has said"
    low, high = report.claim.range or (0.0, 0.0)
    return "For the middle of the range of wrong ids" * (low < high)


def explain_doses(report: AuditReport) -> list[str]:
    """Return what the uncertainty of e0 comes from, and whether e0 was shrunk."""
    found = report.conclusion.dose
    if found is None or report.e0 is None:
        return []
    shrunk = (
        f"The measured effect of rows of the same cluster is within the noise: with a probability of "
        f"{percent(found.no_effect)}, there is none. So e0 was pulled towards the score by the ids."
    )
    if report.test.rejected:
        shrunk = (
            f"The leakage test finds an effect of rows of the same cluster (p = {report.test.pvalue:.2g}), "
            "but its size is uncertain: by dose, it is within the noise. So e0 was pulled towards the score by "
            "the ids."
        )
    return [*([shrunk] if is_shrunk(report) else []), narrowing(report, found)]


def is_shrunk(report: AuditReport) -> bool:
    """Return whether e0 was pulled towards the score by the ids, because no effect is more probable."""
    found = report.conclusion.dose
    if found is None or report.e0 is None or ids_are_right(report):
        return False
    return found.shrunk


def shrunk_in_short(report: AuditReport) -> str:
    """Return in a few words that e0 was pulled towards the score by the ids; nothing if it was not."""
    if not is_shrunk(report):
        return ""
    why = "Size of the effect uncertain" if report.test.rejected else "Effect within the noise"
    return f"{why}: e0 was pulled towards LOCO."


def narrowing(report: AuditReport, found: DoseSolution) -> str:
    """Return what the variance of e0 comes from and what would reduce it, largest part first."""
    parts = found.variance
    total = parts.clusters + parts.refits + parts.ids
    if not total > 0:
        return "The variance of e0 could not be split into its sources."
    few = parts.refits < NEGLIGIBLE * total  # more would not change much
    causes = {
        "which clusters are in the table (more clusters narrow the interval)": parts.clusters,
        "the refits" + " (a larger budget narrows it)" * (not few): parts.refits,
        f"{ids_part(report)} ({ids_remedy(report)})": parts.ids,
    }
    ordered = sorted(causes.items(), key=lambda cause: -cause[1])
    ordered = [(cause, part) for cause, part in ordered if part > 0]
    (cause, part), *others = ordered
    first = f"{_percentage(part / total)} comes from {cause}"
    told = [first, *(f"{_percentage(part / total)} from {cause}" for cause, part in others)]
    return f"Of the variance of e0, {joined(told)}."


def _percentage(share: float) -> str:
    return "less than 1%" if share < 0.005 else f"{100 * share:.0f}%"


def curve_from_doses(report: AuditReport) -> str:
    """Return what the loss curve over injected shares shows if losses were measured by dose."""
    return (
        f"The {loss_words(report.subject.loss)} when a share x of the validation rows is in training. It "
        "follows from the losses by dose: a row of a cluster with M rows then has Binomial(M − 1, x) "
        "of them in training. At 0%, the folds are unchanged. e0 is not read from this curve, but solved "
        "from the losses by dose."
    )
