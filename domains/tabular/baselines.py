"""The strong cheap rival of trees: logistic or ridge regression on imputed, scaled and one-hot columns."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd

from domains.baselines import with_estimator
from domains.contract import Baseline, Facts, Table
from domains.tabular.encode import Encoder

# A category on fewer training rows shares one column with the other rare ones.
FEWEST_ROWS_A_CATEGORY = 10


def linear(facts: Facts) -> Baseline:
    """Logistic regression or ridge (scikit-learn, default strength) after median imputation with indicators, scaling and
    one-hot categories."""
    name = "logistic regression" if facts.task == "classification" else "ridge regression"
    encoder = Encoder(facts.schema["columns"])
    return with_estimator(
        name,
        "on imputed, scaled and one-hot columns",
        make=partial(_pipeline, encoder, facts.task),
        features=partial(_features, encoder),
        task=facts.task,
    )


def _features(encoder: Encoder, rows: Table) -> pd.DataFrame:
    return pd.DataFrame(encoder.matrix(rows), columns=list(encoder.features))


def _pipeline(encoder: Encoder, task: str) -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    categories = list(encoder.categorical)
    numbers = [position for position in range(len(encoder.features)) if position not in categories]
    imputed = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    prepared = make_column_transformer(
        (make_pipeline(imputed, StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=FEWEST_ROWS_A_CATEGORY), categories),
    )
    return make_pipeline(prepared, LogisticRegression(max_iter=1000) if task == "classification" else Ridge())
