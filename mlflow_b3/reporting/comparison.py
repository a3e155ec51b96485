"""A comparison of audited models as text, Markdown, CSV, JSON and HTML."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from mlflow_b3.auditing.comparison import Comparison, Contender, Difference
from mlflow_b3.data.scores import is_greater_better
from mlflow_b3.reporting import document
from mlflow_b3.reporting.document import (
    Answer,
    Document,
    Figure,
    Section,
    Table,
    Tile,
    lists,
)
from mlflow_b3.reporting.drawing import (
    BLUE,
    GREEN,
    ORANGE,
    axis_for,
    legend,
    mark,
    set_axes,
    spread,
    write_in_row,
)
from mlflow_b3.reporting.phrases import shorten
from mlflow_b3.reporting.tables import INTERVAL
from mlflow_b3.results import interval_words, loss_words, number, percent, signed, visible
from mlflow_b3.version import __version__

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# --- What a comparison of audited models says, in tables and in words

TITLE = "Audited models side by side"
LONGEST_NAME = 60
WORDS = {"e0": "on new clusters", "loco": "by the cluster ids as they are"}
MEASURES = {"e0": "e0", "loco": "the score by cluster ids", "cvc": "CV_c"}


def explain_comparison(comparison: Comparison) -> list[str]:
    """Return which model is best, how sure that is, and where naive scores disagree."""
    compared = [c for c in comparison.contenders if c.rank_iid is not None]
    if len(compared) < 2:
        return ["Fewer than two models can be compared; the notes say why."]
    best = [c for c in compared if _place(comparison, c) == 1]
    naive = min(compared, key=lambda c: c.iid)
    sentences = [_best(comparison, best, all_known=len(compared) == len(comparison.contenders))]
    sentences += _apart(comparison, best)
    if any(d.flips_iid for d in comparison.differences if d.worse == naive.name):
        sentences.append(_preferred(comparison, naive, best[0]))
    return sentences + _flips(comparison)


def where_words(comparison: Comparison) -> str:
    """Return which rows the ranking loss is about."""
    if comparison.by != "cvc":
        return WORDS[comparison.by]
    if not comparison.new:
        return "with the bias of cross-validation added back"
    return f"for new groups of {_and([visible(name) for name in comparison.new])}"


def _place(comparison: Comparison, contender: Contender) -> int | None:
    return {"e0": contender.rank_e0, "loco": contender.rank_loco, "cvc": contender.rank_cvc}[
        comparison.by
    ]


def _preferred(comparison: Comparison, naive: Contender, best: Contender) -> str:
    """Return which model the score that ignores clusters prefers, and its place in the ranking."""
    where = where_words(comparison)
    if comparison.by == "cvc" and best.iid > naive.iid:
        return (
            f"Plain CV prefers {naive.name} ({number(naive.iid)} vs {number(best.iid)}); {where} "
            f"{best.name} is better ({number(best.cvc)} vs {number(naive.cvc)})."
        )
    return (
        f"Ignoring clusters, {naive.name} looks best ({number(naive.iid)}); {where} its place is "
        f"{_place(comparison, naive)}."
    )


def _best(comparison: Comparison, best: Sequence[Contender], all_known: bool) -> str:
    word = loss_words(comparison.loss)
    end = "highest" if is_greater_better(comparison.loss) else "lowest"
    has = f"has the {end}" if len(best) == 1 else f"have the same {end}"
    who = f"{_and([c.name for c in best])} {has} {word}"
    if comparison.by == "loco":
        return (
            f"Which model is best on new clusters is not known. {who} {WORDS['loco']}: "
            f"{number(best[0].loco)}."
        )
    among = "" if all_known else f"Of those whose {MEASURES[comparison.by]} is known, "
    if comparison.by == "cvc":
        return f"{among}{who} {where_words(comparison)}: CV_c is {number(best[0].cvc)}."
    return f"{among}{who} on new clusters: {number(best[0].e0)}."


def _apart(comparison: Comparison, best: Sequence[Contender]) -> list[str]:
    """Return how sure the lead of the best model is over those that do not equal it."""
    first = best[0].name
    own = [d for d in comparison.differences if d.better == first and d.difference != 0]
    it, lead = ("It", "its lead") if len(best) == 1 else (first, f"the lead of {first}")
    sentences = {
        "yes": "{it} is better than {others} beyond the noise.",
        "no": "{Lead} over {others} is within the noise.",
        "not known": "Whether {lead} over {others} is noise cannot be determined from so few clusters.",
        "not comparable": "{Lead} over {others} says nothing: these audits are not comparable.",
    }
    worse = {verdict: [d.worse for d in own if _beyond(d) == verdict] for verdict in sentences}
    return [
        sentence.format(
            it=it, lead=lead, Lead=lead[0].upper() + lead[1:], others=_and(worse[verdict])
        )
        for verdict, sentence in sentences.items()
        if worse[verdict]
    ]


def _and(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def _flips(comparison: Comparison) -> list[str]:
    pairs = [d for d in comparison.differences if d.comparable]
    flipped = [d for d in pairs if d.flips_iid]
    if not pairs:
        return []
    if not flipped:
        same = "the pair" if len(pairs) == 1 else "all pairs"
        return [
            f"Scores that ignore clusters put {same} in the same order as {MEASURES[comparison.by]}."
        ]
    sentence = (
        f"Scores that ignore clusters put {len(flipped)} of {len(pairs)} pairs in the opposite order "
        f"to {MEASURES[comparison.by]}"
    )
    if not any(d.noise_known for d in flipped):
        return [f"{sentence}."]
    sure = sum(d.beyond_noise for d in flipped)
    return [f"{sentence}; in {sure} of them the difference is beyond the noise."]


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the ranking, and the differences of all pairs."""
    tables = [_corrected(comparison) if comparison.by == "cvc" else _ranking(comparison)]
    return [*tables, _differences(comparison)] if comparison.differences else tables


def _ranking(comparison: Comparison) -> Table:
    return Table(
        caption=f"Ranking by {loss_words(comparison.loss)} {WORDS[comparison.by]}",
        header=("place", "model", "e0", INTERVAL, "LOCO (place)", "IID (place)", "leakage"),
        rows=tuple(
            (
                str(_place(comparison, c) or "–"),
                c.name,
                number(c.e0),
                interval_words(c.e0_interval),
                f"{number(c.loco)} ({c.rank_loco or '–'})",
                f"{number(c.iid)} ({c.rank_iid or '–'})",
                c.leakage,
            )
            for c in comparison.contenders
        ),
    )


def _corrected(comparison: Comparison) -> Table:
    return Table(
        caption=f"Ranking by {loss_words(comparison.loss)} {where_words(comparison)}",
        header=("place", "model", "CV_c", INTERVAL, "grouped CV", "CV (place)", "e0"),
        rows=tuple(
            (
                str(c.rank_cvc or "–"),
                c.name,
                number(c.cvc),
                interval_words(c.cvc_interval),
                number(c.grouped),
                f"{number(c.iid)} ({c.rank_iid or '–'})",
                number(c.e0),
            )
            for c in comparison.contenders
        ),
    )


def _differences(comparison: Comparison) -> Table:
    score = "CV_c" if comparison.by == "cvc" else comparison.by
    shown = number if comparison.by == "cvc" else percent
    return Table(
        caption=f"Differences of {score}; the intervals hold for all pairs at once",
        header=(
            *("better", "worse", "difference", INTERVAL, "beyond noise", "paired"),
            *("order by IID", f"change places at a {comparison.axis} of"),
        ),
        rows=tuple(
            (
                d.better,
                d.worse,
                number(d.difference),
                interval_words(d.interval),
                _beyond(d),
                "yes" if d.paired else "no",
                *(_orders(d, shown) if d.comparable else ("–", "–")),
            )
            for d in comparison.differences
        ),
    )


def _beyond(difference: Difference) -> str:
    if not difference.comparable:
        return "not comparable"
    if difference.difference == 0:
        return "equal"
    if not difference.noise_known:
        return "not known"
    return "yes" if difference.beyond_noise else "no"


def _orders(difference: Difference, shown: Callable[[float], str]) -> tuple[str, str]:
    """Return whether the naive score orders two models alike, and where they change places."""
    order = "reversed" if difference.flips_iid else "the same"
    at, searched_to = difference.flips_at, difference.flips_searched_to
    if at is not None:
        return order, shown(at)
    return order, "not known" if searched_to is None else f"none up to {shown(searched_to)}"


def readable_names(comparison: Comparison) -> Comparison:
    """Return the comparison with names that are visible, short and still different."""
    names: dict[str, str] = {}
    for contender in comparison.contenders:
        text = shorten(visible(contender.name), LONGEST_NAME)
        others = (f"{text} ({n})" for n in count(2))
        names[contender.name] = next(
            name for name in chain([text], others) if name not in names.values()
        )
    return replace(
        comparison,
        contenders=tuple(replace(c, name=names[c.name]) for c in comparison.contenders),
        differences=tuple(
            replace(d, better=names[d.better], worse=names[d.worse]) for d in comparison.differences
        ),
        notes=tuple(_readable_note(note, names) for note in comparison.notes),
    )


def _readable_note(note: str, names: dict[str, str]) -> str:
    """Return a note with its quoted names replaced by those that are shown."""
    for name, shown in names.items():
        note = note.replace(repr(name), repr(shown))
    return visible(note)


# --- A comparison of audited models as a document with a chart

ROW = 46
#: How many models a card names.
MOST_NAMED = 4


def comparison_document(comparison: Comparison) -> Document:
    """Return a comparison as a document, the best model first."""
    comparison = readable_names(comparison)
    sentences = explain_comparison(comparison)
    figure = comparison_figure(comparison)
    return Document(
        title=TITLE,
        answer=Answer(
            sentence=" ".join(sentences[:2]),
            premise=" ".join(sentences[2:]),
            unit=_unit(comparison),
            tiles=_tiles(comparison),
        ),
        sections=(
            Section(
                heading="",
                blocks=(figure, *comparison_tables(comparison)),
                broad=True,
            ),
            Section(heading="Caveats", blocks=(*lists(comparison.notes),), broad=True),
        ),
        footer=f"mlflow-b3 {__version__}",
    )


def comparison_card(comparison: Comparison) -> str:
    """Return the answer of a comparison, its ranking and its figure as a part of a notebook."""
    return document.to_card(comparison_document(comparison))


def comparison_repr(comparison: Comparison) -> str:
    """Return the ranking on one line."""
    ranked = [
        f"{place}. {c.name} {number(_Shown.of(comparison.by, c).score)}"
        for place, c in enumerate(readable_names(comparison).contenders[:MOST_NAMED], start=1)
    ]
    more = len(comparison.contenders) - MOST_NAMED
    rest = f", and {more} more" if more > 0 else ""
    return f"<Comparison by {MEASURES[comparison.by]}: {', '.join(ranked)}{rest}>"


def _unit(comparison: Comparison) -> str:
    word = loss_words(comparison.loss)
    better = "larger" if is_greater_better(comparison.loss) else "smaller"
    return f"{word[0].upper()}{word[1:]} {where_words(comparison)}; {better} is better"


def _tiles(comparison: Comparison) -> tuple[Tile, ...]:
    """Return the first models of the ranking."""
    shown = [(c, _Shown.of(comparison.by, c)) for c in comparison.contenders[:MOST_NAMED]]
    return tuple(
        Tile(
            label=f"{place}. {c.name}",
            value=number(s.score) + _gap(s),
            note=", ".join(filter(None, (interval_words(s.interval), f"reported {number(s.iid)}"))),
            colour="blue",
        )
        for place, (c, s) in enumerate(shown, start=1)
    )


def _gap(shown: "_Shown") -> str:
    """Return by how much the score differs from the reported one, as on the card of an audit."""
    if shown.score is None:
        return ""
    return f" ({signed(shown.score - shown.iid, beside=shown.score)})"


def _caption(comparison: Comparison) -> str:
    by_groups, best = "by the cluster ids as they are", "on new clusters"
    if comparison.by == "cvc":
        by_groups, best = "by folds of whole groups", f"corrected {where_words(comparison)}"
    return (
        f"One line for each model, the best first: the loss ignoring clusters (circle), {by_groups} "
        f"(square) and {best} (diamond, with its 95% interval for this model alone)."
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


def comparison_figure(comparison: Comparison) -> Figure:
    """Return the scores of all models on one axis, the best on new clusters first."""
    comparison = readable_names(comparison)
    rows = [(c, _Shown.of(comparison.by, c)) for c in comparison.contenders]
    grouped = "by whole groups" if comparison.by == "cvc" else "by cluster ids"
    told = [
        f"{_words(c, s)}, {grouped} {number(s.grouped)}, ignoring clusters {number(s.iid)}"
        for c, s in rows
    ]
    return Figure(
        name="comparison",
        title=f"{loss_words(comparison.loss)} of {len(rows)} audited models",
        alt="; ".join(told) + ".",
        caption=_caption(comparison),
        draw=partial(draw_comparison, comparison=comparison),
        height=ROW * len(rows),
    )


def draw_comparison(ax: "Axes", comparison: Comparison) -> None:
    """Draw the scores of all models on one axis, each below its name."""
    rows = [(c, _Shown.of(comparison.by, c)) for c in comparison.contenders]
    core = [value for _, s in rows for value in (s.iid, s.grouped, s.score)]
    ends = [end for _, s in rows for end in s.interval or ()]
    set_axes(ax, axis_for(core, ends, label=loss_words(comparison.loss)))
    ax.set_ylim(0, len(rows))
    by_groups, best = "by the cluster ids as they are (LOCO)", "on new clusters (e0)"
    if comparison.by == "cvc":
        by_groups, best = "by folds of whole groups (grouped CV)", "corrected (CV_c)"
    entries: list[Artist] = []
    for place, (_, s) in enumerate(rows):
        y = len(rows) - place - 0.72
        if s.interval is not None:
            spread(ax, y, *s.interval, BLUE)
        entries = [
            mark(ax, s.iid, y, "o", ORANGE, label="ignoring clusters (IID)"),
            mark(ax, s.grouped, y, "s", GREEN, label=by_groups),
            mark(ax, s.score, y, "D", BLUE, label=f"{best}, with its 95% interval"),
        ]
    for place, (c, s) in enumerate(rows):
        write_in_row(ax, len(rows) - place - 0.28, _words(c, s))
    legend(ax, entries)


def _words(contender: Contender, shown: "_Shown") -> str:
    ends = f" ({interval_words(shown.interval)})" if shown.interval else ""
    return f"{contender.name}: {number(shown.score)}{ends}"


# --- A comparison of audited models as text and as files

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison as text for a terminal."""
    return document.to_text(comparison_document(comparison))


def comparison_csv(comparison: Comparison) -> str:
    """Return the ranking as a CSV table with all digits.

    Text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    file = io.StringIO()
    rows = [c.to_dict() for c in comparison.contenders]
    pairs = ("loco_interval", "e0_interval", "cvc_interval")
    names = chain.from_iterable(
        (f"{n[:-9]}_low", f"{n[:-9]}_high") if n in pairs else (n,) for n in rows[0]
    )
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        cells = ((row[n] or (None, None)) if n in pairs else (row[n],) for n in row)
        writer.writerow(map(_no_formula, chain.from_iterable(cells)))
    return file.getvalue()


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell


def comparison_files(comparison: Comparison) -> dict[str, str]:
    """Return the text of every file of a comparison, by name."""
    made = comparison_document(comparison)
    return {
        "comparison.csv": comparison_csv(comparison),
        "comparison.html": document.to_html(made),
        "comparison.json": comparison.to_json(),
        "comparison.md": document.to_markdown(made),
        # names on the page are shortened already; the figure as a file shortens the full ones itself
        "comparison.svg": comparison_figure(comparison).svg(standalone=True),
    }
