"""The share that belongs to pattern `fragments`, kept apart from those of pattern `rows`."""

from dataclasses import dataclass

from mlflow_b3.errors import InputError
from mlflow_b3.results import Result


@dataclass(frozen=True, kw_only=True)
class SeenShare(Result):
    """s: the share of the validation rows whose true cluster also has rows in training.

    It belongs to pattern `fragments`, and to `estimate_fragments` only. The shares of pattern
    `rows`, p_T and p_V, count misplaced rows, which meet all of their cluster on the other side; a
    seen share in their place over-corrects wildly.

    Attributes
    ----------
    share : float
        In [0, 1).
    """

    share: float

    def __post_init__(self) -> None:
        """Refuse shares that leave nothing to estimate from."""
        if not 0 <= self.share < 1:  # NaN fails too
            raise InputError(f"share={self.share!r} must lie in [0, 1).")


def refuse_seen(name: str, value: object) -> None:
    """Raise an error when a share of pattern `fragments` is given to pattern `rows`."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(item, SeenShare) for item in values):
        raise InputError(
            f"{name}={value!r} is a share of pattern fragments: validation rows with some mate in "
            "training. p0, p0_validation and rates are other shares, and the row formulas would "
            "over-correct wildly with this one. Use estimate_fragments(losses, seen_share=…)."
        )
