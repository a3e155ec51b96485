"""A comparison of audited models as a plot and as one HTML page."""

from dataclasses import dataclass

from markupsafe import Markup

from mlflow_b3.comparing import Comparison, Contender
from mlflow_b3.reporting.axes import Axis, axis_for
from mlflow_b3.reporting.comparison_words import (
    TITLE,
    comparison_tables,
    explain_comparison,
    readable_names,
    where_words,
)
from mlflow_b3.reporting.pages import page
from mlflow_b3.reporting.svg import Plot
from mlflow_b3.version import __version__
from mlflow_b3.wording import interval_words, loss_words, number

ROW = 46


def comparison_page(comparison: Comparison) -> str:
    """Return a comparison as one HTML page; see `mlflow_b3.reporting.html.to_html`."""
    chart = Markup(comparison_plot(comparison).inline())
    comparison = readable_names(comparison)
    sentences = explain_comparison(comparison)
    return page(
        "comparison.html.j2",
        title=TITLE,
        answer=" ".join(sentences[:2]),
        more=sentences[2:],
        chart=chart,
        caption=_caption(comparison),
        tables=comparison_tables(comparison),
        notes=comparison.notes,
        version=__version__,
    )


def _caption(comparison: Comparison) -> str:
    by_groups, best = "by the cluster ids as they are", "on new clusters"
    if comparison.by == "cvc":
        by_groups, best = "by folds of whole groups", f"corrected {where_words(comparison)}"
    return (
        f"One line for each model, the best first: the loss ignoring clusters (circle), {by_groups} "
        f"(square) and {best} (diamond, with its 95 % interval for this model alone)."
    )


@dataclass(frozen=True)
class _Shown:
    """The three scores of a model: ignoring clusters, by whole clusters or groups, and the best."""

    iid: float
    grouped: float | None
    score: float | None
    interval: tuple[float, float | None] | None

    @classmethod
    def of(cls, by: str, c: Contender) -> "_Shown":
        if by == "cvc":
            return cls(c.iid, c.grouped, c.cvc, c.cvc_interval)
        return cls(c.iid, c.loco, c.e0, c.e0_interval)


def comparison_plot(comparison: Comparison) -> Plot:
    """Return the scores of all models on one axis, the best on new clusters first."""
    comparison = readable_names(comparison)
    contenders = comparison.contenders
    word = loss_words(comparison.loss)
    shown = [_Shown.of(comparison.by, c) for c in contenders]
    core = [value for c in shown for value in (c.iid, c.grouped, c.score)]
    ends = [end for c in shown for end in c.interval or ()]
    texts = [
        f"{c.name}: {number(s.score)}" + (f" ({interval_words(s.interval)})" if s.interval else "")
        for c, s in zip(contenders, shown, strict=True)
    ]
    corrected = comparison.by == "cvc"
    grouped = "by whole groups" if corrected else "by cluster ids"
    plot = Plot(
        "comparison",
        f"{word} of {len(contenders)} audited models",
        "; ".join(
            f"{text}, {grouped} {number(s.grouped)}, ignoring clusters {number(s.iid)}"
            for text, s in zip(texts, shown, strict=True)
        )
        + ".",
        x=axis_for(core, ends, label=word),
        y=Axis(low=0, high=len(contenders)),
        height=ROW * len(contenders),
        legend=3,
        y_axis=False,
    )
    plot.entry("ignoring clusters (IID)", "orange", "circle")
    if corrected:
        plot.entry("by folds of whole groups (grouped CV)", "green", "square")
        plot.entry("corrected (CV_c), with its 95 % interval", "blue", "diamond")
    else:
        plot.entry("by the cluster ids as they are (LOCO)", "green", "square")
        plot.entry("on new clusters (e0), with its 95 % interval", "blue", "diamond")
    for place, (text, s) in enumerate(zip(texts, shown, strict=True)):
        y = len(contenders) - place - 0.7
        if s.interval is not None:
            plot.interval(y, *s.interval, "blue")
        plot.mark(s.iid, y, "circle", "orange")
        if s.grouped is not None:
            plot.mark(s.grouped, y, "square", "green")
        if s.score is not None:
            plot.mark(s.score, y, "diamond", "blue")
        plot.text(plot.left + 4, plot.top + ROW * place + 16, text)
    return plot
