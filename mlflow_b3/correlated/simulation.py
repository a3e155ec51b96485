"""The bias by refits on simulated targets, for whatever can be refitted."""

from dataclasses import dataclass

from mlflow_b3.correlated.bias import Bias, BiasSums
from mlflow_b3.correlated.refits import CvcRefitter
from mlflow_b3.measurement.fits import Session, interrupted
from mlflow_b3.measurement.outcomes import Outcome
from mlflow_b3.measurement.resampling import Task
from mlflow_b3.wording import number

#: Simulated samples are added until their error is below this share of the bias, ...
SMALL_ERROR = 0.15
#: ... or of the uncertainty of cross-validation itself, ...
SMALL_BESIDE = 0.1
#: ... but not more than so many times what was asked for.
MOST_BLOCKS = 3


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The bias by simulated samples.

    Attributes
    ----------
    bias : Bias
        Of the working model.
    as_simulated : Bias
        Of the world that was simulated, which is another one where hardly anything varies.
    one_class : float
        Share of the simulated training sets that had one class only.
    """

    bias: Bias
    as_simulated: Bias
    one_class: float = 0.0

    @classmethod
    def without_refits(cls, bias: Bias) -> "Simulated":
        """Return a bias for which nothing was refitted."""
        return cls(bias=bias, as_simulated=bias)


def run_simulation(
    session: Session, refitter: CvcRefitter, *, draws: int, reach: float, extend: bool
) -> Simulated:
    """Refit one fold for each simulated sample, and return the bias.

    Parameters
    ----------
    session : Session
    refitter : CvcRefitter
        With the simulated samples.
    draws : int
        How many samples.
    reach : float
        Half of the width of the interval of cross-validation.
    extend : bool
        Add samples where those leave too much noise.

    Raises
    ------
    InterruptedAudit
        Where the user stopped it before every fold had two samples.
    """
    folds = refitter.resampler.iid_folds
    n_folds = len(folds)
    block = n_folds * max(2, draws // n_folds)  # as many in each fold, and not more than asked for
    sums, single = BiasSums(n_folds), []
    assert refitter.draws is not None
    made = refitter.draws

    def collect(outcome: Outcome) -> None:
        assert outcome.validation is not None
        task = outcome.task
        rows, drawn = folds[task.fold].validation, made.draw(task.replicate)
        sums.add(task.fold, outcome.validation, drawn.expected[rows], drawn.deployed[rows])
        single.append(outcome.one_class)
        session.counts.one_class -= outcome.one_class  # no resamples of the table's own target

    def look() -> str | None:
        return f"bias {number(sums.bias().value)}" if sums.ready else None

    try:
        for start in range(0, (MOST_BLOCKS if extend else 1) * block, block):
            tasks = [Task("simulated", b % n_folds, 0, b) for b in range(start, start + block)]
            session.run(tasks, collect, needed=2 * n_folds if not start else 0, look=look)
            if not sums.ready or is_small(sums.bias(), reach):
                break
    except KeyboardInterrupt as interrupt:
        if not sums.ready:
            raise interrupted(session) from interrupt
    session.check_failures()
    found = sums.bias()
    return Simulated(bias=found, as_simulated=found, one_class=sum(single) / max(1, len(single)))


def is_small(bias: Bias, reach: float) -> bool:
    """Whether the error by the number of samples does not matter beside what else is uncertain."""
    return bias.error <= max(SMALL_ERROR * abs(bias.value), SMALL_BESIDE * reach)
