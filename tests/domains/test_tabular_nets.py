"""Networks for tables: scales against scikit-learn, layers against closed forms, whole learners on small tables."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from scipy.stats import norm
from sklearn.metrics import log_loss
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from domains.contract import Facts, Request
from domains.tabular import data, ft_transformer, mlp, networks, numeric, task
from tests.domains.tabular_runs import Silence, coloured
from trainers.contract import Machine, Plan
from trainers.settings import Gradient

FAMILIES = {"mlp": mlp, "ft-transformer": ft_transformer}

QUICK = {"epochs": 15, "batch_size": 32, "lr": 1e-2}


def with_gaps(num_rows=160):
    frame = coloured(num_rows)
    frame.loc[::7, "x1"] = np.nan
    frame.loc[::11, "colour"] = None
    return frame


def plan_of(family, frame, target="y", **train):
    """The table of the frame, and a plan with the family's TINY settings."""
    reading = data.read(frame, Request(target=target))
    facts = data.describe(reading.table, reading.task, Request(target=target))
    options = family.Options(**family.TINY["options"])
    settings = Gradient(**{**family.TINY["train"], **train})
    planned = family.plan(facts, options, settings, Machine())
    return reading.table, Plan(
        "tabular/x",
        "tabular",
        reading.task,
        family.__name__,
        options.model_dump(),
        settings.model_dump(),
        facts.as_json(),
        estimates=planned,
    )


def watch_in(folder):
    watch = Silence()
    watch.folder = folder
    return watch


def task_of(family, frame, target="y"):
    table, plan = plan_of(family, frame, target)
    options = family.Options.model_validate(plan.options)
    torch.manual_seed(0)
    made = task.task_maker(plan, options, family.network)(task.statistics(plan, table, options), False)
    return table, made, made.examples(table, None)


# --- numbers and categories ---


def test_quantile_scores_are_scikit_learns_where_nothing_is_tied():
    values = np.random.default_rng(0).gamma(2.0, size=900)
    rows = np.sort(np.random.default_rng(1).choice(values, 200))[10:-10]
    peer = QuantileTransformer(n_quantiles=900, output_distribution="normal").fit(values[:, None])
    found = numeric.scaled_values(rows, numeric.quantile_scale(values))
    assert np.allclose(found, peer.transform(rows[:, None])[:, 0], atol=0.02)


def test_a_column_of_mostly_zeros_leaves_room_for_its_other_values():
    scale = numeric.quantile_scale(np.r_[np.zeros(9000), np.arange(1.0, 11.0)])
    zero, *others = numeric.scaled_values(np.arange(0.0, 11.0), scale)
    weights = np.r_[np.log(9001), np.full(10, np.log(2))]
    ranks = (np.cumsum(weights) - weights / 2) / weights.sum()
    assert np.allclose([zero, *others], norm.ppf(ranks))
    assert np.diff([zero, *others]).min() > 0.08  # by rows all ten would lie within the last thousandth


def test_many_distinct_values_keep_a_thousand_knots_at_their_exact_ranks():
    values = np.random.default_rng(0).normal(size=20_000)
    scale = numeric.quantile_scale(values)
    assert 900 < len(scale["values"]) <= numeric.MOST_KNOTS
    assert np.allclose(numeric.scaled_values(values, scale), np.clip(values, -4.2, 4.2), atol=0.25)
    assert (np.diff(scale["values"]) > 0).all()


def test_standard_scores_are_scikit_learns_and_end_at_ten():
    values = np.random.default_rng(0).normal(3.0, 2.0, 500)
    scale = numeric.standard_scale(values)
    expected = StandardScaler().fit_transform(values[:, None])[:, 0]
    assert np.allclose(numeric.scaled_values(values, scale), expected)
    assert numeric.scaled_values(np.array([1e300, -1e300]), scale).tolist() == [10.0, -10.0]


@pytest.mark.parametrize("fit", [numeric.quantile_scale, numeric.standard_scale])
@pytest.mark.parametrize("values", [[], [5.0], [5.0, 5.0], [1e300, -1e300, 3.0]])
def test_no_column_however_odd_gives_a_number_that_is_not_finite(fit, values):
    scale = fit(np.array(values))
    assert np.isfinite(numeric.scaled_values(np.array([0.0, 5.0, 1e308, -1e308]), scale)).all()


def test_missing_numbers_are_marked_and_unknown_categories_share_slot_0():
    frame = with_gaps()
    table, plan = plan_of(mlp, frame)
    columns = plan.facts["schema"]["columns"]
    scales = numeric.fit_scales(table, columns, "quantile")
    facts = Facts.from_json(plan.facts)
    new = pd.DataFrame({"x1": [None, 0.5], "x2": [0.1, 0.2], "colour": ["mauve", "red"]})
    found = numeric.cells(data.read(new, Request(facts=facts)).table, columns, scales)
    assert found.missing.tolist() == [[1, 0], [0, 0]]
    assert found.numbers[0, 0] == 0
    assert found.codes.tolist() == [[0], [1 + sorted(["red", "green", "blue"]).index("red")]]
    assert numeric.num_categories(columns) == [3]
    assert numeric.num_numbers(columns) == 2


def test_dates_become_numbers():
    frame = coloured()
    frame["day"] = pd.date_range("2024-01-01", periods=len(frame)).strftime("%Y-%m-%d")
    table, plan = plan_of(mlp, frame)
    columns = plan.facts["schema"]["columns"]
    assert numeric.num_numbers(columns) == 2 + 4
    scales = numeric.fit_scales(table, columns, "standard")
    assert numeric.cells(table, columns, scales).numbers.shape == (160, 6)


# --- layers ---


def test_periodic_numbers_are_relu_of_a_linear_layer_on_cosines_and_sines():
    torch.manual_seed(0)
    layer = networks.PeriodicNumbers(3, 5, num_frequencies=4, frequency_scale=0.5).double()
    layer.missing_ND.data.normal_()
    x, gap = torch.randn(7, 3).double(), torch.randint(0, 2, (7, 3)).double()
    for column in range(3):
        angles = 2 * np.pi * x[:, column, None] * layer.frequencies_NF[column]
        waves = torch.cat([torch.cos(angles), torch.sin(angles)], dim=1)
        expected = (waves @ layer.weight_NFD[column] + layer.bias_ND[column]).clamp(min=0)
        expected = expected + gap[:, column, None] * layer.missing_ND[column]
        assert torch.allclose(layer(x, gap)[:, column], expected)


def test_linear_numbers_are_a_line_for_each_column():
    layer = networks.LinearNumbers(2, 3)
    at_0, at_1, at_2 = (layer(torch.full((1, 2), float(x)), torch.zeros(1, 2)) for x in range(3))
    assert torch.allclose(at_2 - at_1, at_1 - at_0, atol=1e-6)
    assert torch.allclose(at_0[0], layer.bias_ND)


def test_categories_of_different_columns_never_share_a_vector_and_the_unknown_is_zero():
    layer = networks.Categories([2, 3], 4)
    codes = torch.tensor([[0, 0], [1, 1], [2, 2], [2, 3]])
    vectors = layer(codes)
    assert vectors.shape == (4, 2, 4)
    assert not vectors[0].any()
    assert len(torch.unique(vectors[1:].flatten(0, 1), dim=0)) == 5
    assert len(layer.vectors) == 2 + 1 + 3 + 1


def test_members_of_a_shared_layer_are_linear_layers_with_scaled_matrices():
    torch.manual_seed(0)
    layer = networks.SharedLinear(4, 5, 3, first=True).double()
    layer.outputs_KO.data.normal_()
    x = torch.randn(6, 3, 4).double()
    for k in range(3):
        matrix = layer.outputs_KO[k][:, None] * layer.weight * layer.inputs_KI[k]
        assert torch.allclose(layer(x)[:, k], x[:, k] @ matrix.T + layer.bias_KO[k])
    assert set(layer.inputs_KI.flatten().tolist()) == {-1.0, 1.0}
    same = torch.randn(6, 1, 4).double()
    assert torch.allclose(layer(same), layer(same.expand(-1, 3, -1)))


def test_heads_are_separate_linear_layers():
    layer = networks.Heads(4, 2, 3)
    x = torch.randn(6, 3, 4)
    for k in range(3):
        assert torch.allclose(layer(x)[:, k], x[:, k] @ layer.weight_KIO[k] + layer.bias_KO[k], atol=1e-6)


def test_a_block_is_attention_written_out_then_a_gated_part():
    torch.manual_seed(0)
    options = ft_transformer.Options(width=8, heads=2, dropout=0.0, attention_dropout=0.0)
    block = ft_transformer.Block(options, first=False, last=False).double()
    x = torch.randn(3, 5, 8).double()
    normed = torch.nn.functional.layer_norm(x, (8,))
    query, (key, value) = block.query(normed), block.key_value(normed).chunk(2, dim=-1)
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        scores = query[..., h] @ key[..., h].transpose(1, 2) / 2.0
        heads.append(scores.softmax(-1) @ value[..., h])
    y = x + block.mixed(torch.cat(heads, dim=-1))
    up, gate = block.inner(torch.nn.functional.layer_norm(y, (8,))).chunk(2, dim=-1)
    assert torch.allclose(block(x), y + block.outer(up * gate.clamp(min=0)))


def test_the_last_block_gives_what_a_whole_one_gives_the_answering_token():
    torch.manual_seed(0)
    options = ft_transformer.Options(width=8, heads=2)
    whole, last = (ft_transformer.Block(options, first=False, last=end).eval() for end in (False, True))
    last.load_state_dict(whole.state_dict())
    x = torch.randn(3, 5, 8)
    assert torch.allclose(last(x), whole(x)[:, :1], atol=1e-6)


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ValidationError, match="no multiple of heads"):
        ft_transformer.Options(width=10, heads=4)


# --- the task ---


def loss_of(made, batch):
    """The one total of a batch."""
    (total,) = made.loss(made.model, batch.inputs).values()
    return total


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_loss_is_scikit_learns_log_loss_summed_and_the_mean_over_members(family):
    table, made, examples = task_of(family, with_gaps())
    made.model.eval()
    batch = made.draw(examples, [])
    with torch.no_grad():
        total = float(loss_of(made, batch))
    answers = made.model(*batch.inputs[0]).softmax(-1).detach().double().numpy()
    answers /= answers.sum(axis=-1, keepdims=True)  # float32 sums to 1 only nearly
    expected = np.mean([log_loss(table.target(), answers[:, k], labels=["no", "yes"]) for k in range(answers.shape[1])])
    assert batch.counts == {"cross_entropy": len(table)}
    assert total == pytest.approx(expected * len(table), rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_totals_of_micro_batches_add_up_to_the_whole_for_numbers_too(family):
    frame = coloured().assign(y=lambda f: f.x1 * 3 + 7)
    _, made, examples = task_of(family, frame)
    made.model.eval()
    parts = [made.draw(examples[a:b], []) for a, b in ((0, 50), (50, 51), (51, 160))]
    whole = made.draw(examples, [])
    totals = [float(loss_of(made, part)) for part in parts]
    assert sum(totals) == pytest.approx(float(loss_of(made, whole)), rel=1e-5)
    assert float(whole.inputs[1].mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(whole.inputs[1].std(correction=0)) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_parameter_has_a_role_and_gets_a_gradient_and_only_matrices_can_decay(family):
    _, made, examples = task_of(family, with_gaps())
    roles = made.roles()
    loss_of(made, made.draw(examples, [])).backward()
    for name, parameter in made.model.named_parameters():
        assert parameter.grad is not None, name
        is_matrix = name.startswith("blocks") and name.endswith("weight") and parameter.ndim == 2
        assert (roles[name].kind == "matrix") == is_matrix
    assert {"matrix", "embedding", "head", "scalar"} == {role.kind for role in roles.values()}
    assert max(role.depth for role in roles.values()) == roles[list(roles)[-1]].depth


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_plan_counts_the_parameters_and_steps_of_what_it_builds(family):
    frame = coloured()
    _, plan = plan_of(family, frame)
    _, made, _ = task_of(family, frame)
    assert plan.estimates["num_parameters"] == sum(p.numel() for p in made.model.parameters())
    assert plan.estimates["num_steps"] == 30 * 10


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@torch.no_grad()
@pytest.mark.parametrize("drop", [["x1", "x2"], ["colour"]], ids=["no numbers", "no categories"])
def test_a_table_of_one_kind_of_column_is_enough(family, drop):
    table, made, examples = task_of(family, coloured().drop(columns=drop))
    assert np.isfinite(float(loss_of(made, made.draw(examples, []))))
    assert len(made.predict(made.model, made.collate(table.without_target()))) == len(table)


# --- whole learners ---


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_it_learns_a_rule_keeps_it_and_answers_each_row_from_itself(family, tmp_path):
    table, plan = plan_of(family, with_gaps(400), **QUICK)
    train, test = table.take(range(300)), table.take(range(300, 400))
    learner = family.build(plan)
    learner.fit(train, table.take(range(0)), watch_in(tmp_path / "run"))
    answers = learner.predict(test.without_target())
    assert np.mean(answers.values == test.target()) > 0.85
    learner.save(tmp_path / "model")
    again = family.load(plan, tmp_path / "model")
    assert np.array_equal(again.predict(test.without_target()).scores, answers.scores)
    one_by_one = replace(plan, settings={**plan.settings, "eval_batch_size": 1})
    alone = family.load(one_by_one, tmp_path / "model").predict(test.without_target())
    assert np.allclose(alone.scores, answers.scores, atol=1e-6)


def test_numbers_are_answered_in_the_unit_of_the_target(tmp_path):
    frame = coloured(400).assign(y=lambda f: 1000 + 50 * f.x1 - 20 * (f.colour == "red"))
    table, plan = plan_of(mlp, frame, **QUICK)
    learner = mlp.build(plan)
    learner.fit(table.take(range(300)), table.take(range(0)), watch_in(tmp_path))
    errors = learner.predict(table.without_target()).values - table.target()
    assert np.sqrt(np.mean(errors[300:] ** 2)) < 0.25 * table.target().std()


@pytest.mark.parametrize("scaling", ["quantile", "standard"])
def test_a_column_of_huge_numbers_neither_stops_nor_spoils_training(scaling, tmp_path):
    frame = coloured(300)
    frame["huge"] = np.random.default_rng(0).uniform(1e29, 1e300, 300)
    table, plan = plan_of(mlp, frame, **QUICK)
    learner = mlp.build(replace(plan, options={**plan.options, "scaling": scaling}))
    learner.fit(table, table.take(range(0)), watch_in(tmp_path))
    assert np.mean(learner.predict(table.without_target()).values == table.target()) > 0.85


def test_nothing_is_fitted_on_rows_outside_of_training():
    table, plan = plan_of(mlp, coloured())
    options = mlp.Options()
    fitted = task.statistics(plan, table.take(range(50)), options)
    frame = table.frame.copy()
    frame.loc[50:, ["x1", "x2"]] = 1e6
    changed = data.read(frame, Request(target="y")).table
    assert task.statistics(plan, changed.take(range(50)), options) == fitted
