"""The types that a skops file may contain to be loaded, beyond those that skops trusts itself.

A file names types; for each one that is trusted, skops imports it, calls it or makes an empty
instance, and gives it a state, all with values from the file. So a type may stand here only if none
of that runs code that the values could hold:

- classes that keep their state as it is, or hand it to compiled code as numbers, text or bytes;
- functions that compute with arrays and call nothing but what they are given, which then must be
  on the list too.

The list is one of names, not a rule such as "everything of scikit-learn, NumPy and SciPy". Such a
rule would be wrong: the distributions of `scipy.stats`, which searches over parameters like to
hold, run text from their state as Python code when it is restored.

What the list does not promise: compiled code does not check every index. A crafted tree, search
tree or booster may crash the process or read memory outside of itself when it predicts. Refits do
not predict with what was loaded, except for frozen parts and the route `head`; comparing a refit with
the logged model does, once.
"""

from typing import Final

_NAMES: Final = {
    "catboost.core": "CatBoost CatBoostClassifier CatBoostRegressor",
    "collections": "OrderedDict",
    "functools": "partial",
    "lightgbm.basic": "Booster",
    "lightgbm.sklearn": "LGBMClassifier LGBMModel LGBMRegressor",
    "numpy": "dtype mean",
    "scipy._lib.array_api_compat.numpy._aliases": "asarray",
    "scipy.interpolate._bsplines": "BSpline",
    "scipy.sparse._coo": "coo_array coo_matrix",
    "scipy.sparse._csc": "csc_array csc_matrix",
    "scipy.sparse._csr": "csr_array csr_matrix",
    "scipy.sparse._dia": "dia_array dia_matrix",
    "sklearn._loss.link": (
        "HalfLogitLink IdentityLink Interval LogLink LogitLink MultinomialLogit"
    ),
    "sklearn._loss.loss": (
        "AbsoluteError ExponentialLoss HalfBinomialLoss HalfGammaLoss HalfMultinomialLoss "
        "HalfPoissonLoss HalfSquaredError HalfTweedieLoss HalfTweedieLossIdentity HuberLoss "
        "PinballLoss"
    ),
    "sklearn.calibration": "_CalibratedClassifier _SigmoidCalibration _TemperatureScaling",
    "sklearn.compose._column_transformer": "make_column_selector",
    "sklearn.ensemble._hist_gradient_boosting.binning": "_BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor": "TreePredictor",
    "sklearn.feature_selection._mutual_info": "mutual_info_classif mutual_info_regression",
    "sklearn.feature_selection._univariate_selection": ("chi2 f_classif f_regression r_regression"),
    "sklearn.gaussian_process._gpc": "_BinaryGaussianProcessClassifierLaplace",
    "sklearn.gaussian_process.kernels": (
        "CompoundKernel ConstantKernel DotProduct ExpSineSquared Exponentiation Matern "
        "PairwiseKernel Product RBF RationalQuadratic Sum WhiteKernel"
    ),
    "sklearn.impute._iterative": "IterativeImputer _ImputerTriplet",
    "sklearn.metrics._classification": (
        "accuracy_score balanced_accuracy_score brier_score_loss "
        "cohen_kappa_score f1_score fbeta_score jaccard_score log_loss matthews_corrcoef "
        "precision_score recall_score"
    ),
    "sklearn.metrics._dist_metrics": (
        "BrayCurtisDistance CanberraDistance ChebyshevDistance DiceDistance EuclideanDistance "
        "HammingDistance HaversineDistance JaccardDistance MahalanobisDistance ManhattanDistance "
        "MinkowskiDistance RogersTanimotoDistance RussellRaoDistance SEuclideanDistance "
        "SokalSneathDistance"
    ),
    "sklearn.metrics._ranking": "average_precision_score roc_auc_score top_k_accuracy_score",
    "sklearn.metrics._regression": (
        "d2_absolute_error_score explained_variance_score max_error mean_absolute_error "
        "mean_absolute_percentage_error mean_gamma_deviance mean_pinball_loss "
        "mean_poisson_deviance mean_squared_error mean_squared_log_error median_absolute_error "
        "r2_score root_mean_squared_error root_mean_squared_log_error"
    ),
    "sklearn.metrics._scorer": "_CurveScorer _PassthroughScorer _Scorer",
    "sklearn.model_selection._split": (
        "GroupKFold GroupShuffleSplit KFold LeaveOneGroupOut LeaveOneOut LeavePGroupsOut LeavePOut "
        "PredefinedSplit RepeatedKFold RepeatedStratifiedKFold ShuffleSplit StratifiedGroupKFold "
        "StratifiedKFold StratifiedShuffleSplit TimeSeriesSplit _CVIterableWrapper"
    ),
    "sklearn.multiclass": "_ConstantPredictor",
    "sklearn.neighbors._ball_tree": "BallTree BallTree32 BallTree64",
    "sklearn.neighbors._kd_tree": "KDTree KDTree32 KDTree64",
    "sklearn.neural_network._stochastic_optimizers": "AdamOptimizer SGDOptimizer",
    "sklearn.tree._tree": "Tree",
    "sklearn.utils._bunch": "Bunch",
    "sklearn.utils._metadata_requests": "MetadataRequest MethodMetadataRequest",
    "sklearn.utils.validation": "check_array",
    "xgboost.core": "Booster",
    "xgboost.sklearn": "XGBClassifier XGBModel XGBRFClassifier XGBRFRegressor XGBRegressor",
}

#: These have a name for each precision of numbers.
_PRECISIONS: Final = {"sklearn.metrics._dist_metrics": ("32", "64")}

TRUSTED: Final = frozenset(
    f"{module}.{name}{bits}"
    for module, names in _NAMES.items()
    for name in names.split()
    for bits in _PRECISIONS.get(module, ("",))
)
