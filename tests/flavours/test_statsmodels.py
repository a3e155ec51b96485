"""statsmodels: what the results remember is enough to train the model again, or it is an error."""

import mlflow
import numpy as np
import pytest
from mlflow.models import infer_signature

import mlflow_b3 as b3
from mlflow_b3.errors import InputError, ModelError, PredictionError
from mlflow_b3.refit import CannotRefit, load_model
from mlflow_b3.refit.learner import Rows

pytestmark = pytest.mark.flavours
sm = pytest.importorskip("statsmodels.api", reason="needs the extra statsmodels")
smf = pytest.importorskip("statsmodels.formula.api")
Binomial, Gamma, Poisson = sm.families.Binomial, sm.families.Gamma, sm.families.Poisson
links = sm.families.links

FEATURES = ["age", "bmi", "glucose"]


@pytest.fixture(scope="module")
def data(table):
    """Features, every kind of target and some columns more, in one table."""
    rng = np.random.default_rng(1)
    n = len(table.X)
    return table.X.assign(
        binary=table.binary,
        words=table.words,
        three=table.three,
        values=table.values,
        positive=np.exp(table.values / 6),
        counts=rng.poisson(np.exp(0.3 * table.X["age"])),
        weight=rng.uniform(0.5, 2, n),
        days=rng.integers(1, 9, n),
        ward=rng.choice(["a", "b", "c"], n),
        cluster=table.cluster,
    )


def learner_of(results, **options):
    return load_model(results, options=options).learner


def features(learner, data):
    """Return what an audit would give the learner."""
    if learner.inputs.as_array:
        return data[FEATURES].to_numpy()
    return data[list(learner.inputs.columns)]


def refit(learner, data, target):
    """Train on the rows of a table, as an audit does."""
    weight = data["weight"].to_numpy() if learner.weight_required else None
    X, ids = features(learner, data), np.arange(len(data))
    return learner.fit(Rows(X=X, target=data[target].to_numpy(), ids=ids, weight=weight))


def predict(predictor, X):
    """Return what statsmodels' own predict would."""
    if predictor.classes is None:
        return predictor.predict("value", X)
    given = predictor.predict("probability", X)
    return given[:, 1] if given.shape[1] == 2 else given


#: Target, and how the model is trained: d is the table, E its features with a constant.
MATRICES = {
    "OLS": ("values", lambda d, E: sm.OLS(d["values"], E).fit(cov_type="HC3")),
    "OLS of arrays": ("values", lambda d, E: sm.OLS(d["values"].values, E.values).fit()),
    "OLS without constant": (
        "values",
        lambda d, E: sm.OLS(d["values"].values, E.values[:, 1:]).fit(),
    ),
    "WLS": ("values", lambda d, E: sm.WLS(d["values"], E, weights=d["weight"]).fit()),
    "QuantReg": ("values", lambda d, E: sm.QuantReg(d["values"], E).fit(q=0.3)),
    "RLM": (
        "values",
        lambda d, E: sm.RLM(d["values"], E, M=sm.robust.norms.TukeyBiweight()).fit(conv="coefs"),
    ),
    "GLM Gaussian": ("values", lambda d, E: sm.GLM(d["values"], E).fit()),
    "GLM Gamma": (
        "positive",
        lambda d, E: sm.GLM(d["positive"], E, family=Gamma(links.Log())).fit(),
    ),
    "GLM Poisson, newton, freq_weights": (
        "counts",
        lambda d, E: sm.GLM(d["counts"], E, family=Poisson(), freq_weights=d["weight"]).fit(
            method="newton"
        ),
    ),
    "GLM probit": (
        "binary",
        lambda d, E: sm.GLM(d["binary"], E, family=Binomial(links.Probit())).fit(),
    ),
    "GLM cloglog": (
        "binary",
        lambda d, E: sm.GLM(d["binary"], E, family=Binomial(links.CLogLog())).fit(),
    ),
    "GLM stopped early": (
        "binary",
        lambda d, E: sm.GLM(d["binary"], E, family=Binomial()).fit(maxiter=2),
    ),
    "Logit": ("binary", lambda d, E: sm.Logit(d["binary"], E).fit(disp=0)),
    "Logit stopped early": (
        "binary",
        lambda d, E: sm.Logit(d["binary"], E).fit(method="bfgs", maxiter=4, disp=0),
    ),
    "Logit with penalty": (
        "binary",
        lambda d, E: sm.Logit(d["binary"], E).fit_regularized(alpha=1.5, disp=0),
    ),
    "Probit": ("binary", lambda d, E: sm.Probit(d["binary"], E).fit(disp=0)),
    "MNLogit": ("three", lambda d, E: sm.MNLogit(d["three"], E).fit(disp=0)),
    "Poisson": ("counts", lambda d, E: sm.Poisson(d["counts"], E).fit(disp=0)),
    "NegativeBinomial": (
        "counts",
        lambda d, E: sm.NegativeBinomial(d["counts"], E, loglike_method="nb1").fit(disp=0),
    ),
}
FORMULAS = {
    "formula": ("values", lambda d: smf.ols("values ~ age + ward", d).fit()),
    "formula that learns from rows": (
        "values",
        lambda d: smf.ols(
            "values ~ standardize(age) + bs(bmi, df=4) + C(ward):np.exp(glucose)", d
        ).fit(),
    ),
    "formula with quoted names": (
        "values",
        lambda d: smf.ols("Q('values') ~ Q('age') + I(bmi**2)", d).fit(),
    ),
    "formula Logit": ("binary", lambda d: smf.logit("binary ~ age + bmi", d).fit(disp=0)),
    "formula GLM of words": (
        "words",
        lambda d: smf.glm("words ~ age + bmi", d, family=Binomial()).fit(),
    ),
    "formula GLM of a category": (
        "binary",
        lambda d: smf.glm("C(binary) ~ age", d, family=Binomial()).fit(),
    ),
    "formula GLM with var_weights": (
        "counts",
        lambda d: smf.glm("counts ~ age", d, family=Poisson(), var_weights=d["weight"]).fit(),
    ),
    "formula MNLogit": ("three", lambda d: smf.mnlogit("three ~ age", d).fit(disp=0)),
}


@pytest.mark.filterwarnings("ignore::statsmodels.tools.sm_exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [*MATRICES, *FORMULAS])
def test_refit_on_the_original_rows_is_the_original_bit_for_bit(kind, data):
    target, train = {**MATRICES, **FORMULAS}[kind]
    given = [data, sm.add_constant(data[FEATURES])] if kind in MATRICES else [data]
    original = train(*given)
    learner = learner_of(original)
    X = features(learner, data)
    np.testing.assert_array_equal(predict(learner.original, X), original.predict())
    np.testing.assert_array_equal(predict(refit(learner, data, target), X), original.predict())
    assert learner.route == "parameters"
    assert learner.strength == "full"
    assert "trained again on its own rows it predicts the same" in learner.notes


@pytest.mark.parametrize("reml", [True, False])
def test_mixed_model_with_an_intercept_per_group(data, reml):
    original = smf.mixedlm("values ~ age + bmi", data, groups="cluster").fit(reml=reml)
    with pytest.raises(ModelError, match=r"groups, one value per row.*refit_options"):
        learner_of(original)
    learner = learner_of(original, groups="cluster")
    assert learner.inputs.columns == ("age", "bmi", "cluster")
    refitted = refit(learner, data, "values")
    np.testing.assert_array_equal(
        refitted.predict("value", features(learner, data)), original.predict(data)
    )


@pytest.mark.filterwarnings("ignore:The MLE may be on the boundary", "ignore:.*singular")
def test_mixed_model_with_random_slopes_cannot_be_refitted(data):
    original = smf.mixedlm("values ~ age", data, groups="cluster", re_formula="~bmi").fit()
    with pytest.raises(CannotRefit, match="more than one intercept"):
        learner_of(original, groups="cluster")


# ---------------------------------------------------------------- arguments of the training


def test_offset_and_exposure_are_columns_that_the_user_names(data):
    E = sm.add_constant(data[["age"]])
    original = sm.GLM(
        data["counts"], E, family=Poisson(), exposure=data["days"], offset=data["bmi"]
    ).fit()
    with pytest.raises(ModelError, match=r"trained with offset.*refit_options=\{'offset': '…'\}"):
        learner_of(original, exposure="days")
    learner = learner_of(original, exposure="days", offset="bmi")
    assert learner.inputs.columns == ("age", "bmi", "days")
    X = features(learner, data)
    np.testing.assert_array_equal(
        refit(learner, data, "counts").predict("value", X), original.predict()
    )


def test_columns_of_what_the_model_never_had_are_refused(data):
    original = smf.poisson("counts ~ age", data).fit(disp=0)
    with pytest.raises(InputError, match="trained without exposure"):
        learner_of(original, exposure="days")
    with pytest.raises(InputError, match="offset=3 must be the name of a column"):
        learner_of(original, offset=3)
    with pytest.raises(InputError, match=r"'exposures' not known.*Did you mean 'exposure'"):
        learner_of(original, exposures="days")


def test_weights_are_never_dropped(data):
    original = smf.wls("values ~ age", data, weights=data["weight"]).fit()
    learner = learner_of(original)
    assert learner.weighted
    assert learner.weight_required
    assert "sample weights replace the weights of the model" in learner.notes
    settings = {"target": "values", "cluster": "cluster", "folds": 3, "budget": 70}
    with pytest.raises(InputError, match="was trained with weights; name the column"):
        b3.audit(original, data, **settings)
    report = b3.audit(original, data, sample_weight="weight", **settings)
    assert report.settings.sample_weight == "weight"


def test_model_without_weights_does_not_need_any(data):
    learner = learner_of(smf.glm("counts ~ age", data, family=Poisson()).fit())
    assert learner.weighted
    assert not learner.weight_required
    assert not learner_of(smf.ols("values ~ age", data).fit()).weighted


def test_two_kinds_of_weights_are_refused(data):
    original = smf.glm(
        "counts ~ age",
        data,
        family=Poisson(),
        freq_weights=data["days"],
        var_weights=data["weight"],
    ).fit()
    with pytest.raises(ModelError, match="freq_weights and var_weights"):
        learner_of(original)


def test_penalty_that_the_results_forgot_must_be_given(data):
    original = smf.ols("values ~ age + bmi", data).fit_regularized(alpha=0.1, L1_wt=0.5)
    with pytest.raises(ModelError, match=r"refit_options=\{'fit': \{'alpha'"):
        learner_of(original)
    with pytest.raises(ModelError, match="predicts other values"):
        learner_of(original, fit={"alpha": 0.2, "L1_wt": 0.5})
    learner = learner_of(original, fit={"alpha": 0.1, "L1_wt": 0.5})
    assert "taken from refit_options: alpha=0.1, L1_wt=0.5" in learner.notes
    refitted = refit(learner, data, "values")
    np.testing.assert_array_equal(
        refitted.predict("value", features(learner, data)), original.predict(data)
    )


def test_argument_that_matters_and_is_not_known_must_be_given(data):
    original = smf.rlm("values ~ age", data).fit(update_scale=False)
    with pytest.raises(
        ModelError, match=r"predicts other values.*Give the missing arguments of fit"
    ):
        learner_of(original)
    assert learner_of(original, fit={"update_scale": False}).notes[-1].endswith("the same")
    with pytest.raises(InputError, match=r"fit=3 must be a mapping of arguments of RLM.fit"):
        learner_of(original, fit=3)


def test_notes_say_what_was_recovered_and_what_was_not(data):
    learner = learner_of(smf.glm("binary ~ age", data, family=Binomial(links.Probit())).fit())
    assert learner.name == "GLM (Binomial)"
    assert learner.notes == (
        "recovered from the logged object: model=GLM, family=Binomial with link Probit, "
        "method=IRLS, wls_method=lstsq",
        "not known, so set to the library's default: maxiter, tol",
        "classes are coded 0, 1, … in sorted order",
        "trained again on its own rows it predicts the same",
    )


# ---------------------------------------------------------------- columns and classes


def test_constant_need_not_be_in_the_table(data):
    E = sm.add_constant(data[FEATURES], prepend=False)
    learner = learner_of(sm.OLS(data["values"], E).fit())
    assert learner.inputs.columns == tuple(FEATURES)
    assert "a column of ones is added to the features, as in the model" in learner.notes


def test_columns_of_a_formula_are_those_it_uses(data):
    learner = learner_of(smf.ols("values ~ np.log(days) + C(ward, Treatment('b')):age", data).fit())
    assert set(learner.inputs.columns) == {"days", "ward", "age"}


@pytest.mark.parametrize(
    "formula", ["np.log(positive) ~ age", "I(values * 2) ~ age", "values + 0 ~ age"]
)
def test_transformed_target_is_refused_because_losses_would_compare_two_scales(formula, data):
    original = smf.ols(formula, data).fit()
    with pytest.raises(ModelError, match="not a column: its predictions are on another scale"):
        learner_of(original)


def test_words_in_the_table_are_coded_in_sorted_order(data):
    original = sm.Logit(data["binary"], sm.add_constant(data[FEATURES])).fit(disp=0)
    learner = learner_of(original)
    X = features(learner, data)
    refitted = refit(learner, data, "words")
    assert refitted.classes.tolist() == ["sick", "well"]
    np.testing.assert_allclose(refitted.predict("probability", X)[:, 0], original.predict())
    assert set(refitted.predict("label", X)) == {"sick", "well"}
    np.testing.assert_allclose(
        refitted.predict("decision", X), -original.predict(which="linear"), rtol=1e-6
    )


def test_a_link_that_is_not_symmetric_needs_the_original_coding(data):
    family = Binomial(links.CLogLog())
    learner = learner_of(smf.glm("binary ~ age", data, family=family).fit())
    with pytest.raises(ModelError, match="Code the target as 0 and 1"):
        refit(learner, data, "words")
    by_words = learner_of(smf.glm("words ~ age", data, family=family).fit())
    assert "the model gives the probability of 'sick'" in by_words.notes
    assert refit(by_words, data, "words").classes.tolist() == ["well", "sick"]


def test_resample_without_a_class_predicts_the_others(data):
    original = smf.mnlogit("three ~ age", data).fit(disp=0)
    learner = learner_of(original)
    refitted = refit(learner, data[data["three"] != 1], "three")
    assert refitted.classes.tolist() == [0, 2]
    assert refitted.predict("probability", features(learner, data)).shape == (len(data), 2)


def test_shares_are_numbers_not_classes(data):
    shares = data.assign(share=data["days"] / 8)
    learner = learner_of(smf.glm("share ~ age", shares, family=Binomial()).fit())
    assert learner.task == "regression"


def test_loss_that_needs_decision_values_names_those_that_work(data):
    learner = learner_of(smf.mnlogit("three ~ age", data).fit(disp=0))
    with pytest.raises(PredictionError, match=r"\['zero_one', 'log', 'brier'\]"):
        refit(learner, data, "three").predict("decision", features(learner, data))


# ---------------------------------------------------------------- what cannot be refitted


def test_model_logged_without_its_data_is_an_error(data):
    results = smf.ols("values ~ age", data).fit()
    results.remove_data()
    with pytest.raises(ModelError, match="Log it with remove_data=False"):
        learner_of(results)


def test_other_models_say_which_are_known(data):
    E = sm.add_constant(data[FEATURES])
    with pytest.raises(CannotRefit, match=r"GLS of statsmodels.*known are OLS"):
        learner_of(sm.GLS(data["values"], E, sigma=data["weight"]).fit())
    with pytest.raises(CannotRefit, match="not a result of a statsmodels fit"):
        learner_of(sm.OLS(data["values"], E))
    with pytest.raises(CannotRefit, match="fit_constrained"):
        learner_of(sm.GLM(data["binary"], E, family=Binomial()).fit_constrained("age = 1"))
    successes = np.column_stack([data["counts"], data["days"]])
    with pytest.raises(CannotRefit, match="successes and failures"):
        learner_of(sm.GLM(successes, E, family=Binomial()).fit())


# ---------------------------------------------------------------- through MLflow


def log(results, **options):
    with mlflow.start_run():
        return mlflow.statsmodels.log_model(
            results, name="model", pip_requirements=["statsmodels"], **options
        )


@pytest.mark.usefixtures("mlflow_store")
def test_audit_of_a_logged_formula_by_both_forms_of_uri(data):
    original = smf.logit("binary ~ age + standardize(bmi)", data).fit(disp=0)
    info = log(original, signature=infer_signature(data))
    reports = [
        b3.audit(
            uri, data, target="words", cluster="cluster", loss="log", folds=3, budget=70, n_jobs=n
        )
        for uri, n in ((f"models:/{info.model_id}", 1), (f"runs:/{info.run_id}/model", 2))
    ]
    assert reports[0].settings.refit == "parameters"
    assert reports[0].settings.features == ("age", "bmi"), "the signature names more"
    assert reports[0].loco == reports[1].loco, "whatever the number of workers"
    learner = load_model(info.model_uri).learner
    served = mlflow.pyfunc.load_model(info.model_uri).predict(data)
    np.testing.assert_array_equal(
        refit(learner, data, "binary").predict("probability", features(learner, data))[:, 1], served
    )


@pytest.mark.usefixtures("mlflow_store")
def test_audit_of_a_logged_matrix_model_adds_the_constant_that_its_signature_names(data):
    E = sm.add_constant(data[FEATURES])
    info = log(sm.OLS(data["values"], E).fit(), signature=infer_signature(E))
    report = b3.audit(info.model_uri, data, target="values", cluster="cluster", folds=3, budget=70)
    assert report.settings.features == tuple(FEATURES)


@pytest.mark.usefixtures("mlflow_store")
def test_arguments_that_autologging_wrote_are_used(data):
    mlflow.statsmodels.autolog(log_models=False)
    try:
        with mlflow.start_run():
            original = smf.glm("binary ~ age", data, family=Binomial()).fit(tol=1e-3)
            info = mlflow.statsmodels.log_model(
                original, name="model", pip_requirements=["statsmodels"]
            )
    finally:
        mlflow.statsmodels.autolog(disable=True)
    notes = load_model(info.model_uri).learner.notes
    assert "taken from the run's parameters: maxiter=100, tol=0.001" in notes
    assert notes[-1] == "trained again on its own rows it predicts the same"


@pytest.mark.usefixtures("mlflow_store")
def test_logged_model_of_another_kind_gets_a_head(data):
    E = sm.add_constant(data[FEATURES])
    info = log(sm.GLS(data["values"], E, sigma=data["weight"]).fit())
    learner = load_model(info.model_uri).learner
    assert learner.route == "head"
    assert "GLS" in learner.notes[0]


def test_nullable_numbers_are_numbers(data):
    results = sm.Logit(data["binary"], data[FEATURES]).fit(disp=0)
    nullable = data.assign(age=data["age"].astype("Float64"))
    learner = learner_of(results)
    refitted = refit(learner, nullable, "binary")
    np.testing.assert_array_equal(
        predict(refitted, features(learner, nullable)), results.predict(data[FEATURES])
    )
