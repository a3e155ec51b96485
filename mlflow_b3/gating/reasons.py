"""The reasons of a verdict, and what they come to."""

from dataclasses import dataclass

from mlflow_b3.results import Result

PASS, FAIL, INCONCLUSIVE, NOT_APPLICABLE = "PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"


@dataclass(frozen=True, kw_only=True)
class Reason(Result):
    """One thing that a policy asks for, and what was found.

    Attributes
    ----------
    check : str
        What was asked for, as the policy's keys name it.
    outcome : {"PASS", "FAIL", "INCONCLUSIVE", "NOT_APPLICABLE"}
    text : str
    waivable : bool
        For INCONCLUSIVE: the policy may let it pass. What is not known at all never does.
    """

    check: str
    outcome: str
    text: str
    waivable: bool = False


def conclude_reasons(reasons: tuple[Reason, ...]) -> str:
    """Return the worst outcome: one failure fails, one open question leaves all open."""
    outcomes = {reason.outcome for reason in reasons}
    for outcome in (FAIL, INCONCLUSIVE):
        if outcome in outcomes:
            return outcome
    return PASS if PASS in outcomes else FAIL  # nothing was asked: nothing was shown
