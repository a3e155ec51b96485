"""From folds and a learner to measured loss curves."""

from mlflow_b3.measurement.curve import FragmentLosses, LossCurve

__all__ = ["FragmentLosses", "LossCurve"]
