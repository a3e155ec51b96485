"""The papers' experiments run by name, read UCI's files as they are, and their learner is the one that they say it is."""

import importlib
import os
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.svm import LinearSVC

pytestmark = pytest.mark.newest

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "examples" / "papers"
DATA = Path(os.environ.get("B3_SHARED", ROOT.parent / "shared")) / "data"


@pytest.fixture
def papers(monkeypatch):
    """Return the modules of examples/papers by name."""
    monkeypatch.syspath_prepend(PAPERS)
    return importlib.import_module


@pytest.fixture
def reproduce(papers):
    """Run the command in this process."""

    def run(*words):
        return CliRunner().invoke(papers("reproduce").main, words)

    return run


def shared(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(
            f"{path} is not there: the data of the published experiments are not ours to give"
        )
    return path


def test_every_experiment_is_listed_by_name_with_what_it_is(reproduce, papers):
    listed = reproduce("--experiment", "list").output.splitlines()
    names = papers("reproduce").EXPERIMENTS
    assert [line.split()[0] for line in listed] == list(names)
    assert all(len(line.split()) > 3 for line in listed)


def test_every_experiment_has_a_file(papers):
    for name in papers("reproduce").EXPERIMENTS:
        assert (PAPERS / f"{name.replace('-', '_')}.py").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--experiment", "hart"], "experiment='hart' is not known; choose one of heart, census"),
        (
            ["--experiment", "synthetic", "--quick", "yes"],
            "quick='yes' is not usable; give true or",
        ),
        (["--experiment", "synthetic", "--seed", "-1"], "seed='-1' is not usable; give a whole"),
        (["--experiment", "synthetic", "--budget", "soon"], "budget='soon'"),
        (["--experiment", "heart"], "https://archive.ics.uci.edu/dataset/45"),
        (["--experiment", "heart", "--data", "none.zip"], "data='none.zip' does not exist"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(reproduce, words, told):
    result = reproduce(*words)
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())


@pytest.mark.usefixtures("mlflow_store")
def test_mlflow_runs_an_experiment_and_records_tables_metrics_and_pictures():
    """The command of the documentation, in a process of its own."""
    words = ["-e", "reproduce", "--env-manager", "local"]
    given = ["-P", "experiment=synthetic", "-P", "quick=true", "-P", "budget=1s"]
    done = subprocess.run(
        [sys.executable, "-m", "mlflow", "run", ".", *words, *given],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    assert "| estimator | published | oracle: error |" in done.stdout
    assert "The budget has passed; tables have what was done by then." in done.stdout
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.data.params["experiment"] == "synthetic"
    assert 30 < run.data.metrics["e0"] < 40
    assert run.data.metrics["oracle/LOCO/error"] > 10
    files = {file.path for file in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
    assert {"tables.md", "published-synthetic.png", "published-synthetic-curves.png"} <= files


def test_the_synthetic_problem_has_the_losses_of_the_authors(papers):
    """e_0 … e_3 are published; tolerances are four standard errors of 4,000 refits, and of the drawn rows."""
    problem = papers("synthetic").make(10, 0)
    sampler = papers("protocol").Sampler(
        problem=problem,
        own=problem.training,
        leaked=problem.validation,
        scored=problem.validation,
        rng=np.random.default_rng(0),
    )
    for leaked, published in enumerate(papers("synthetic").PUBLISHED_CURVE):
        losses = sampler.losses(4000, count=leaked)
        # 0.26 = 2·(100/3)·0.0039, as 50,000 rows have a slope of standard error 0.0039
        error = np.hypot(losses.std() / np.sqrt(4000), 0.26 if not leaked else 0)
        assert losses.mean() == pytest.approx(published, abs=4 * error)


@pytest.mark.usefixtures("mlflow_store")
def test_times_and_condition_numbers_have_the_published_order(reproduce):
    result = reproduce("--experiment", "conditioning", "--quick", "true")
    assert result.exit_code == 0, result.output
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    found = run.data.metrics
    assert found["condition/A/100"] > 1e6 * found["condition/A/10"]
    assert found["condition/basis/100"] < found["condition/basis/10"]
    assert reproduce("--experiment", "solution-times", "--quick", "true").exit_code == 0


@pytest.mark.usefixtures("mlflow_store")
def test_the_published_simulation_of_corrected_cross_validation_runs_within_a_budget(reproduce):
    result = reproduce("--experiment", "cvc-simulation", "--quick", "true", "--budget", "1s")
    assert result.exit_code == 0, result.output
    assert "| with GPBoost | 0.6566 |" in result.output
    assert "The budget has passed; tables have what was done by then." in result.output
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.data.metrics["log_loss_10_GenNew"] > 0.5
    files = {file.path for file in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
    assert {"tables.md", "samples.csv"} <= files


def test_an_experiment_with_networks_says_what_it_needs(reproduce, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    result = reproduce("--experiment", "network-likelihoods", "--quick", "true")
    assert result.exit_code == 2
    assert "this experiment needs torch: pip install torch" in result.output


@pytest.mark.flavours
@pytest.mark.usefixtures("mlflow_store")
def test_networks_with_random_effects_have_all_criteria(reproduce, papers, monkeypatch):
    pytest.importorskip("torch", reason="needs the extra pytorch")
    cases = papers("network_cases")
    monkeypatch.setattr(cases, "EPOCHS", 4)  # the figures are for the experiment
    monkeypatch.setattr(cases, "FIRST_EPOCHS", 2)
    result = reproduce("--experiment", "network-likelihoods", "--quick", "true")
    assert result.exit_code == 0, result.output
    for words in ("effects by identity, mean over the effect", "field by pairs", "CV + true bias"):
        assert words in result.output
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    found = run.data.metrics
    assert found["identities_groups_sd"] > 0
    assert found["regions_pairs_log_loss_averaged_GenErr"] > 0.5
    assert np.isfinite(found["identities_none_log_loss_f_score"])


@pytest.mark.flavours
def test_networks_that_train_at_once_do_not_see_each_other(papers):
    """The same targets and rows give each network its own weights, and the same at any time."""
    torch = pytest.importorskip("torch", reason="needs the extra pytorch")
    cases = papers("network_cases")
    X = torch.as_tensor(cases.identities(0).X)
    both, again = cases.Networks(2, 0)(X), cases.Networks(2, 0)(X)
    assert torch.equal(both, again)
    assert not torch.allclose(both[0], both[1])


def test_rows_in_real_new_regions_share_less_the_farther_they_are(papers):
    """Far from all observed places nothing is known of them, so they have the mean of any place."""
    cases, rng = papers("network_cases"), np.random.default_rng(0)
    places, mean = rng.uniform(0, 10, size=(60, 2)), np.zeros(60)
    far = cases.FieldTruth(mean, places, 1e6 + places, 1.2, 3.0, 0)(50, 0)
    np.testing.assert_allclose(far.deployed, 0.5, atol=1e-9)
    here = cases.FieldTruth(mean, places, places, 1.2, 3.0, 0)(50, 0)
    # means over 40 of the 60 places themselves
    assert np.corrcoef(here.deployed[:, 0], here.expected.mean(axis=1))[0, 1] > 0.9
    np.testing.assert_array_equal(far.target, here.target)


def test_the_published_simulation_draws_the_densities_of_both_losses(papers):
    simulation, rng = papers("cvc_simulation"), np.random.default_rng(0)
    found = {
        f"{loss} {size} {kind}": rng.normal(0.6, 0.1, size=30)
        for loss in ("log loss", "error rate")
        for size in (10, 7, 2)
        for kind in simulation.COLUMNS
    }
    panels = simulation.draw_densities(found).axes
    assert [panel.get_xlabel().partition(",")[0] for panel in panels] == ["log loss", "error rate"]
    # a density and a mean of CV, of both CV_c and of new groups, and the mean of GenNew
    assert [len(panel.lines) for panel in panels] == [9, 9]
    assert len(simulation.draw_models(found).axes) == 2


def test_a_sketch_sums_the_columns_of_the_matrix(papers):
    conditioning = papers("conditioning")
    matrix, ends = conditioning.leakage_matrix(20), np.linspace(0, 20, 8).round().astype(int)
    expected = np.column_stack(
        [
            matrix[:, 0],
            *(matrix[:, a + 1 : b + 1].sum(1) for a, b in pairwise(ends)),
        ]
    )
    np.testing.assert_allclose(conditioning.sketched(20), expected, atol=1e-12)


# --- UCI's files as they are


def test_heart_reads_the_four_files_of_uci(papers, tmp_path):
    """The prepared table, written in UCI's codes, is read back; other columns' gaps drop a patient."""
    heart = papers("heart")
    table = heart.read_table(shared("heart.csv"))
    coded = table.assign(ca="?", num=(table["num"] == "pos") * 2)
    for column, names in heart.CODES.items():
        codes = {name: str(float(code)) for code, name in names.items()}
        coded[column] = table[column].map({**codes, "missing": "?"})
    archive = tmp_path / "heart+disease.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for hospital in heart.HOSPITALS:
            part = coded.loc[table["country"] == hospital, heart.COLUMNS]
            gap = part.iloc[:1].assign(chol="?")
            lines = pd.concat([part.astype(object), gap]).to_csv(header=False, index=False)
            file.writestr(f"processed.{hospital}.data", lines)
    read = heart.read_table(archive)
    assert len(read) == 741
    ours, expected = heart.load(archive, 1), heart.load(shared("heart.csv"), 1)
    assert (len(ours.training), len(ours.validation)) == (479, 262)
    order = np.lexsort(ours.X.T), np.lexsort(expected.X.T)
    assert ours.X.shape == expected.X.shape
    assert sorted(ours.X.sum(1)) == pytest.approx(sorted(expected.X.sum(1)))
    assert ours.y[order[0]].sum() == expected.y[order[1]].sum()


def test_census_reads_adult_data_as_uci_delivers_it(papers, tmp_path):
    """No header, a blank after each comma, and ? for what is missing."""
    line = "39, State-gov, 77516, Bachelors, 13, Never-married, {}, Not-in-family, White, Male, 2174, 0, 40, {}, {}"
    rows = [("?", "India", "<=50K"), ("Sales", "Canada", ">50K"), ("Sales", "Germany", ">50K")]
    path = tmp_path / "adult.data"
    path.write_text("\n".join(line.format(*row) for row in rows) + "\n\n")
    problem = papers("census").load(path, 1)
    assert problem.y.tolist() == [-1, 1, 1]
    assert problem.validation.tolist() == [0, 1]
    assert problem.training.tolist() == [2]


def test_parkinson_and_dota_read_files_without_a_header(papers, tmp_path):
    rng = np.random.default_rng(0)
    voices = np.column_stack(
        [np.repeat(np.arange(1, 9), 2), rng.normal(size=(16, 27)), np.arange(16) % 2]
    )
    path = tmp_path / "train_data.txt"
    np.savetxt(path, voices, delimiter=",", fmt="%g")
    problem = papers("parkinson").load(path, 1)
    assert problem.X.shape == (16, 27)  # 26 features and a constant
    assert len(problem.validation) == 4  # subjects 1 and 5
    games = np.column_stack(
        [[-1, 1, 1], [1, 1, 1], [2, 2, 2], [1, 2, 3], rng.integers(-1, 2, (3, 113))]
    )
    path = tmp_path / "dota2Train.csv"
    np.savetxt(path, games, delimiter=",", fmt="%d")
    problem = papers("dota2").load(path, 1)
    assert problem.X.shape == (3, 114)  # 113 heroes and a constant
    assert problem.validation.tolist() == [2]


@pytest.mark.parametrize(
    ("name", "file", "sizes"),
    [
        ("heart", "heart.csv", (479, 262)),
        ("census", "census.csv", (30368, 221)),
        ("parkinson", "parkinson.csv", (780, 260)),
        ("dota2", "dota2.csv.gz", (6289, 4005)),
    ],
)
def test_data_sets_have_the_published_sizes(papers, name, file, sizes):
    problem = papers(name).load(shared(file), 1)
    assert (len(problem.training), len(problem.validation)) == sizes


def test_the_estimators_repeat_the_published_errors_on_the_authors_curves(papers):
    published = papers("published_curves")
    for name, expected in published.PUBLISHED.items():
        found = published.errors(shared(f"published/{name}.npz"))
        for method, error in expected.items():
            if method in ("LOCO", "Basis(7)"):  # without tuning: to the digits that are printed
                assert np.abs(found[method]).mean() == pytest.approx(error, rel=0.01)


def test_refits_of_a_level_are_cut_into_curves_that_share_none(papers):
    problem = papers("synthetic").make(2, 0, training=50, validation=50)
    # e_j = 1 - j/n', so the loss is 1 - p: straight, and e0 = 1 for every estimator that is linear
    share = 0.1 + 0.9 * np.linspace(0, 1, problem.levels)
    noise = np.random.default_rng(0).normal(scale=1e-3, size=(problem.levels, 40))
    losses = 1 - share[:, None] + noise
    by_size = {
        size: papers("refits").errors_by_size(problem, losses, size, e0=1.0) for size in (10, 20)
    }
    assert {size: len(errors["LOCO"]) for size, errors in by_size.items()} == {10: 4, 20: 2}
    np.testing.assert_allclose(
        by_size[10]["LOCO"], losses[0].reshape(4, 10).mean(axis=1) - 1, atol=1e-12
    )
    assert np.abs(by_size[20]["Basis(2)"]).max() < 1e-2


def test_the_svm_in_batches_is_linear_svc(papers):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 60, 5))
    y = np.where(X[..., 0] + rng.normal(size=(20, 60)) > 0, 1.0, -1.0)
    expected = [
        LinearSVC(dual=False, fit_intercept=False, tol=1e-9).fit(a, b).coef_[0]
        for a, b in zip(X, y, strict=True)
    ]
    np.testing.assert_allclose(papers("problem").fit_svm(X, y), expected, atol=1e-5)
