"""The models of a comparison, and the differences between them."""

from dataclasses import dataclass

from mlflow_b3.results import Result


@dataclass(frozen=True, kw_only=True)
class Contender(Result):
    """One audited model among those that are compared.

    Attributes
    ----------
    name : str
    uri, run_id, audit_run_id : str or None
        Where MLflow keeps the model and its audit.
    iid, loco, e0 : float
        The loss ignoring clusters, by the ids as they are, and on new clusters; e0 is None where it
        is not known, or where the refits give a lower bound only.
    loco_interval, e0_interval : tuple of float
        95 % each, of this model alone.
    rank_iid, rank_loco, rank_e0 : int or None
        From 1, the smallest loss, among the models between which differences are taken; None for
        all others. Without two known e0 none has a place on new clusters.
    leakage : str
        What its e0 rests on.
    cvc, cvc_interval : float, tuple of float, or None
        Cross-validation corrected for correlation, CV_c, with 95 %; None without the method "cvc",
        where it is withheld, and where the correction may miss a part of the bias.
    grouped : float or None
        The loss by folds of whole groups that belongs to it.
    rank_cvc : int or None
        From 1, where the models are ranked by CV_c.
    """

    name: str
    uri: str | None
    run_id: str | None
    audit_run_id: str | None
    iid: float
    loco: float
    loco_interval: tuple[float, float]
    e0: float | None
    e0_interval: tuple[float, float | None]
    rank_iid: int | None
    rank_loco: int | None
    rank_e0: int | None
    leakage: str
    cvc: float | None = None
    cvc_interval: tuple[float, float] | None = None
    grouped: float | None = None
    rank_cvc: int | None = None

    @property
    def moved(self) -> bool:
        """Whether its place by e0, or CV_c, is another than by the score that ignores clusters."""
        place = self.rank_e0 if self.rank_cvc is None else self.rank_cvc
        return place is not None and place != self.rank_iid


@dataclass(frozen=True, kw_only=True)
class Difference(Result):
    """How much one model's loss exceeds that of a better one.

    Attributes
    ----------
    better, worse : str
        Names of the contenders.
    difference : float
        Loss of the worse less that of the better: on new clusters, by noisy ids, or CV_c.
    interval : tuple of float
        Holds for all pairs at once with 95 %.
    comparable : bool
        Both scores answer the same question: they rest on the same leakage, method and clusters.
    noise_known : bool
        There are enough clusters to tell how much new ones differ.
    beyond_noise : bool
        The interval does not contain 0, the scores are comparable and their noise is known.
    paired : bool
        Both were audited on the same rows with the same leakage, for CV_c on the same folds, so that
        what they share cancels.
    flips_iid, flips_loco : bool
        The score that ignores clusters, or the one by noisy ids, has them the other way round;
        False where the scores are not comparable.
    flips_at : float or None
        The smallest value of the comparison's axis at which the two change places; None where none
        is known.
    flips_searched_to : float or None
        Up to which value one was looked for; None where nothing is known about it, which a note of
        the comparison explains.
    """

    better: str
    worse: str
    difference: float
    interval: tuple[float, float]
    comparable: bool
    noise_known: bool
    beyond_noise: bool
    paired: bool
    flips_iid: bool
    flips_loco: bool
    flips_at: float | None
    flips_searched_to: float | None = None
