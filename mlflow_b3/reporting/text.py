"""An audit report in plain words."""

import textwrap
from collections.abc import Iterable

from mlflow_b3.estimation.fragments import estimate_fragments, seen_share
from mlflow_b3.hypothesis import LeakageTest
from mlflow_b3.reporting.report import AuditReport

WIDTH = 92
#: The split rate at which doses are compared when none was given.
DOSE_RATE = 0.2
DOSE_WORDS = {
    "uniform": "at a cut drawn uniformly",
    "halves": "in halves",
    "singles": "with one row breaking off",
}
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


def to_text(report: AuditReport) -> str:
    """Return the whole report as text for a terminal."""
    sections = [
        _title(report),
        "\n".join(_scores(report)),
        _paragraphs("In words", explain(report)),
        _sensitivity(report),
        _distribution(report),
        _paragraphs("Findings", [str(finding) for finding in report.findings]),
        _paragraphs("How it was done", [describe_method(report)]),
    ]
    return "\n\n".join(section for section in sections if section)


def to_markdown(report: AuditReport) -> str:
    """Return the report as Markdown, for MLflow's artifact view."""
    scores = "\n".join(
        f"| {_escaped(name)} | {number(value)} | {_range(ends)} |"
        for name, value, ends in score_rows(report)
    )
    findings = [
        f"- **{f.code}** {_escaped(f.title)}: {_escaped(f.message)}" for f in report.findings
    ]
    tables = [
        f"| {axis} | e0 | 95 % interval |\n|---|---|---|\n"
        + "\n".join(
            f"| {percent(error)} | {number(e0)} | {_range((low, high))} |"
            for error, e0, low, high in rows
        )
        for axis, rows in sensitivity_tables(report)
    ]
    parts = [
        f"# Leakage audit of {_escaped(report.settings.model)}",
        "| score | value | 95 % interval |\n|---|---|---|\n" + scores,
        "\n\n".join(_escaped(sentence) for sentence in explain(report)),
        *tables,
        *_distribution_table(report),
        "## Findings\n\n" + ("\n".join(findings) if findings else "None."),
        "## How it was done\n\n" + _escaped(describe_method(report)),
    ]
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    for character in "\\`*_{}[]<>|#":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")


def _distribution(report: AuditReport) -> str:
    """Return the distribution of the loss as lines, where it was estimated."""
    if report.distribution is None:
        return ""
    lines = ["Share of rows with a loss above a threshold"]
    lines.append("  loss above     on the folds   on new clusters   95 % interval")
    lines += [
        f"  {number(t):<14} {percent(before):<14} {percent(after):<17} "
        f"{percent(low)} – {percent(high)}"
        for t, before, after, low, high in _distribution_rows(report)
    ]
    return "\n".join(lines)


def _distribution_table(report: AuditReport) -> list[str]:
    if report.distribution is None:
        return []
    rows = [
        f"| {number(t)} | {percent(before)} | {percent(after)} | {percent(low)} – {percent(high)} |"
        for t, before, after, low, high in _distribution_rows(report)
    ]
    head = "| loss above | rows on the folds | rows of new clusters | 95 % interval |\n|---|---|---|---|"
    return ["\n".join([head, *rows])]


def _distribution_rows(report: AuditReport) -> list[tuple[float, float, float, float, float]]:
    d = report.distribution
    assert d is not None
    return list(zip(d.thresholds, d.uncorrected, d.exceeding, d.low, d.high, strict=True))


def score_rows(
    report: AuditReport,
) -> list[tuple[str, float | None, tuple[float, float] | None]]:
    """Return the scores of a report with their names and intervals."""
    word = loss_words(report.settings.loss)
    rows: list[tuple[str, float | None, tuple[float, float] | None]] = [
        (f"{word} ignoring clusters (IID)", report.iid, None),
        (f"{word} on noisy clusters (LOCO)", report.loco, report.loco_interval),
        (f"{word} on new clusters (e0)", report.e0, report.e0_interval),
    ]
    if report.e0_guaranteed is not None:
        rows.append(("e0 is at least, up to noise", report.e0_guaranteed, None))
    return rows


def explain(report: AuditReport) -> list[str]:
    """Return the audit's answer in sentences that need no statistics to read."""
    sentences = [_answer(report), _inflation(report), explain_test(report.test), _tipping(report)]
    return sentences + ([report.p0_bound.statement] if report.p0_bound else [])


def _answer(report: AuditReport) -> str:
    settings = report.settings
    word = loss_words(settings.loss)
    low, high = (number(end) for end in report.e0_interval)
    if report.e0 is None:
        premise = (
            f"If at most half of the rows carry a wrong {settings.cluster!r} or belong to split "
            "clusters"
            if settings.claim is None
            else _premise(report)
        )
        return (
            f"How well this model does on new clusters is not known. {premise}, its {word} there "
            f"lies between {low} and {high} (95 %). The tables below say what each rate would mean. "
            + _search(report)
            + (_doses(report) if settings.pattern == "unknown" else "")
        )
    return (
        f"{_premise(report)}, this model's {word} on clusters it has never seen is about "
        f"{number(report.e0)} (95 % interval {low} to {high}). This value is corrected for bias; it "
        "is less certain than the uncorrected one, not more."
        + (_doses(report) if settings.pattern == "fragments" else "")
        + (
            " It is the value for half the bound on the leaked rows; the interval is for none to "
            "all of them, and with the confidence of the bound it holds with 90 %."
            if report.p0_source == "mixture"
            else ""
        )
    )


def _doses(report: AuditReport) -> str:
    """Return what the loss would be if clusters split in other ways than they were broken."""
    losses, settings = report.fragments, report.settings
    if losses is None or not losses.doses:
        return ""
    low, high = (seen_share(r, report.folds) for r in settings.claim or (DOSE_RATE, DOSE_RATE))
    answer = estimate_fragments(losses, seen_share=(low, high), bound=settings.loss_bound)
    rate = f" At a split rate of {percent(DOSE_RATE)} it would be about {number(answer.e0)}"
    subject = " This holds" if settings.claim else rate
    others = " and ".join(
        f"{number(dose.e0)} if they split {DOSE_WORDS[dose.fragments]}" for dose in answer.doses
    )
    stated = DOSE_WORDS.get(settings.fragments, "by the sizes given")
    return f"{subject} if clusters split {stated}; it would be about {others}."


def _search(report: AuditReport) -> str:
    low, high = report.search.identified
    if report.search.flat:
        return (
            f"The loss curve itself does not tell the rate: it fits every leaked share up to "
            f"{percent(high)} equally well."
        )
    return (
        f"Of the loss curve itself, leaked shares of {percent(low)} to {percent(high)} of the "
        "training rows cannot be excluded; that is no estimate of the share."
    )


def _premise(report: AuditReport) -> str:
    settings = report.settings
    assert settings.claim is not None
    low, high = settings.claim
    rate = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    if report.p0_source == "cluster_error":
        return f"If {rate} of the rows carry a wrong {settings.cluster!r}"
    if report.p0_source == "split_rate":
        return f"If {rate} of the rows belong to a cluster that was split in two ids"
    if report.p0_source == "mixture":
        rate = f"at most {percent(high)}"
    back = "as many rows leaked back"
    if settings.p0_validation is not None:
        back = f"{percent(settings.p0_validation)} of the validation rows to its training clusters"
    return f"If {rate} of the training rows of a fold belong to its validation clusters, and {back}"


def _inflation(report: AuditReport) -> str:
    word = loss_words(report.settings.loss)
    ignoring = f"Ignoring clusters, cross-validation reports {number(report.iid)} as {word}"
    if report.e0 is None or report.inflation is None:
        return f"{ignoring}; by the cluster ids as they are it is {number(report.loco)}." + (
            " The second is too good as well if ids are wrong." if report.test.rejected else ""
        )
    gap = report.e0 - report.iid
    naive = f"too good by {number(gap)}" if gap > 0 else f"not too good (correction {number(gap)})"
    return (
        f"{ignoring}, which is {naive}. By the cluster ids as "
        f"they are it is {number(report.loco)}, "
        + (
            f"still too good by {number(report.inflation)}"
            + (" if half of that bound leaked." if report.p0_source == "mixture" else ".")
            if report.inflation > 0
            else f"which leakage has not made too good (correction {number(report.inflation)})."
        )
    )


def explain_test(test: LeakageTest) -> str:
    """Return what the leakage test says, and what it does not say."""
    null = "that this learner gains nothing from having seen other rows of the validation clusters"
    ends = f"90 % interval {number(test.interval[0])} to {number(test.interval[1])}"
    found = f"an effect of {number(test.detectable)} would have been found in four of five cases"
    if test.rejected:
        return (
            f"The leakage test rejects {null} (p = {test.pvalue:.2g}; in small training sets they "
            f"lower the loss by {number(test.effect)}, {ends}). So if ids are wrong, the score is "
            f"too good. It does not say that ids are wrong. {_form(test)}; {found}."
        )
    return (
        f"The leakage test does not reject {null} (p = {test.pvalue:.2g}). In small training sets "
        f"they lowered the loss by {number(test.effect)}, {ends}. This is no proof that leakage is "
        f"harmless, nor that ids are right: {found}, smaller ones less often. Rejecting would have "
        f"said that wrong ids make the score too good, not that ids are wrong. {_form(test)}."
    )


def _form(test: LeakageTest) -> str:
    units = f"{test.units} {test.unit}"
    if test.method == "welch":
        return f"It is the published form, on {units} without a row in common"
    scope = ", so it speaks of new rows of these clusters" if test.unit == "rows" else ""
    if test.method == "permutation":
        return (
            f"It is the permutation form, on {units} and {test.arrangements} rearrangements, whose "
            "null hypothesis is stronger: that rows do not depend on their cluster at all"
        )
    return f"It is the paired form, on {units}{scope}"


def _tipping(report: AuditReport) -> str:
    if report.threshold is None:
        return "No threshold was given for this loss, so there is no tipping point."
    what = f"the threshold of {number(report.threshold)}"
    if not report.settings.threshold_given:
        what = f"the {number(report.threshold)} of the best constant answer"
    if report.loco >= report.threshold:
        return f"The model's loss reaches {what} even without leakage: it fails as it is."
    most = percent(max(report.sensitivity.error or (0.5,)))
    tips = [_tips("of the rows carried a wrong id", report.tipping_cluster_error, most)]
    if report.fragment_sensitivity is not None:
        condition = "of the rows belonged to split clusters"
        tips.append(_tips(condition, report.tipping_split_rate, "100 %"))
    return f"Tipping point: the loss on new clusters would reach {what} {'; '.join(tips)}."


def _tips(condition: str, value: float | None, most: str) -> str:
    if value is None:
        return f"not even if {most} {condition}"
    return f"if {percent(value)} {condition}"


def describe_method(report: AuditReport) -> str:
    """Return how the numbers were made, for the record."""
    s = report.settings
    draws = "without replacement at full size" if s.scheme == "subset" else "with replacement"
    return (
        f"{s.n_rows} rows, {s.n_clusters} clusters by {s.cluster!r}, {_folds(report)}, "
        f"loss {s.loss}, {s.fits} refits by route '{s.refit}', drawn {draws}, estimator "
        f"{_estimator(report)}, curve sharpness at most "
        f"{report.curve.sharpness}, seed {s.seed}, data {s.data_digest}, mlflow-b3 {s.version}."
    )


def _estimator(report: AuditReport) -> str:
    s = report.settings
    if s.pattern == "fragments":
        return "mixture"
    options = [f"{name} {value}" for name, value in s.method_options.items()]
    if report.sketch_error is not None:
        options.append(f"error of sketching at most {report.sketch_error:.2g} times e0")
    return f"{s.method} ({', '.join(options)})" if options else s.method


def _folds(report: AuditReport) -> str:
    repeats = report.settings.repeats
    count = f"{len(report.folds) // repeats} folds"
    return count if repeats == 1 else f"{count} assigned anew {repeats} times"


def _title(report: AuditReport) -> str:
    title = f"Leakage audit of {report.settings.model}"
    return f"{title}\n{'=' * len(title)}"


def _range(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{number(ends[0])} – {number(ends[1])}"


def _scores(report: AuditReport) -> list[str]:
    rows = score_rows(report)
    width = max(len(name) for name, _, _ in rows)
    return [
        f"  {name:<{width}}  {number(value):>8}   {_range(ends)}".rstrip()
        for name, value, ends in rows
    ]


def sensitivity_tables(
    report: AuditReport,
) -> list[tuple[str, list[tuple[float, float, float, float]]]]:
    """Return (axis, rows of error, e0, low, high) for the pattern, or for both when unknown."""
    pattern = report.settings.pattern
    curves = {"cluster error": report.sensitivity, "split rate": report.fragment_sensitivity}
    if pattern != "unknown":
        del curves["cluster error" if pattern == "fragments" else "split rate"]
    wanted = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
    tables = []
    for axis, curve in curves.items():
        if curve is not None and curve.error is not None:
            rows = zip(curve.error, curve.e0, curve.low, curve.high, strict=True)
            tables.append((axis, [row for row in rows if row[0] in wanted]))
    return tables


def _sensitivity(report: AuditReport) -> str:
    tables = []
    for axis, rows in sensitivity_tables(report):
        lines = [f"What each {axis} would mean", f"  {axis:<14} {'e0':>8}   95 % interval"]
        for error, e0, low, high in rows:
            lines.append(f"  {percent(error):<14} {number(e0):>8}   {_range((low, high))}")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _paragraphs(title: str, paragraphs: Iterable[str]) -> str:
    wrapped = [
        textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
        for text in paragraphs
    ]
    return "\n".join([title, *wrapped]) if wrapped else ""
