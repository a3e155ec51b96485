"""Numbers, shares and losses as a report writes them."""

LOSS_WORDS = {
    "zero_one": "error rate",
    "log": "log loss",
    "brier": "Brier score",
    "hinge": "hinge loss",
    "squared": "mean squared error",
    "absolute": "mean absolute error",
}


def number(value: float | None) -> str:
    """Return a loss or share with three decimals, or three digits where that says nothing."""
    if value is None:
        return "unknown"
    return f"{value:.3f}" if 0.01 <= abs(value) < 100 or value == 0 else f"{value:.3g}"


def percent(value: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * value:.3g} %"


def loss_words(name: str) -> str:
    """Return what a loss is called in a sentence."""
    return LOSS_WORDS.get(name, f"loss {name!r}")
