"""Audits that are killed, cut off or run out of disk go on where they stopped, to the same digit."""

import logging
import os
import resource
import signal
import sqlite3
import time
import zlib
from contextlib import closing, contextmanager

import numpy as np
import pytest
from example_reports import changed
from journals import change_journal, count_refits
from learners import Patient
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

from mlflow_b3 import InputError, audit, make_clinic
from mlflow_b3.measurement.journal import JournalFolder, usual_folder

pytestmark = pytest.mark.newest

SUBJECT = {"target": "disease", "cluster": "patient_id", "cluster_error": 0.1}
SMALL = {"folds": 3, "repeats": 1, "budget": 100}
KILLS = 20


@pytest.fixture(scope="module")
def clinic():
    return make_clinic(patients=30, records=4, cluster_error=0.1, seed=0).frame


@pytest.fixture
def fitted(monkeypatch):
    """Count the refits that are really made."""
    made = []
    fit = GaussianNB.fit

    def counted(self, X, y, sample_weight=None):
        made.append(len(X))
        return fit(self, X, y, sample_weight)

    monkeypatch.setattr(GaussianNB, "fit", counted)
    return made


def run(clinic, journal=None, model=None, **options):
    given = {**SUBJECT, **SMALL, **options}
    return audit(model or GaussianNB(), clinic, **given, journal=journal)


def test_the_same_audit_started_again_makes_no_refit_twice(clinic, tmp_path, fitted):
    plain = run(clinic)
    made = len(fitted)
    journal = tmp_path / "new" / "folder" / "audit.journal"
    assert run(clinic, journal) == plain
    assert len(fitted) == 2 * made
    assert run(clinic, str(journal)) == plain
    assert len(fitted) == 2 * made


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "log"},
        {"scheme": "replace"},
        {"test": "welch", "budget": 150},
        {"test": "permutation", "budget": 1900},
        {"distribution": True, "loss": "log"},
        {"model": DecisionTreeClassifier(max_features=1, random_state=0), "budget": 150},
    ],
    ids=str,
)
def test_half_a_journal_gives_the_whole_numbers(clinic, tmp_path, options):
    """Losses with all their bits, learners with chance, and every form of the test."""
    journal = tmp_path / "audit.journal"
    whole = run(clinic, journal, **options)
    change_journal(journal, "DELETE FROM outcomes WHERE rowid % 2")
    assert run(clinic, journal, **options) == whole


def test_a_journal_is_readable_by_its_owner_alone_and_holds_no_pickle(clinic, tmp_path):
    journal = tmp_path / "audit.journal"
    report = run(clinic, journal)
    with closing(sqlite3.connect(journal)) as connection:
        settings = dict(connection.execute("SELECT * FROM settings"))
        ((validation,),) = connection.execute("SELECT validation FROM outcomes LIMIT 1")
    assert settings["seed"] == "0"
    assert count_refits(journal) == report.settings.fits
    assert len(zlib.decompress(validation)) % 8 == 0, "floats and nothing else"
    assert oct(journal.stat().st_mode & 0o777) == "0o600"
    assert list(tmp_path.iterdir()) == [journal]


# --- killed ---------------------------------------------------------------------------------------


def test_killed_at_twenty_random_moments_it_comes_to_the_same_end(clinic, tmp_path):
    """Each start is killed with -9 after a random time, and the next one goes on."""
    options = {"model": Patient(0.004), "repeats": 5, "method": "dose"}
    whole = run(clinic, **options)
    journal, answer = tmp_path / "audit.journal", tmp_path / "report.json"
    rng = np.random.default_rng(0)
    kills, progress = 0, []
    while kills < KILLS:
        child = os.fork()
        if not child:
            try:
                answer.write_text(run(clinic, journal, **options).to_json())
            finally:
                os._exit(0)
        wanted = count_refits(journal) + rng.integers(1, 12)
        while count_refits(journal) < wanted and not answer.exists():
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            assert ended is None or answer.exists(), "the audit failed"
        time.sleep(rng.uniform(0, 0.01))  # two refits long, so that some deaths interrupt a write
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
        progress.append(count_refits(journal))
        if answer.exists():
            answer.unlink()
            journal.unlink()
            (tmp_path / "audit.journal-wal").unlink(missing_ok=True)
    assert run(clinic, journal, **options) == whole
    assert len(set(progress)) > KILLS / 2, "the kills came at different moments"


@pytest.mark.parametrize("how", ["cut off", "overwritten"])
def test_a_damaged_file_is_refused_or_gives_the_same_numbers(clinic, tmp_path, how):
    """Never other numbers; what is refused is left alone."""
    journal = tmp_path / "audit.journal"
    whole = run(clinic, journal, loss="log")
    sound, rng = journal.read_bytes(), np.random.default_rng(1)
    refusals = []
    for place in [8, *rng.integers(0, len(sound) - 8, KILLS - 1)]:
        end = b"" if how == "cut off" else rng.bytes(8) + sound[place + 8 :]
        journal.write_bytes(sound[:place] + end)
        damaged = journal.read_bytes()
        try:
            assert run(clinic, journal, loss="log") == whole
        except InputError as error:
            refusals.append(str(error))
            assert journal.read_bytes() == damaged
    assert all("is damaged" in told or "is not a journal" in told for told in refusals)
    assert len(refusals) == KILLS or (how == "overwritten" and refusals)


def test_a_damaged_refit_is_made_again(clinic, tmp_path, fitted, caplog):
    journal = tmp_path / "audit.journal"
    whole = run(clinic, journal)
    change_journal(journal, "UPDATE outcomes SET validation = x'0102' WHERE rowid IN (5, 7)")
    made = len(fitted)
    with caplog.at_level(logging.WARNING):
        assert run(clinic, journal) == whole
    assert len(fitted) == made + 2
    assert caplog.text.count("A damaged refit in the journal") == 2


# --- whose journal --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 1}, "seed was 0, is 1."),
        ({"loss": "brier"}, "loss was zero_one, is brier."),
        ({"scheme": "replace"}, "scheme was subset, is replace."),
        ({"levels": "uniform", "budget": 200}, "levels was optimal, is uniform."),
        ({"folds": 4, "budget": 150}, "folds was "),
        ({"fragments": "halves"}, "fragments was uniform, is halves."),
        ({"model": GaussianNB(var_smoothing=0.1)}, "model was GaussianNB "),
        ({"model": LogisticRegression()}, "model was GaussianNB "),
        ({"target": "sick"}, "target was disease, is sick."),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_journal_of_another_audit_is_refused_and_left_alone(clinic, tmp_path, change, told):
    journal = tmp_path / "audit.journal"
    clinic = clinic.assign(sick=clinic.disease)
    run(clinic, journal)
    before = journal.read_bytes()
    with pytest.raises(InputError, match="is of another audit") as refusal:
        run(clinic, journal, **change)
    assert told in str(refusal.value)
    assert journal.read_bytes() == before


def test_a_journal_of_other_rows_is_refused(clinic, tmp_path):
    journal = tmp_path / "audit.journal"
    run(clinic, journal)
    changed = clinic.copy()
    changed.loc[0, "age"] += 1e-9
    with pytest.raises(InputError, match=r"data was [0-9a-f]+, is [0-9a-f]+"):
        run(changed, journal)


def test_a_changed_trainer_is_another_audit(clinic, tmp_path, monkeypatch):
    module = tmp_path / "kept_training.py"  # a name that no other test imports
    code = "from sklearn.naive_bayes import GaussianNB\ndef train(X, y, ids):\n    return GaussianNB({}).fit(X, y)\n"
    monkeypatch.syspath_prepend(tmp_path)
    options = {
        **SUBJECT,
        **SMALL,
        "trainer": "kept_training:train",
        "journal": tmp_path / "j.journal",
    }
    module.write_text(code.format(""))
    audit(None, clinic, **options)
    audit(None, clinic, **options)
    module.write_text(code.format("var_smoothing=0.5"))
    with pytest.raises(InputError, match="code was "):
        audit(None, clinic, **options)


def test_what_refits_do_not_depend_on_may_change(clinic, tmp_path, fitted):
    """Another leaked share, threshold or number of workers: all without a single refit."""
    journal = tmp_path / "audit.journal"
    run(clinic, journal)
    made = len(fitted)
    for change in ({"cluster_error": 0.2}, {"threshold": 0.4}, {"n_jobs": 2}):
        assert run(clinic, journal, **change) == run_without_counting(clinic, fitted, **change)
    assert len(fitted) == made


def test_methods_that_read_the_same_curve_share_its_refits(clinic, tmp_path, fitted):
    journal = tmp_path / "audit.journal"
    run(clinic, journal, method="power")
    made = len(fitted)
    other = run(clinic, journal, method="basis")
    assert len(fitted) == made
    assert other == run_without_counting(clinic, fitted, method="basis")


def test_audits_by_dose_and_by_curve_share_the_refits_on_whole_folds(clinic, tmp_path, fitted):
    journal = tmp_path / "audit.journal"
    by_curve = run(clinic, journal, method="power")
    made = len(fitted)
    by_dose = run(clinic, journal, method="dose")
    assert len(fitted) - made == by_dose.settings.fits - 6, "three folds of clusters, three of rows"
    assert by_dose == run_without_counting(clinic, fitted, method="dose")
    assert (by_dose.loco, by_dose.iid) == pytest.approx((by_curve.loco, by_curve.iid))


def run_without_counting(clinic, fitted, **change):
    before = list(fitted)
    report = run(clinic, **change)
    fitted[:] = before
    return report


def test_a_larger_budget_goes_on_from_a_smaller_one(clinic, tmp_path, fitted):
    journal = tmp_path / "audit.journal"
    run(clinic, journal, budget=100)
    made = len(fitted)
    larger = run(clinic, journal, budget=160)
    assert len(fitted) - made < 100
    assert larger == run(clinic, budget=160)


def test_more_assignments_to_folds_go_on_from_fewer(clinic, tmp_path, fitted):
    journal = tmp_path / "audit.journal"
    options = {"repeats": None, "method": "dose"}
    run(clinic, journal, budget=20, **options)
    made = len(fitted)
    larger = run(clinic, journal, budget=60, **options)
    assert larger.settings.repeats > 1
    assert len(fitted) - made <= larger.settings.fits - 6
    assert larger == run(clinic, budget=60, **options)


def test_a_time_keeps_the_plan_that_it_made(clinic, tmp_path):
    """A faster machine would plan more refits; what was begun is finished as it was planned."""
    journal = tmp_path / "audit.journal"
    options = {"budget": "2s", "model": Patient(0.01)}
    run(clinic, journal, **options)
    finished = run(clinic, journal, **options)  # what the time cut off, on a busy machine
    assert run(clinic, journal, **options).curve == finished.curve


def test_in_a_folder_every_audit_has_a_journal_of_its_own(clinic, tmp_path, fitted):
    run(clinic, tmp_path)
    run(clinic, tmp_path, seed=1)
    assert len(list(tmp_path.iterdir())) == 2
    made = len(fitted)
    run(clinic, tmp_path)
    run(clinic, tmp_path, seed=1)
    assert len(fitted) == made


def test_journals_that_nobody_asked_for_go_when_they_are_not_needed(clinic, tmp_path):
    folder = JournalFolder(tmp_path / "cache")
    run(clinic, folder)
    (journal,) = folder.used
    assert journal.exists()
    folder.clear()
    assert not journal.exists()


@pytest.mark.parametrize("broken", ["no folder", "in use", "no identity"])
def test_a_journal_that_nobody_asked_for_is_done_without_where_it_cannot_be(
    clinic, tmp_path, caplog, broken
):
    """A home that is read-only, or the same audit twice at a time, is no reason to fail."""
    folder = JournalFolder(tmp_path / "cache")
    model = GaussianNB()
    if broken == "no folder":
        folder.path.write_text("a file")
    if broken == "no identity":
        model = Secretive()
    run(clinic, folder if broken == "in use" else None, model=GaussianNB())
    held = None
    if broken == "in use":
        held = sqlite3.connect(folder.used[0])
        held.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING):
        report = run(clinic, folder, model=model)
    assert report.e0 is not None
    assert "Finished refits are not kept for another run" in caplog.text
    if held is not None:
        held.close()


class Secretive(GaussianNB):
    def __reduce__(self):  # noqa: D105
        raise TypeError("no")

    def __deepcopy__(self, memory):  # noqa: D105
        return Secretive()


def test_the_usual_folder_is_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_B3_JOURNALS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert usual_folder() == tmp_path / "mlflow-b3" / "journals"
    monkeypatch.setenv("MLFLOW_B3_JOURNALS", str(tmp_path / "mine"))
    assert usual_folder() == tmp_path / "mine"


def test_a_file_that_is_no_journal_is_refused_and_left_alone(clinic, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="is not a journal of this version"):
        run(clinic, table)
    assert table.read_text() == "a,b\n1,2\n"


def test_a_database_of_somebody_else_is_refused_and_left_alone(clinic, tmp_path):
    other = tmp_path / "other.db"
    change_journal(other, "CREATE TABLE outcomes (a)")
    before = other.read_bytes()
    with pytest.raises(InputError, match="is not a journal of this version"):
        run(clinic, other)
    assert other.read_bytes() == before


def test_a_journal_of_an_earlier_version_is_named_as_such(clinic, tmp_path):
    journal = tmp_path / "audit.jsonl"
    line = '{"format":"mlflow-b3 journal 1","audit":{"seed":"0"},"crc":"00000000"}\n'
    journal.write_text(line)
    with pytest.raises(InputError, match=r"earlier version.*Remove it, or give the path"):
        run(clinic, journal)
    assert journal.read_text() == line


def test_an_empty_file_becomes_a_journal(clinic, tmp_path):
    journal = tmp_path / "audit.journal"
    journal.touch()
    assert count_refits(journal) == 0
    assert run(clinic, journal).settings.fits == count_refits(journal)


def test_journals_of_the_cache_are_forgotten_after_a_month(tmp_path):
    old = [tmp_path / name for name in ("a.sqlite", "a.sqlite-wal", "b.jsonl")]
    for path in [*old, tmp_path / "c.sqlite", tmp_path / "mine.txt"]:
        path.touch()
    for path in [*old, tmp_path / "mine.txt"]:
        os.utime(path, (0, 0))
    JournalFolder(tmp_path).forget_old()
    assert {path.name for path in tmp_path.iterdir()} == {"c.sqlite", "mine.txt"}


@pytest.mark.parametrize("journal", [3, True, "/proc/none/audit.journal", "a\0b"])
def test_a_path_that_cannot_be_is_refused(clinic, journal):
    with pytest.raises(InputError, match="journal="):
        run(clinic, journal)


def test_two_audits_at_a_time_cannot_share_a_journal(clinic, tmp_path):
    journal = tmp_path / "audit.journal"
    tried = []

    class Curious(GaussianNB):
        def fit(self, X, y):
            if not tried:
                tried.append(True)
                with pytest.raises(InputError, match="is in use by another audit"):
                    run(clinic, journal)
            return super().fit(X, y)

    run(clinic, journal, model=Curious())
    assert tried


def test_a_model_that_cannot_be_told_from_others_has_no_journal(clinic, tmp_path):
    with pytest.raises(InputError, match="cannot be distinguished from other models"):
        run(clinic, tmp_path / "audit.journal", model=Secretive())


# --- a full disk ----------------------------------------------------------------------------------


@contextmanager
def largest_file(size):
    """Let the kernel refuse files that grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_on_a_full_disk_the_audit_comes_to_its_end_and_a_later_start_goes_on(
    clinic, tmp_path, caplog
):
    journal = tmp_path / "audit.journal"
    whole = run(clinic)
    with largest_file(100_000), caplog.at_level(logging.WARNING):
        assert run(clinic, journal) == whole
    assert caplog.text.count("cannot be written (") == 1
    assert 0 < count_refits(journal) < whole.settings.fits
    assert run(clinic, journal) == whole
    assert count_refits(journal) == whole.settings.fits


def test_a_disk_that_is_full_for_a_while_costs_nothing(clinic, tmp_path, monkeypatch, caplog):
    journal = tmp_path / "audit.journal"
    room, made = resource.getrlimit(resource.RLIMIT_FSIZE), []
    fit = GaussianNB.fit

    def fit_and_make_room(self, X, y, sample_weight=None):
        made.append(len(X))
        if len(made) == 15:
            resource.setrlimit(resource.RLIMIT_FSIZE, room)
        return fit(self, X, y, sample_weight)

    monkeypatch.setattr(GaussianNB, "fit", fit_and_make_room)
    with largest_file(100_000), caplog.at_level(logging.WARNING):
        report = run(clinic, journal)
    assert caplog.text.count("cannot be written (") == 1
    assert count_refits(journal) == report.settings.fits


def test_no_room_at_all_is_told_before_the_first_refit(clinic, tmp_path, fitted):
    with largest_file(0), pytest.raises(InputError, match="cannot be written: "):
        run(clinic, tmp_path / "audit.journal")
    assert not fitted


def test_a_report_from_a_journal_is_the_report(clinic, tmp_path):
    """Nothing in it says that it was made in two goes."""
    journal = tmp_path / "audit.journal"
    first, second = run(clinic, journal), run(clinic, journal)
    assert first == second
    assert without_time(first) == without_time(second)


def without_time(report) -> str:
    """Return a report as text, but for when it was made."""
    return changed(report, settings={"measured_at": None}).to_json()
