"""The report as a page: what is on it and in which order, and that nothing can be slipped into it."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from example_reports import (
    REPORT,
    SHOWS_NOTHING,
    changed,
    linked,
    lower_bound,
    report,
    split,
    unknown,
)

from mlflow_b3 import AuditReport, Finding, InputError, LossDistribution, P0Bound
from mlflow_b3.linkage.rows import SuspiciousRow
from mlflow_b3.reporting.charts import charts_of
from mlflow_b3.reporting.pages import to_html, to_markdown
from mlflow_b3.reporting.paper import REFERENCES, describe_for_paper
from mlflow_b3.reporting.phrases import LONGEST_NAME, is_mixture, readable
from mlflow_b3.reporting.sentences import LIMITS, SOURCES, VACUOUS, open_questions

pytestmark = pytest.mark.newest

BOUND = P0Bound(
    p0_upper=0.05,
    confidence=0.95,
    threshold_share=0.1,
    n_training=1600,
    n_validation=400,
    design_effect=1.0,
    vacuous=False,
)
MIXTURE = report(p0_source="mixture", p0_bound=BOUND, settings={"claim": (0.0, 0.05)})
SUSPICIOUS = SuspiciousRow(
    id="R1", row=0, leak_probability=0.9, loss=0.1, influence=0.01, mate_id="R2"
)
#: An audit for every place that a leaked share can come from.
AUDITS = {
    "cluster_error": REPORT,
    "p0": report(p0_source="p0", settings={"claim": (0.01, 0.03), "p0_validation": 0.1}),
    "split_rate": split(),
    "none": unknown(),
    "mixture": MIXTURE,
    "resolved_rows": linked("resolved_rows", suspicious=(SUSPICIOUS,)),
    "partition_samples": linked("partition_samples"),
    "linkage_quality": linked("linkage_quality", "upper"),
    "match_probability": linked("match_probability", "uncalibrated"),
    "match_column": report(p0_source="match_column", settings={"claim": (0.01, 0.3)}),
    "lower bound": lower_bound(),
}
every_audit = pytest.mark.parametrize("audit", AUDITS.values(), ids=AUDITS)


class Page(HTMLParser):
    """The elements, attributes and texts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


# --- what is on the page --------------------------------------------------------------------------


def test_the_answer_comes_first_and_the_sections_follow_in_order():
    page = to_html(REPORT)
    sections = [
        "Inflated",
        "Reported error rate 0.150, on new patients 0.300 (+0.150).",
        "<dt><bdi>Reported</bdi></dt><dd>0.150",
        "<dt><bdi>By patient_id</bdi></dt><dd>0.250",
        "<dt><bdi>On new patients</bdi></dt><dd>0.300 (+0.150)",
        "If 10% of the rows carry a wrong",
        "<dt>Tipping point</dt>",
        "<dt>Promotion</dt>",
        "<li><code>B315</code> few refits</li>",
        "<h2>The scores</h2>",
        "<h2>The measured loss curve and its extrapolation</h2>",
        "<h2>What other rates of wrong ids would mean</h2>",
        "<h2>Findings</h2>",
        "<summary><h2>In words and numbers</h2>",
        "<summary><h2>What the loss curve says about the leaked share</h2>",
        "<summary><h2>The leakage test</h2>",
        "<summary><h2>Folds</h2>",
        "<summary><h2>How it was done</h2>",
        "<summary><h2>Settings</h2>",
        "<summary><h2>For a paper</h2>",
        "<summary><h2>What is not known</h2>",
    ]
    places = [page.index(section) for section in sections]
    assert places == sorted(places)


@every_audit
def test_every_audit_has_its_pictures_its_sentences_and_a_small_page(audit):
    html = to_html(audit)
    page = Page(html)
    more = (audit.p0_source == "none") + is_mixture(audit)
    assert page.tags.count("svg") == page.tags.count("figure") == 3 + more
    assert audit.search.statement in page.text
    assert "The leakage test" in page.text
    assert describe_for_paper(audit) in page.text
    assert all(sentence in page.text for sentence in (*open_questions(audit), *LIMITS))
    assert "None" not in page.text.replace("None.", "")
    assert len(html.encode()) < 100_000


def test_split_clusters_have_the_measured_curve_beside_the_mixture():
    html = to_html(split())
    assert html.index("a mixture</title>") < html.index("The measured loss curve</title>")
    assert "not read from this curve" in Page(html).text
    assert "measured_curve" not in to_html(REPORT)
    assert "measured_curve" not in charts_of(split()), "plots/loss_curve.svg is the mixture"


def test_findings_come_with_their_codes():
    page = Page(to_html(REPORT)).text
    assert "B315 few refits Each level rests on 3 refits." in page
    assert "Findings None." in Page(to_html(report(findings=()))).text


def test_the_evidence_of_a_linkage_and_its_rows_are_told():
    page = Page(to_html(AUDITS["resolved_rows"])).text
    assert "Leak shares by the test" in page
    assert "Rows to review first" in page
    assert "R2 (0%)" in page


def test_a_distribution_of_the_loss_has_its_table():
    distribution = LossDistribution(
        thresholds=(1.0,), exceeding=(0.4,), low=(0.3,), high=(0.5,), uncorrected=(0.2,)
    )
    page = Page(to_html(report(distribution=distribution))).text
    assert "Share of rows with a loss above a threshold" in page
    assert "30% – 50%" in page


def test_the_digest_of_the_folds_is_among_the_settings():
    assert "folds digest f0" in Page(to_html(report(settings={"folds_digest": "f0"}))).text
    assert "folds digest" not in Page(to_html(REPORT)).text


def test_the_bound_from_the_rows_is_told():
    assert BOUND.statement in Page(to_html(MIXTURE)).text


@pytest.mark.parametrize(("repeats", "first"), [(1, "1"), (5, "1.1")])
def test_up_to_twenty_folds_are_shown_one_by_one(repeats, first):
    folds = tuple(replace(REPORT.folds[0], loss=0.01 * place) for place in range(20))
    page = Page(to_html(report(folds=folds, settings={"repeats": repeats})))
    assert f"loss {first} 1600 400 160 40 0 0.000" in page.text
    assert "How the" not in page.text


def test_many_folds_are_summarised():
    folds = tuple(replace(REPORT.folds[0], loss=0.001 * place) for place in range(200))
    page = Page(to_html(report(folds=folds)))
    assert "How the 200 folds vary" in page.text
    assert "smallest 1600 400 160 40 0 0.000" in page.text
    assert "median 1600 400 160 40 0 0.100" in page.text
    assert "The 10 folds with the largest loss, of 200" in page.text
    assert "200 1600 400 160 40 0 0.199" in page.text
    assert page.tags.count("tr") < 60


def test_folds_without_a_measured_loss_say_so():
    folds = tuple(replace(fold, loss=None) for fold in REPORT.folds * 5)
    assert "unknown" in Page(to_html(report(folds=folds))).text


def test_markdown_has_the_new_sections_too():
    markdown = to_markdown(REPORT)
    assert "\n\n**▲ Inflated.** Reported error rate 0.150" in markdown
    assert "| fold | training rows |" in markdown
    for heading in ("For a paper", "What is not known", "What an audit does not detect"):
        assert f"\n\n## {heading}\n\n" in markdown


def test_text_starts_with_the_answer():
    lines = REPORT.to_text().splitlines()
    assert lines[3].startswith(
        "▲ Inflated: reported error rate 0.150, on new patients 0.300 (+0.150)."
    )
    assert "If 10% of the rows carry a wrong" in lines[4]


# --- a page that needs nothing and does nothing ---------------------------------------------------


@every_audit
def test_the_page_has_no_scripts_no_links_to_elsewhere_and_nothing_from_there(audit):
    page = Page(to_html(audit))
    assert not {"script", "img", "iframe", "link", "object", "form", "base"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not [n for n in names if n.startswith("on") or n in ("src", "style", "action")]
    assert all(v.startswith("#b3-") for n, v in page.attributes if n == "href")
    urls = [value for _, value in page.attributes if "//" in (value or "")]
    assert set(urls) <= {"http://www.w3.org/2000/svg"}  # a name, which nobody opens


def test_the_page_forbids_itself_everything_but_its_styles():
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert ("content", policy) in Page(to_html(REPORT)).attributes
    style = re.search(r"<style>(.*?)</style>", to_html(REPORT), re.DOTALL).group(1)
    assert "url(" not in style
    assert "@import" not in style


def test_the_page_has_colours_for_dark_screens_and_for_paper():
    html = to_html(REPORT)
    assert "prefers-color-scheme:dark" in html
    assert html.index("@media print{.b3-document{") > html.index("prefers-color-scheme:dark")
    assert "figure,tr,dd{break-inside:avoid}" in html
    paper = html[html.index("@media print{\ncolor-scheme") :]
    assert "details::details-content{content-visibility:visible" in paper  # folded ones are printed


def test_tables_have_captions_and_headings():
    page = Page(to_html(REPORT))
    assert page.tags.count("caption") == page.tags.count("table") - 1  # settings have a heading
    assert ("scope", "col") in page.attributes
    assert ("scope", "row") in page.attributes
    assert ("lang", "en") in page.attributes


def test_ids_are_unique():
    ids = [value for name, value in Page(to_html(unknown())).attributes if name == "id"]
    assert len(set(ids)) == len(ids)


def test_template_and_styles_belong_to_the_package():
    for name in ("document.html.j2", "document.css"):
        assert files("mlflow_b3.reporting").joinpath(name).is_file()


# --- names from outside ---------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]>",
    "</style><style>*{display:none}",
    "</title></svg></main>",
    "<!-- ",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt;",
    "javascript:alert(1)",
    "line\nbreak\r\nhere",
    "x\u202egnp.exe\u2066",
    "zero\u200bwidth\u00ad",
    "nul\x00bell\x07",
    "\ud800 alone",
    "שלום",
]


def named(name: str) -> AuditReport:
    """Return a report in which everything that others chose has a name."""
    settings = {
        **dict.fromkeys(("model", "uri", "run_id", "model_id", "cluster", "target"), name),
        **dict.fromkeys(("loss", "refit", "data_source", "sample_weight", "fragments"), name),
        **dict.fromkeys(("data_digest", "version", "method"), name),
        "features": (name, name),
        "refit_notes": (name,),
        "method_options": {name: name},
    }
    row = replace(SUSPICIOUS, id=name, mate_id=name)
    finding = Finding(code="B312", message=name)
    return report(settings=settings, suspicious=(row,), findings=(finding,))


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_adds_an_element_or_an_attribute(name):
    plain, page = Page(to_html(named("plain"))), Page(to_html(named(name)))
    assert page.tags == plain.tags
    assert [key for key, _ in page.attributes] == [key for key, _ in plain.attributes]


@pytest.mark.parametrize("name", HOSTILE[:9])
def test_names_are_shown_as_they_are(name):
    assert Page(to_html(named(name))).text.count(name) > 10


@pytest.mark.parametrize("name", HOSTILE)
def test_hidden_characters_are_named_and_lines_stay_whole(name):
    html = to_html(named(name))
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069\u00ad]", html
    )
    html.encode("utf-8")
    if "\u202e" in name:
        assert "x[U+202E]gnp.exe[U+2066]" in Page(html).text


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_a_line_or_adds_markup_in_markdown(name):
    plain, markdown = to_markdown(named("plain")), to_markdown(named(name))
    assert markdown.count("\n") == plain.count("\n")

    def special(text: str) -> list[str]:
        return sorted(re.findall(r"[`*_{}\[\]<>|#~&$]", re.sub(r"\\.", "", text)))

    assert special(markdown) == special(plain)


@pytest.mark.parametrize("link", ["https://x.org/a", "www.x.org", "someone@x.org"])
def test_no_name_becomes_a_link_in_markdown(link):
    assert link not in to_markdown(named(link))


def test_long_names_are_shortened_in_the_middle_and_keep_the_page_small():
    name = "begin" + "x" * 100_000 + "end"
    html = to_html(named(name))
    assert len(html.encode()) < 200_000
    assert "begin" in Page(html).text
    assert re.search(r"x … x+end", Page(html).text)


def test_readable_names_change_no_number_and_no_ordinary_name():
    assert readable(REPORT) == REPORT
    long = readable(report(settings={"cluster": "c" * 500})).settings.cluster
    assert len(long) < LONGEST_NAME + 5


# --- files ----------------------------------------------------------------------------------------


def test_the_page_is_returned_and_written(tmp_path):
    path = tmp_path / "report.html"
    assert REPORT.to_html(path) == REPORT.to_html() == path.read_text(encoding="utf-8")
    assert REPORT.to_html(str(path)) == to_html(REPORT)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "is a folder"),
        ("nowhere/report.html", "the folder 'nowhere' does not exist"),
        ("nul\x00.html", "path="),
        (3, "path=3 is not the path of a file"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(path, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(reason)):
        REPORT.to_html(path)
    assert not list(tmp_path.iterdir())


# --- a paragraph for a paper, and limitations -----------------------------------------------------

EVIDENCE = {
    "cluster_error": "It was assumed that 10% of the rows carry a wrong identifier. This rate was stated",
    "p0": "1% to 3% of the training rows of a fold belong to its validation clusters, with 10% of "
    "the validation rows from training clusters. This rate was stated",
    "split_rate": "It was assumed that 40% of the rows belong to clusters that were split",
    "none": "The number of wrong identifiers was not known.",
    "mixture": "at most 5% with 95% confidence, with as many rows leaking back",
    "resolved_rows": "For a sample of 120 rows, all other rows of the same true cluster were looked up "
    "by hand; according to these, 30% (95% interval 20% to 40%) of the validation rows",
    "partition_samples": "According to posterior samples of the record linkage, 30% (95% interval",
    "linkage_quality": "According to the published quality of the record linkage, at most 40% of the",
    "match_probability": "unchecked match probabilities of the record linkage, about 30% of the validation rows",
    "match_column": "unchecked match probabilities, about 15.5% of the rows carry a wrong identifier",
}


@pytest.mark.parametrize("source", EVIDENCE)
def test_the_paragraph_names_the_evidence(source):
    assert EVIDENCE[source] in describe_for_paper(AUDITS[source])


def test_the_paragraph_has_what_tripod_asks_for():
    text = describe_for_paper(REPORT)
    for part in (
        "The 2000 rows came from 200 clusters by 'patient_id'.",
        "with the rows of a cluster kept together (5 folds)",
        "a variant of the binomial block bootstrap (Barnes and Dubrawski, 2017, 2019; training sets "
        "drawn without replacement, rows leaking in both directions, another estimator)",
        "estimator power; 420 refits in total",
        "0.150 when clusters were ignored, 0.250 (95% interval 0.220 to 0.280)",
        "0.300 (95% interval 0.260 to 0.340) on new clusters after correction",
        "All of the interval is below the threshold of 0.450. Tipping point:",
        "A one-sided test (paired, 200 rows) rejected the hypothesis that the model gains nothing",
        "mlflow-b3 0.1.0 (seed 7, data digest 0123456789abcdef)",
    ):
        assert part in text
    assert len(REFERENCES) == 3


def test_the_paragraph_claims_no_more_than_the_audit():
    assert "did not reject" in describe_for_paper(report(test=SHOWS_NOTHING))
    assert "between 0.220 and 0.800 (95% confidence) on new clusters" in describe_for_paper(
        unknown()
    )
    assert "lower bounds" in describe_for_paper(lower_bound())
    assert "at least about 0.300" in describe_for_paper(lower_bound())
    assert "extrapolated" not in describe_for_paper(split())
    assert "half of the limit" in describe_for_paper(MIXTURE)
    assert "half of the limit" in describe_for_paper(AUDITS["linkage_quality"])
    vacuous = changed(MIXTURE, p0_bound=replace(BOUND, vacuous=True), e0=None)
    assert "excluded nothing" in describe_for_paper(vacuous)
    assert "threshold" not in describe_for_paper(report(settings={"threshold_given": False}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"folds_given": True}}, "on given folds that kept the rows of a cluster"),
        (
            {"folds": (replace(REPORT.folds[0], shared_clusters=3),) * 2},
            "on given folds with up to 3 clusters on both sides (2 folds)",
        ),
        (
            {"folds": REPORT.folds[:1], "settings": {"folds_given": True}},
            "evaluated by validation on one given fold that kept the rows of a cluster together, and",
        ),
    ],
)
def test_the_paragraph_says_whose_folds_they_were(changes, words):
    assert words in describe_for_paper(report(**changes))


def test_the_paragraph_tells_in_what_the_method_differs_from_the_published_one():
    published = {"scheme": "replace", "method": "basis", "p0_validation": 0.0}
    text = describe_for_paper(report(settings=published))
    assert "with the binomial block bootstrap (Barnes and Dubrawski, 2017, 2019):" in text
    text = describe_for_paper(report(settings={**published, "p0_validation": None}))
    assert "a variant of the binomial block bootstrap" in text
    assert "2019; rows leaking in both directions):" in text


@pytest.mark.parametrize(
    ("audit", "words"),
    [
        (report(settings={"n_validated": 4}), "4 clusters are too few to generalise to new ones."),
        (
            report(settings={"n_validated": 4}, threshold=0.2),
            "This is uncertain, because 4 clusters",
        ),
        (unknown(), "For every share of rows in split clusters up to 50%, it was estimated"),
        (MIXTURE, "after correction. This value assumes half of the limit"),
        (
            report(e0=0.27),
            "at least 0.280 (one-sided 95% limit of a secant), above the estimate here.",
        ),
        (REPORT, "in small training sets, they improved the loss by 0.080"),
        (
            linked("linkage_quality", "upper", e0=None, e0_interval=(0.2, 1.0)),
            "(linkage_quality) did not exclude that all have.",
        ),
    ],
)
def test_the_paragraph_keeps_nothing_back(audit, words):
    assert words in describe_for_paper(audit)


def test_every_source_leaves_something_open():
    assert set(SOURCES) == set(EVIDENCE)
    for source in EVIDENCE:
        assert SOURCES[source] in open_questions(AUDITS[source])


@pytest.mark.parametrize(
    ("audit", "question"),
    [
        (lower_bound(), "How much larger the loss on new clusters is"),
        (report(test=SHOWS_NOTHING), "Whether this model benefits from leaked rows at all."),
        (report(settings={"n_validated": 4}), "How much a new cluster differs from these 4"),
        (report(settings={"refit_agreement": 0.5}), "on all rows, they agree in only 50%."),
        (report(), "they could not be compared"),
        (report(e0_secant=None), "does not show that it is convex"),
        (
            report(folds=(replace(REPORT.folds[0], shared_clusters=3),)),
            "on folds that keep known clusters together",
        ),
    ],
)
def test_what_an_audit_could_not_find_out_is_listed(audit, question):
    assert question in " ".join(open_questions(audit))


def test_evidence_that_excludes_nothing_leaves_everything_open():
    vacuous = linked("linkage_quality", "upper", e0=None, p0=None, inflation=None)
    assert VACUOUS in open_questions(vacuous)
    assert "leaked share not known: linkage_quality excludes nothing" in Page(to_html(vacuous)).text


def test_refits_that_agree_leave_nothing_open_about_them():
    assert "logged" not in " ".join(open_questions(report(settings={"refit_agreement": 0.99})))
