"""One reason of a verdict."""

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
