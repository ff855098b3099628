"""Real tables that scikit-learn ships, for `zoo train tabular/xgboost` without --data."""

from __future__ import annotations

from domains.contract import Demo, Request
from trainers.errors import UsageError, did_you_mean

NAMES = ("breast-cancer", "diabetes")


def load(name: str) -> Demo:
    """The demo called `name`. Raises UsageError for an unknown one."""
    if name == "breast-cancer":
        return _breast_cancer()
    if name == "diabetes":
        return _diabetes()
    raise UsageError(f"no demo {name!r}.{did_you_mean(name, NAMES)} Known: {', '.join(NAMES)}.")


def _breast_cancer() -> Demo:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    frame = bunch.data.assign(diagnosis=bunch.target_names[bunch.target])
    about = (
        "569 breast tumours, 30 measurements each, benign or malignant (Wolberg et al. 1995, UCI, CC BY 4.0; "
        "shipped with scikit-learn)"
    )
    return Demo(frame, Request(target="diagnosis"), about)


def _diabetes() -> Demo:
    from sklearn.datasets import load_diabetes

    frame = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
    about = (
        "442 patients, 10 measurements each, diabetes progression after a year (Efron et al. 2004, public teaching set; "
        "shipped with scikit-learn, BSD-3)"
    )
    return Demo(frame, Request(target="progression", task="regression"), about)
