"""What mistakes of a reviewer do to leak shares."""

from mlflow_b3.errors import InputError
from mlflow_b3.linkage.estimates import LeakShare
from mlflow_b3.wording import not_percentage


def check_reviewer(sensitivity: float, specificity: float) -> None:
    """Refuse rates that are none, or of a review that tells nothing."""
    problems = [
        f"{name}={rate!r} must lie in [0, 1].{not_percentage(rate)}"
        for name, rate in (("sensitivity", sensitivity), ("specificity", specificity))
        if not 0 <= rate <= 1
    ]
    if not problems and sensitivity + specificity <= 1:
        problems.append(
            f"sensitivity={sensitivity!r} and specificity={specificity!r} sum to 1 or less: such a "
            "review says nothing about which rows leak."
        )
    if problems:
        raise InputError.from_problems("reviewer", problems)


def corrected_share(
    share: LeakShare, split_rate: float, sensitivity: float, specificity: float
) -> LeakShare:
    """Return a share as it were had the reviewer made no mistakes."""
    power = sensitivity + specificity - 1
    assert share.point is not None
    per_split = share.point / split_rate if split_rate > 0 else 0.0

    def without_errors(value: float, most: float) -> float:
        return min(max((value - per_split * (1 - specificity)) / power, 0.0), most)

    point = without_errors(share.point, min(per_split, 1.0))
    return LeakShare(
        point=point,
        low=min(without_errors(share.low, 1.0), point),
        high=max(without_errors(share.high, 1.0), point),
    )


def correction_notes(split_rate: float, sensitivity: float, specificity: float) -> list[str]:
    """Say that shares were corrected, and whether the correction went too far."""
    power = sensitivity + specificity - 1
    rate = (split_rate - (1 - specificity)) / power
    notes = [
        f"Corrected for a reviewer of sensitivity {sensitivity:g}, specificity {specificity:g}."
    ]
    if not 0 <= rate <= 1:
        notes.append(
            f"The corrected split rate, {rate:.3g}, was cut to [0, 1]: fewer or more rows were found "
            "split than such a reviewer would report; the rates may be wrong."
        )
    return notes
