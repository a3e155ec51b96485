"""A model that looks for the key. It is a module of its own, because every worker imports it."""

import json
import os

from sklearn.naive_bayes import GaussianNB


class Thief(GaussianNB):
    """A model whose training looks for the key."""

    def fit(self, X, y, sample_weight=None):
        found = {
            "environment": [name for name in os.environ if "SIGNING" in name],
            "parents": _environments(),
        }
        with open(os.environ["B3_THIEF"], "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        return super().fit(X, y, sample_weight)


def _environments() -> list[str]:
    with open("/proc/self/environ", "rb") as file:
        return [part.decode() for part in file.read().split(b"\0") if b"SIGNING" in part]
