"""A comparison of audited models as a plot and as one HTML page."""

from markupsafe import Markup

from mlflow_b3.comparing import Comparison
from mlflow_b3.reporting.axes import Axis, axis_for
from mlflow_b3.reporting.comparison_words import (
    TITLE,
    comparison_tables,
    explain_comparison,
    readable_names,
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
        caption=(
            "One line for each model, the best first: the loss ignoring clusters "
            "(circle), by the cluster ids as they are (square) and on new clusters (diamond, with its "
            "95 % interval for this model alone)."
        ),
        tables=comparison_tables(comparison),
        notes=comparison.notes,
        version=__version__,
    )


def comparison_plot(comparison: Comparison) -> Plot:
    """Return the scores of all models on one axis, the best on new clusters first."""
    comparison = readable_names(comparison)
    contenders = comparison.contenders
    word = loss_words(comparison.loss)
    core = [value for c in contenders for value in (c.iid, c.loco, c.e0)]
    ends = [end for c in contenders for end in c.e0_interval]
    texts = [f"{c.name}: {number(c.e0)} ({interval_words(c.e0_interval)})" for c in contenders]
    plot = Plot(
        "comparison",
        f"{word} of {len(contenders)} audited models",
        "; ".join(
            f"{text}, by cluster ids {number(c.loco)}, ignoring clusters {number(c.iid)}"
            for text, c in zip(texts, contenders, strict=True)
        )
        + ".",
        x=axis_for(core, ends, label=word),
        y=Axis(low=0, high=len(contenders)),
        height=ROW * len(contenders),
        legend=3,
        y_axis=False,
    )
    plot.entry("ignoring clusters (IID)", "orange", "circle")
    plot.entry("by the cluster ids as they are (LOCO)", "green", "square")
    plot.entry("on new clusters (e0), with its 95 % interval", "blue", "diamond")
    for place, (text, c) in enumerate(zip(texts, contenders, strict=True)):
        y = len(contenders) - place - 0.7
        plot.interval(y, *c.e0_interval, "blue")
        plot.mark(c.iid, y, "circle", "orange")
        plot.mark(c.loco, y, "square", "green")
        if c.e0 is not None:
            plot.mark(c.e0, y, "diamond", "blue")
        plot.text(plot.left + 4, plot.top + ROW * place + 16, text)
    return plot
