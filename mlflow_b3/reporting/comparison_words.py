"""What a comparison of audited models says, in tables and in words."""

from dataclasses import replace

from mlflow_b3.comparing import Comparison, Contender
from mlflow_b3.reporting.tables import INTERVAL, Table
from mlflow_b3.wording import interval_words, loss_words, number, percent, visible

TITLE = "Audited models side by side"
LONGEST_NAME = 60
WORDS = {"e0": "on new clusters", "loco": "by the cluster ids as they are"}


def explain_comparison(comparison: Comparison) -> list[str]:
    """Return who is best, what of that is noise, and where naive scores say otherwise."""
    word = loss_words(comparison.loss)
    best = _first(comparison)
    value = best.e0 if comparison.by == "e0" else best.loco
    sentences = [f"{best.name} has the lowest {word} {WORDS[comparison.by]}: {number(value)}."]
    sentences += [_apart(comparison, best)] if comparison.differences else []
    naive = min(comparison.contenders, key=lambda c: c.iid)
    if naive.name != best.name:
        place = naive.rank_e0 if comparison.by == "e0" else naive.rank_loco
        told = "has no known place" if place is None else f"takes place {place}"
        sentences.append(
            f"Ignoring clusters, {naive.name} looks best ({number(naive.iid)}); "
            f"{WORDS[comparison.by]} it {told}."
        )
    return sentences + _flips(comparison)


def _first(comparison: Comparison) -> Contender:
    if comparison.by == "e0":
        return comparison.contenders[0]
    return min(comparison.contenders, key=lambda c: c.loco)


def _apart(comparison: Comparison, best: Contender) -> str:
    own = [d for d in comparison.differences if d.better == best.name]
    beyond = [d.worse for d in own if d.beyond_noise]
    within = [d.worse for d in own if not d.beyond_noise]
    parts = []
    if beyond:
        parts.append(f"It is better than {', '.join(beyond)} beyond the noise.")
    if within:
        parts.append(f"Its lead over {', '.join(within)} is within the noise.")
    return " ".join(parts)


def _flips(comparison: Comparison) -> list[str]:
    flipped = [d for d in comparison.differences if d.flips_iid]
    if not flipped:
        return [
            f"Scores that ignore clusters put all pairs in the same order as {_measure(comparison)}."
        ]
    sure = sum(d.beyond_noise for d in flipped)
    return [
        f"Scores that ignore clusters put {len(flipped)} of {len(comparison.differences)} pairs the "
        f"other way round than {_measure(comparison)}; in {sure} of them the difference is beyond the "
        "noise."
    ]


def _measure(comparison: Comparison) -> str:
    return "e0" if comparison.by == "e0" else "the score by cluster ids"


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the ranking, and the differences of all pairs."""
    tables = [_ranking(comparison)]
    return [*tables, _differences(comparison)] if comparison.differences else tables


def _ranking(comparison: Comparison) -> Table:
    return Table(
        title=f"Ranking by {loss_words(comparison.loss)} on new clusters",
        head=("place", "model", "e0", INTERVAL, "LOCO (place)", "IID (place)", "leakage"),
        rows=tuple(
            (
                "–" if c.rank_e0 is None else str(c.rank_e0),
                c.name,
                number(c.e0),
                interval_words(c.e0_interval),
                f"{number(c.loco)} ({c.rank_loco})",
                f"{number(c.iid)} ({c.rank_iid})",
                c.leakage,
            )
            for c in comparison.contenders
        ),
    )


def _differences(comparison: Comparison) -> Table:
    return Table(
        title=f"Differences of {comparison.by}; the intervals hold for all pairs at once",
        head=(
            *("better", "worse", "difference", INTERVAL, "beyond noise", "paired"),
            *("order by IID", f"change places at a {comparison.axis} of"),
        ),
        rows=tuple(
            (
                d.better,
                d.worse,
                number(d.difference),
                interval_words(d.interval),
                _yes(d.beyond_noise),
                _yes(d.paired),
                "reversed" if d.flips_iid else "the same",
                "none up to 50 %" if d.flips_at is None else percent(d.flips_at),
            )
            for d in comparison.differences
        ),
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def readable_names(comparison: Comparison) -> Comparison:
    """Return the comparison with visible and short names."""

    def short(name: str) -> str:
        text = visible(name)
        return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"

    return replace(
        comparison,
        contenders=tuple(replace(c, name=short(c.name)) for c in comparison.contenders),
        differences=tuple(
            replace(d, better=short(d.better), worse=short(d.worse)) for d in comparison.differences
        ),
        notes=tuple(visible(note) for note in comparison.notes),
    )
