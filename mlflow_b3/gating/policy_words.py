"""A policy in words: what it guards, and what it demands."""

from collections.abc import Iterator, Sequence

from mlflow_b3.findings import CODES
from mlflow_b3.gating.keys import key_id
from mlflow_b3.gating.policy import Policy
from mlflow_b3.gating.policy_values import CONSTANT, PINNED, TRAINING, Pin
from mlflow_b3.wording import number, percent


def describe_policy(policy: Policy, environment_keys: int = 0) -> list[str]:
    """Return the sentences of a policy.

    Parameters
    ----------
    policy : Policy
    environment_keys : int
        How many keys the environment adds to those of the policy.
    """
    return [
        *_guard(policy),
        *_pins(policy),
        *_limits(policy),
        *_audit(policy),
        *_evidence(policy, environment_keys),
        "What the numbers leave open is "
        + ("refused." if policy.inconclusive == "refuse" else "allowed."),
    ]


def _guard(policy: Policy) -> Iterator[str]:
    guarded = [
        f"the {kind if len(names) == 1 else plural} {_listed(names)}"
        for kind, plural, names in (
            ("alias", "aliases", policy.aliases),
            ("stage", "stages", policy.stages),
        )
        if names
    ]
    models = "all models" if "*" in policy.models else f"the models {_listed(policy.models)}"
    if not guarded or not policy.models:
        yield "It guards nothing: no server refuses any alias or stage because of it."
    else:
        yield f"It guards {' and '.join(guarded)}, whatever their case, on {models}."
    if policy.artifact_roots:
        yield (
            "A server promotes models whose files are in its own artifact roots or in "
            f"{_listed(policy.artifact_roots, 'or')}."
        )


def _pins(policy: Policy) -> Iterator[str]:
    for pin in policy.pins:
        pinned = [_pinned(pin, key) for key in PINNED if getattr(pin, key) is not None]
        if pinned:
            yield f"An audit of the models {pin.models!r} must have {', '.join(pinned)}."
        else:
            yield (
                f"For the models {pin.models!r} nothing is pinned: whoever audits chooses the target, "
                "the clusters, the loss and the table."
            )
    if not policy.pins:
        yield (
            "It does not say what must be audited, so nothing passes: name target, cluster and loss of "
            "each model in pins. 'mlflow-b3 policy init models:/name/1' drafts that."
        )
    elif not any(pin.models == "*" for pin in policy.pins):
        yield "Other models are refused, because it does not say what must be audited of them."


def _pinned(pin: Pin, key: str) -> str:
    names = getattr(pin, key)
    if key != "data":
        return f"the {key} {_listed(names, 'or')}"
    tables = ["a table that the training run logged"] if TRAINING in names else []
    digests = [name for name in names if name != TRAINING]
    tables += [f"the table with the digest {_listed(digests, 'or')}"] if digests else []
    return " or ".join(tables)


def _audit(policy: Policy) -> Iterator[str]:
    least = [
        f"{count} {what}"
        for count, what in (
            (policy.min_clusters, "clusters"),
            (policy.min_repeated_clusters, "clusters with two rows or more"),
        )
        if count is not None
    ]
    if least:
        yield f"The table must have at least {' and '.join(least)}."
    if policy.refuse_findings:
        named = "; ".join(f"{code}, {CODES[code]}" for code in policy.refuse_findings)
        yield f"These findings refuse a version: {named}."
    else:
        yield "No finding refuses a version."


def _limits(policy: Policy) -> Iterator[str]:
    limit = policy.e0_high
    words = (
        "the loss of the best constant answer" if limit == CONSTANT else number(limit)  # type: ignore[arg-type]
    )
    if limit is not None:
        yield (
            f"The upper end of e0's 95 % interval must be at most {words}. So must that of CV_c, where an "
            "audit has it."
        )
    if limit not in (None, CONSTANT):
        yield "Both must also be at most the loss of the best constant answer."
    if policy.inflation is not None:
        yield f"e0 may exceed the score by the ids as they are by at most {number(policy.inflation)}."
    for name, least in (
        ("cluster error", policy.tipping_cluster_error),
        ("split rate", policy.tipping_split_rate),
    ):
        if least is not None:
            yield f"Up to a {name} of {percent(least)}, e0 must stay below {words}."
    if policy.champion is not None:
        rule = {
            "not_worse": "must not be worse, beyond noise, than",
            "better": "must be better, beyond noise, than",
        }[policy.champion]
        yield f"A version {rule} the one that has the alias {policy.champion_alias!r}."
    if limit is None and policy.inflation is None and policy.champion is None:
        yield "It sets no limit on the results: any audit will do."


def _evidence(policy: Policy, environment_keys: int) -> Iterator[str]:
    count = len(policy.trusted_keys) + environment_keys
    if policy.signed and not count:
        yield (
            "Only signed audits count, and no key is trusted yet, so nothing passes: name public keys in "
            "evidence.trusted_keys or in MLFLOW_B3_TRUSTED_KEYS."
        )
    elif policy.signed:
        ids = ", ".join(map(key_id, policy.trusted_keys))
        named = [f"the policy's ({ids})"] if ids else []
        named += [f"{environment_keys} of MLFLOW_B3_TRUSTED_KEYS"] if environment_keys else []
        yield f"Only audits signed with a trusted key count: {' and '.join(named)}."
    else:
        yield "Unsigned audits count: whoever may write to MLflow can make one up."
    if policy.max_age_days is not None:
        yield f"An audit counts for {policy.max_age_days:g} days."
    if policy.p0_sources is not None:
        yield f"The leaked share must come from {_listed(policy.p0_sources, 'or')}."
    if policy.refits is not None:
        yield f"The model must have been trained again by {_listed(policy.refits, 'or')}."
    if policy.preregistered:
        yield "The settings of the audit must have been committed before it ran."
    if policy.max_audits is not None:
        times = "once" if policy.max_audits == 1 else f"{policy.max_audits} times"
        yield f"A model may have been audited {times} at the most."


def _listed(names: Sequence[str], last: str = "and") -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
