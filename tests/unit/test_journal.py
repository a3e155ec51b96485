"""Audits that are killed, cut off or run out of disk go on where they stopped, to the same digit."""

import fcntl
import json
import logging
import os
import resource
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
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
    journal = tmp_path / "new" / "folder" / "audit.jsonl"
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
    journal = tmp_path / "audit.jsonl"
    whole = run(clinic, journal, **options)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    assert run(clinic, journal, **options) == whole


def test_lines_are_json_and_hold_no_pickle(clinic, tmp_path):
    journal = tmp_path / "audit.jsonl"
    report = run(clinic, journal)
    head, *fits = map(json.loads, journal.read_text().splitlines())
    assert head["format"] == "mlflow-b3 journal 1"
    assert head["audit"]["seed"] == "0"
    assert len(fits) == report.settings.fits
    assert oct(journal.stat().st_mode & 0o777) == "0o600"


# --- killed ---------------------------------------------------------------------------------------


def test_killed_at_twenty_random_moments_it_comes_to_the_same_end(clinic, tmp_path):
    """Each start is killed with -9 after a random time, and the next one goes on."""
    model = Patient(0.004)
    whole = run(clinic, model=model)
    journal, answer = tmp_path / "audit.jsonl", tmp_path / "report.json"
    rng = np.random.default_rng(0)
    kills, progress = 0, []
    while kills < KILLS:
        child = os.fork()
        if not child:
            try:
                answer.write_text(run(clinic, journal, model=model).to_json())
            finally:
                os._exit(0)
        before = _size(journal)
        wanted = before + rng.integers(1, 900)  # bytes, so that some deaths tear a line
        while _size(journal) < wanted and not answer.exists():
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            assert ended is None or answer.exists(), "the audit failed"
            time.sleep(0.0005)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
        progress.append(_size(journal))
        if answer.exists():
            answer.unlink()
            journal.unlink()
    assert run(clinic, journal, model=model) == whole
    assert len(set(progress)) > KILLS / 2, "the kills came at different moments"


def _size(path):
    return path.stat().st_size if path.exists() else 0


def test_cut_off_at_twenty_random_bytes_it_comes_to_the_same_end(clinic, tmp_path):
    journal = tmp_path / "audit.jsonl"
    whole = run(clinic, journal, loss="log")
    text = journal.read_bytes()
    for cut in np.random.default_rng(1).integers(0, len(text), KILLS):
        journal.write_bytes(text[:cut])
        assert run(clinic, journal, loss="log") == whole
        assert sorted(journal.read_bytes().splitlines()) != []


def test_a_damaged_line_is_passed_over_and_its_refit_made_again(clinic, tmp_path, fitted, caplog):
    journal = tmp_path / "audit.jsonl"
    whole = run(clinic, journal)
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[5] = lines[5].replace(b'"seconds":', b'"seconds":1')
    lines[7] = b"\x00" * 40 + b"\n"
    journal.write_bytes(b"".join(lines))
    made = len(fitted)
    with caplog.at_level(logging.WARNING):
        assert run(clinic, journal) == whole
    assert len(fitted) == made + 2
    assert caplog.text.count("A damaged line of the journal") == 2


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
    journal = tmp_path / "audit.jsonl"
    clinic = clinic.assign(sick=clinic.disease)
    run(clinic, journal)
    before = journal.read_bytes()
    with pytest.raises(InputError, match="is of another audit") as refusal:
        run(clinic, journal, **change)
    assert told in str(refusal.value)
    assert journal.read_bytes() == before


def test_a_journal_of_other_rows_is_refused(clinic, tmp_path):
    journal = tmp_path / "audit.jsonl"
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
        "journal": tmp_path / "j.jsonl",
    }
    module.write_text(code.format(""))
    audit(None, clinic, **options)
    audit(None, clinic, **options)
    module.write_text(code.format("var_smoothing=0.5"))
    with pytest.raises(InputError, match="code was "):
        audit(None, clinic, **options)


def test_what_refits_do_not_depend_on_may_change(clinic, tmp_path, fitted):
    """Another leaked share, method, threshold or number of workers: all without a single refit."""
    journal = tmp_path / "audit.jsonl"
    run(clinic, journal)
    made = len(fitted)
    for change in ({"cluster_error": 0.2}, {"method": "basis"}, {"threshold": 0.4}, {"n_jobs": 2}):
        assert run(clinic, journal, **change) == run_without_counting(clinic, fitted, **change)
    assert len(fitted) == made


def run_without_counting(clinic, fitted, **change):
    before = list(fitted)
    report = run(clinic, **change)
    fitted[:] = before
    return report


def test_a_larger_budget_goes_on_from_a_smaller_one(clinic, tmp_path, fitted):
    journal = tmp_path / "audit.jsonl"
    run(clinic, journal, budget=100)
    made = len(fitted)
    larger = run(clinic, journal, budget=160)
    assert len(fitted) - made < 100
    assert larger == run(clinic, budget=160)


def test_a_time_keeps_the_plan_that_it_made(clinic, tmp_path):
    """A faster machine would plan more refits; what was begun is finished as it was planned."""
    journal = tmp_path / "audit.jsonl"
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
        held = os.open(folder.used[0], os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
    with caplog.at_level(logging.WARNING):
        report = run(clinic, folder, model=model)
    assert report.e0 is not None
    assert "Finished refits are not kept for another start" in caplog.text
    if held is not None:
        os.close(held)


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
    with pytest.raises(InputError, match="is no journal of this version"):
        run(clinic, table)
    assert table.read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize("journal", [3, True, "/proc/none/audit.jsonl", "a\0b"])
def test_a_path_that_cannot_be_is_refused(clinic, journal):
    with pytest.raises(InputError, match="journal="):
        run(clinic, journal)


def test_two_audits_at_a_time_cannot_share_a_journal(clinic, tmp_path):
    journal = tmp_path / "audit.jsonl"
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
    with pytest.raises(InputError, match="cannot be told from other models"):
        run(clinic, tmp_path / "audit.jsonl", model=Secretive())


# --- a full disk ----------------------------------------------------------------------------------


def test_on_a_full_disk_the_audit_comes_to_its_end_and_a_later_start_goes_on(clinic, tmp_path):
    """The limit is the kernel's: files may not grow beyond 6 KB in the first process."""
    journal, answer = tmp_path / "audit.jsonl", tmp_path / "answer"
    whole = run(clinic)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
        same = run(clinic, journal) == whole
        answer.write_text(str(same))
        os._exit(0)
    os.waitpid(child, 0)
    assert answer.read_text() == "True"
    assert 3000 < _size(journal) <= 6000
    assert journal.read_bytes().endswith(b"\n"), "no line is torn"
    assert run(clinic, journal) == whole


def test_a_disk_that_is_full_for_a_while_costs_nothing(clinic, tmp_path, monkeypatch, caplog):
    journal = tmp_path / "audit.jsonl"
    write, calls = os.pwrite, []

    def full_for_a_while(number, text, place):
        calls.append(place)
        if 10 < len(calls) < 30:
            raise OSError(28, "No space left on device")
        return write(number, text, place)

    monkeypatch.setattr(os, "pwrite", full_for_a_while)
    with caplog.at_level(logging.WARNING):
        report = run(clinic, journal)
    assert caplog.text.count("cannot be written ([Errno 28] No space left on device)") == 1
    assert len(journal.read_text().splitlines()) == report.settings.fits + 1


def test_no_room_for_a_single_line_is_told_before_the_first_refit(clinic, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        run(clinic, tmp_path / "audit.jsonl")


def test_a_report_from_a_journal_is_the_report(clinic, tmp_path):
    """Nothing in it says that it was made in two goes."""
    journal = tmp_path / "audit.jsonl"
    first, second = run(clinic, journal), run(clinic, journal)
    assert first == second
    assert without_time(first) == without_time(second)


def without_time(report) -> str:
    """Return a report as text, but for when it was made."""
    return replace(report, settings=replace(report.settings, measured_at=None)).to_json()
