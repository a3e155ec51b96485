"""What to do about a verdict, or about evidence that does not hold."""

import shlex
from collections.abc import Iterable, Iterator

from mlflow_b3.gating.verdict import FAIL, INCONCLUSIVE, Reason, Verdict
from mlflow_b3.wording import visible

AUDIT = (
    "Audit it: mlflow-b3 audit --model-uri {uri} --data FILE --target COLUMN --cluster COLUMN, with "
    "what you know about the ids, such as --cluster-error 0.05,0.15."
)
AUDIT_AGAIN = AUDIT.replace("Audit it", "Audit it again")
#: By what the error says, the first that fits: evidence fails in too many ways for one answer.
OF_EVIDENCE = (
    ("there is no audit of it", AUDIT),
    ("there is no file 'b3/evidence.json'", AUDIT_AGAIN),
    (
        "which is not trusted here",
        "If that key is one of yours, add its public key to evidence.trusted_keys of the policy or to "
        "MLFLOW_B3_TRUSTED_KEYS. If nobody knows it, do not trust the audit; make one of your own.",
    ),
    ("but there is a later one", AUDIT_AGAIN),
    ("is deleted", "Restore the audit's run in MLflow, or audit the version again."),
    (
        "could not be read",
        "Check that MLflow and its artifact store can be reached, and try again.",
    ),
)
CHANGED = (
    "Find out who changed it. If the change was meant, audit the version again; if not, register the "
    "model anew."
)
LOOK = "To see each part that does not hold: mlflow-b3 verify {uri}, with the same --policy"
BY_CHECK = {
    "data": "Give the table that was audited, read from the same kind of file; or audit it again on this "
    "one.",
    "pins": "Audit what the policy pins. If it pins nothing for this model yet, whoever owns the policy "
    "writes that down; this drafts it: mlflow-b3 policy init {uri}",
    "min_clusters": "Audit it again on a table with more clusters; fewer tell too little about new ones.",
    "min_repeated_clusters": "Check that the cluster column is the right one. Only clusters with two "
    "rows or more show how much rows of one cluster tell about each other.",
    "findings": "Do what the finding asks for and audit it again (docs/findings.md). Whoever owns the "
    "policy may take a code out of audit.refuse_findings.",
    "server": "The server has a policy, or permissions, of its own: ask whoever runs it.",
    "signed": "Sign the audit where the signing key is ('mlflow-b3 keys' makes a pair): mlflow-b3 attest "
    "{uri}. Or let the policy count unsigned audits, with evidence.signed: false.",
    "max_age_days": AUDIT_AGAIN,
    "max_audits": "Tries cannot be taken back: whoever owns the policy may raise evidence.max_audits, or "
    "a model that is trained and registered anew may be audited once.",
    "preregistered": "Commit the settings before the audit: mlflow-b3 preregister, with the options that the "
    "audit will have, then audit it again.",
    "p0_sources": "Audit it again with what the policy accepts as evidence about the ids; rows that "
    "somebody looked up (--resolved-rows) are the best (docs/howto/where-p0-comes-from.md).",
    "refits": "Audit it again so that all of the model is trained anew by a route that the policy "
    "accepts: --refit, or --trainer for training code of your own.",
    "tipping_cluster_error": "Better ids, or a model that relies less on having seen a cluster, move "
    "the tipping point.",
    "tipping_split_rate": "Better ids, or a model that relies less on having seen a cluster, move the "
    "tipping point.",
    "inflation": "Do not report the score by the ids as they are: e0 is the one to expect. Better ids, "
    "or a model that relies less on having seen a cluster, bring the two together.",
}
OTHER_SETTINGS = (
    "Audit it again with the settings that were committed; the file b3/commitment.json of that run has "
    "them. New settings need a commitment of their own, and every commitment is counted."
)
E0_HIGH = {
    FAIL: "The model is not good enough on clusters it has not seen: train a better one.",
    INCONCLUSIVE: "More clusters, a narrower range for the share of wrong ids or more refits (--budget) "
    "narrow the interval of e0; a better model lowers it. Every further audit is counted.",
}
CVC_HIGH = {
    FAIL: "The model is not good enough on new groups: train a better one.",
    INCONCLUSIVE: "More groups narrow the interval of CV_c; a better model lowers it. Where it is withheld or "
    "an approximation, the report's findings say what it takes, such as --method-option engine=full. "
    "Every further audit is counted.",
}
KEEP = "Keep the champion, or train a better model."
#: By what the reason says, the first that fits.
OF_CHAMPION = (
    ("beyond noise", KEEP),
    (
        "within the noise",
        "The two were compared in pairs and are too close to tell apart: more clusters may, another "
        "audit of the same rows hardly will. " + KEEP,
    ),
    ("too few clusters", "More clusters are needed to tell models apart."),
    (
        "",
        "Audit both on the same rows and folds: mlflow-b3 compare {uri} URI-OF-THE-CHAMPION --data FILE "
        "--target COLUMN --cluster COLUMN.",
    ),
)


def next_steps(verdict: Verdict) -> tuple[str, ...]:
    """Return what to do about a verdict."""
    if verdict.promoted is not None:
        return ()
    if verdict.allowed:
        return ("To promote it, add --promote ALIAS; in Python, promote='ALIAS'.",)
    uri = f"models:/{verdict.model}/{verdict.version}"
    steps = remedies(verdict.reasons, uri)
    return (_filled(LOOK, uri), *steps) if CHANGED in steps else steps


def remedies(reasons: Iterable[Reason], uri: str) -> tuple[str, ...]:
    """Return what to do about reasons that refuse a version, without repetitions."""
    return tuple(dict.fromkeys(_filled(text, uri) for text in _remedies(reasons)))


def _filled(text: str, uri: str) -> str:
    return text.replace("{uri}", shlex.quote(visible(uri)))


def _remedies(reasons: Iterable[Reason]) -> Iterator[str]:
    for reason in reasons:
        if reason.outcome not in (FAIL, INCONCLUSIVE):
            continue
        if reason.check in ("e0_high", "constant"):
            yield E0_HIGH[reason.outcome]
        elif reason.check in ("cvc_high", "cvc_constant"):
            yield CVC_HIGH[reason.outcome]
        elif reason.check == "champion":
            yield _fitting(OF_CHAMPION, reason.text)
        elif reason.check == "preregistered" and "not those that" in reason.text:
            yield OTHER_SETTINGS
        else:
            yield BY_CHECK.get(reason.check) or _fitting(OF_EVIDENCE, reason.text)


def _fitting(remedies: Iterable[tuple[str, str]], text: str) -> str:
    return next((remedy for words, remedy in remedies if words in text), CHANGED)
