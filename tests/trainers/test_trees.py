"""Boosted trees as a learner: the loop by arithmetic, the engines against their own training functions."""

import json

import numpy as np
import pytest

from domains.tabular.encode import Encoder
from tests.domains.tabular_runs import FAMILIES, Silence, coloured, trained
from trainers.errors import DataError, DivergedError, InterruptedByUser, StoppedError
from trainers.settings import Trees
from trainers.tree_engines import lightgbm_params, num_threads, xgboost_params
from trainers.trees import Target, boost


class Scripted:
    """A forest whose validation losses are written down."""

    def __init__(self, losses):
        self.losses, self.grown = losses, 0

    def grow(self):
        self.grown += 1

    def valid_loss(self):
        return self.losses[self.grown - 1]


def growth(losses, watch=None, watched=True, clock=lambda: 0.0, **settings):
    forest = Scripted(losses)
    settings = Trees(**{"rounds": len(losses), **settings})
    return boost(forest, settings, watched=watched, watch=watch or Silence(), clock=clock), forest


def test_boosting_stops_after_so_many_rounds_without_gain_and_keeps_the_best():
    found, forest = growth([5, 4, 3, 3.5, 3.0, 3.2, 1], early_stopping=3)
    assert (found.best_round, found.best_loss, found.num_rounds) == (3, 3, 6)
    assert forest.grown == 6


def test_boosting_without_a_gain_at_the_end_uses_all_rounds():
    found, _ = growth([5, 4, 3, 2], early_stopping=None)
    assert (found.best_round, found.num_rounds) == (4, 4)


def test_boosting_without_validation_rows_is_short_and_keeps_the_last_round():
    found, forest = growth([0.0] * 500, watched=False)
    assert found.best_round == forest.grown == 200


def test_a_budget_in_seconds_ends_boosting():
    ticks = iter(range(100))
    found, _ = growth(list(range(50, 0, -1)), seconds=5, clock=lambda: next(ticks))
    assert (found.num_rounds, found.why) == (5, "5 s are spent")


def test_requests_to_stop_are_honoured_by_name():
    with pytest.raises(StoppedError, match="signal"):
        growth([1, 2], Silence("signal"))
    with pytest.raises(InterruptedByUser):
        growth([1, 2], Silence("interrupt"))


def test_a_loss_that_is_not_finite_is_called_diverged():
    with pytest.raises(DivergedError, match="round 2"):
        growth([1.0, float("nan"), 0.5])


def test_targets_far_from_zero_keep_their_digits():
    values = np.array([1.7e9, 1.7e9 + 1, 1.7e9 + 2, 1.7e9 + 5])
    target = Target.of(values, ())
    np.testing.assert_allclose(target.predictions(target.numbers(values)).values, values, rtol=0, atol=1e-3)
    assert Target.of(np.ones(3), ()).deviation == 1.0


def test_a_class_without_training_rows_is_named():
    with pytest.raises(DataError, match="c are in no training row"):
        Target(("a", "b")).numbers(np.array(["a", "c"], dtype=object))


def test_small_tables_get_one_thread():
    assert num_threads(16, 10_000) == 1
    assert num_threads(2, 10_000_000) == 2
    assert num_threads(16, 1_000_000) == 6


def arrays(run):
    encoder = Encoder(run.facts.schema["columns"])
    classes = list(run.facts.classes)
    table = run.reading.table
    return encoder, encoder.matrix(table), np.array([classes.index(name) for name in table.target()], np.float32)


def fitted_on_everything(run, settings):
    """The run's learner fitted on the whole table without validation rows, so that a rival can see the same."""
    plan = type(run.plan)(**{**vars(run.plan), "settings": settings.model_dump()})
    learner = run.family.build(plan)
    learner.fit(run.reading.table, run.reading.table.take([]), Silence())
    return learner, plan


def test_xgboost_predicts_what_its_own_train_predicts():
    import xgboost

    run = trained(coloured(), "xgboost", target="y")
    settings = Trees(rounds=12, lr=0.3, max_depth=3)
    learner, plan = fitted_on_everything(run, settings)
    encoder, x, y = arrays(run)
    kinds = ["c" if j in encoder.categorical else "q" for j in range(x.shape[1])]
    rows = xgboost.DMatrix(x, y, feature_types=kinds, enable_categorical=True)
    rival = xgboost.train(xgboost_params(settings, plan, 2), rows, 12)
    ours = learner.predict(run.reading.table.without_target()).scores[:, 1]
    np.testing.assert_allclose(ours, rival.predict(rows), rtol=1e-6)


def test_lightgbm_predicts_what_its_own_train_predicts():
    import lightgbm

    run = trained(coloured(), "lightgbm", target="y")
    settings = Trees(rounds=12, lr=0.3, max_depth=0)
    learner, plan = fitted_on_everything(run, settings)
    encoder, x, y = arrays(run)
    rows = lightgbm.Dataset(x, y, categorical_feature=list(encoder.categorical))
    rival = lightgbm.train(lightgbm_params(settings, plan, 2), rows, 12)
    ours = learner.predict(run.reading.table.without_target()).scores[:, 1]
    np.testing.assert_allclose(ours, rival.predict(x), rtol=1e-12)


def test_early_stopping_chooses_the_round_that_xgboost_chooses():
    import xgboost

    run = trained(coloured(400), "xgboost", target="y")
    settings = Trees(rounds=200, lr=0.3, max_depth=6, early_stopping=5)
    plan = type(run.plan)(**{**vars(run.plan), "settings": settings.model_dump()})
    train, valid = run.reading.table.take(range(250)), run.reading.table.take(range(250, 400))
    learner = run.family.build(plan)
    facts = learner.fit(train, valid, Silence())
    encoder, x, y = arrays(run)
    kinds = ["c" if j in encoder.categorical else "q" for j in range(x.shape[1])]
    common = {"feature_types": kinds, "enable_categorical": True}
    seen = xgboost.QuantileDMatrix(x[:250], y[:250], **common)
    unseen = xgboost.QuantileDMatrix(x[250:], y[250:], ref=seen, **common)
    rival = xgboost.train(
        xgboost_params(settings, plan, 2), seen, 200, [(unseen, "v")], early_stopping_rounds=5, verbose_eval=False
    )
    assert facts["best_step"] == rival.best_iteration + 1
    assert facts["num_steps"] < 200
    expected = rival.inplace_predict(x[250:], iteration_range=(0, rival.best_iteration + 1))
    np.testing.assert_allclose(learner.predict(valid.without_target()).scores[:, 1], expected, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("target", ["y", "colour", "x1"])
def test_a_saved_learner_predicts_the_same_and_saves_no_pickle(family, target, tmp_path):
    run = trained(coloured(), family, target=target)
    run.learner.save(tmp_path / "model")
    loaded = run.family.load(run.plan, tmp_path / "model")
    rows = run.reading.table.without_target()
    ours, theirs = run.learner.predict(rows), loaded.predict(rows)
    np.testing.assert_array_equal(ours.values, theirs.values)
    if ours.scores is not None:
        np.testing.assert_array_equal(ours.scores, theirs.scores)
    names = {file.suffix for file in (tmp_path / "model").iterdir()}
    assert names <= {".json", ".ubj", ".txt"}
    assert json.loads((tmp_path / "model" / "encoder.json").read_text())["columns"]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_fits_give_the_same_bits_and_the_seed_matters_when_rows_are_drawn(family):
    train = {"subsample": 0.5, "colsample": 0.7}
    first, second = (trained(coloured(), family, target="y", train=train) for _ in range(2))
    rows = first.reading.table.without_target()
    np.testing.assert_array_equal(first.learner.predict(rows).scores, second.learner.predict(rows).scores)
    other = first.family.build(type(first.plan)(**{**vars(first.plan), "seed": 1}))
    other.fit(first.reading.table, first.test, Silence())
    assert not np.array_equal(other.predict(rows).scores, first.learner.predict(rows).scores)
