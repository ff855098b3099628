"""Contacts: attention maps, corrections and answers as fair-esm's and transformers' contact heads give them, scores as
fair-esm's example counts them, and the recipe's rows. All weights here are small and random."""

from types import SimpleNamespace

import esm
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import EsmConfig, EsmForMaskedLM

from domains.contract import Request
from domains.proteins import contact_pairs, contacts, data, demo
from domains.proteins.contact_pairs import ContactMap, is_contact, pair_places, pairs_of, precision_of
from domains.shared.proteins.esm2 import esm2_config, tokens
from trainers.contract import Machine, Plan, Predictions
from trainers.errors import DataError, StoppedError, UsageError
from trainers.settings import SETTINGS

LAYERS, WIDTH, HEADS = 3, 48, 3
SEQUENCES = ["MKTAYIAKQRQISFVKSHFSRQ", "ACDEFGHIKLMNPQRSTVWYXBUZO" * 2, "MKTAYI"]


def table_of(sequences, texts=None):
    frame = pd.DataFrame({"sequence": sequences, "contacts": texts or ["1-8"] * len(sequences)})
    return data.read(frame, Request(target="contacts", task="contacts")).table


def plan_of(weights, table, train=None, **options):
    chosen = contacts.Options(**{**contacts.TINY["options"], "weights": str(weights), **options})
    settings = SETTINGS["probe"].model_validate({**contacts.TINY["train"], **(train or {})})
    facts = data.describe(table, "contacts", Request())
    estimates = contacts.plan(facts, chosen, settings, Machine())
    return Plan(
        *("proteins/contacts", "proteins", "contacts", "domains.proteins.contacts"),
        *(chosen.model_dump(), settings.model_dump(), facts.as_json(), Machine(), 0, estimates),
    )


def watch(stop=None):
    return SimpleNamespace(log=lambda **event: None, should_stop=lambda: stop)


def written(found, length):
    """A learner's answer as the full matrix of both triangles, NaN for pairs that are not answered."""
    matrix = np.full((length, length), np.nan)
    i, j = pair_places(length)
    matrix[i, j] = matrix[j, i] = found.probability
    return matrix


FACTS = data.describe(table_of(SEQUENCES[:2]), "contacts", Request())


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """fair-esm's network and a folder of transformers with the same random weights, and the weights of their contact head."""
    torch.manual_seed(0)
    fair = esm.ESM2(LAYERS, WIDTH, HEADS, "ESM-1b").eval()
    with torch.no_grad():
        for parameter in fair.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        fair.contact_head.regression.weight.normal_(std=20.0)
        fair.contact_head.regression.bias.fill_(-1.0)
    folder = tmp_path_factory.mktemp("weights")
    torch.save(fair.state_dict(), folder / "fair.pt")
    return fair, folder / "fair.pt"


def learner_with_the_head_of(fair, weights):
    learner = contacts.build(plan_of(weights, table_of(SEQUENCES[:2])))
    head = fair.contact_head.regression
    state = {"weight": head.weight[0].detach(), "bias": head.bias.detach()}
    learner.state = {name: value.double().numpy() for name, value in state.items()}
    return learner


def test_with_its_random_head_answers_are_those_of_fair_esm_alone_and_padded(networks):
    fair, weights = networks
    rows = table_of(SEQUENCES[:2]).without_target()
    found = learner_with_the_head_of(fair, weights).predict(rows)
    _, _, numbers = fair.alphabet.get_batch_converter()([("", sequence) for sequence in SEQUENCES[:2]])
    with torch.no_grad():
        expected = fair.predict_contacts(numbers)
    for row, sequence in enumerate(SEQUENCES[:2]):
        ours = written(found.values[row], len(sequence))
        is_far = ~np.isnan(ours)
        theirs = expected[row, : len(sequence), : len(sequence)].numpy()
        assert theirs[is_far].std() > 0.01
        np.testing.assert_allclose(ours[is_far], theirs[is_far], atol=2e-4)


def test_corrected_maps_are_what_transformers_contact_head_weighs(networks):
    _, weights = networks
    config = EsmConfig(**esm2_config(layers=LAYERS, width=WIDTH, heads=HEADS), attn_implementation="eager")
    theirs = EsmForMaskedLM(config).eval()
    learner = contacts.build(plan_of(weights, table_of(SEQUENCES[:2])))
    theirs.esm.load_state_dict(learner.frozen.network.state_dict(), strict=False)
    numbers, _ = tokens(SEQUENCES[:1], max_residues=100)
    maps, (i, j) = learner._pair_maps(SEQUENCES[0]), pair_places(len(SEQUENCES[0]))
    assert maps.shape == (len(i), LAYERS * HEADS)
    for channel in range(LAYERS * HEADS):
        with torch.no_grad():
            theirs.esm.contact_head.regression.weight.zero_()[0, channel] = 1.0
            theirs.esm.contact_head.regression.bias.zero_()
            chance = theirs.predict_contacts(numbers, torch.ones_like(numbers))[0].numpy()
        # Undoing the logistic function of values near 0 costs digits.
        np.testing.assert_allclose(maps[:, channel], np.log(chance / (1 - chance))[i, j], atol=1e-5)


def test_it_finds_the_regression_that_made_the_contacts(networks):
    """Contacts drawn from a random head on the same maps are ranked about as well by the fitted regression."""
    fair, weights = networks
    rng = np.random.default_rng(0)
    chains = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), 40)) for _ in range(24)]
    made = learner_with_the_head_of(fair, weights).predict(table_of(chains).without_target())
    texts = [
        " ".join(
            f"{i + 1}-{j + 1}" for i, j, p in zip(*pair_places(40), answer.probability, strict=True) if rng.random() < p
        )
        for answer in made.values
    ]
    table = table_of(chains, texts)
    learner = contacts.build(plan_of(weights, table))
    facts = learner.fit(table.take(range(18)), None, watch())
    assert facts["num_proteins"] == 18
    assert facts["num_examples"] == 18 * len(pair_places(40)[0])
    rest = range(18, 24)
    rows, truth = table.take(rest), table.take(rest).target()
    answers = (learner.predict(rows.without_target()), made.take(rest))
    ours, best = (data.metrics(FACTS)[0].stats(truth, each) for each in answers)
    assert ours[:, 0].mean() > 0.9 * best[:, 0].mean() > 1.3 * np.mean([is_contact(text, 40).mean() for text in truth])


def test_what_is_saved_answers_the_same_after_loading(networks, tmp_path):
    table = table_of(SEQUENCES[:2], ["1-8 2-12", "3-17"])
    plan = plan_of(networks[1], table)
    learner = contacts.build(plan)
    learner.fit(table, None, watch())
    learner.save(tmp_path / "model")
    again = contacts.load(plan, tmp_path / "model")
    for before, after in zip(learner.predict(table).values, again.predict(table).values, strict=True):
        assert before == after


def test_only_as_many_proteins_are_learned_from_as_there_is_room_for():
    table = table_of(SEQUENCES[:2] * 3, ["1-8"] * 6)
    found = {most: contacts.build(plan_of("random:2x32", table, {"max_examples": most})) for most in (1, 2000, 10_000)}
    facts = {most: learner.fit(table, None, watch()) for most, learner in found.items()}
    assert facts[1]["num_proteins"] == 1  # no fewer
    assert facts[2000]["num_examples"] <= 2000
    assert 1 < facts[2000]["num_proteins"] < 6
    assert facts[10_000]["num_proteins"] == 6


def test_nothing_to_tell_apart_and_a_wish_to_stop_end_training_cleanly():
    table = table_of(SEQUENCES[:2], ["20-1 1-22", "1-40"])
    with pytest.raises(DataError, match="nothing to tell apart"):
        contacts.build(plan_of("random:2x32", table, max_residues=12)).fit(table, None, watch())
    with pytest.raises(StoppedError, match="Nothing is kept"):
        contacts.build(plan_of("random:2x32", table)).fit(table, None, watch("signal"))


def test_a_protein_too_short_for_any_pair_is_answered_and_long_ones_are_cropped():
    table = table_of(SEQUENCES, ["1-8", "1-8", "1-2"])
    learner = contacts.build(plan_of("random:2x32", table, max_residues=30))
    learner.fit(table, None, watch())
    found = learner.predict(table.without_target())
    assert [each.length for each in found.values] == [22, 30, 6]
    assert found.values[2].probability.shape == (0,)
    stats = contact_pairs.metrics(FACTS)[0].stats(table.target(), found)
    assert np.isnan(stats[2]).all()
    assert np.isnan(stats[0, 3])  # no residues of 22 are 24 apart


def by_the_example_of_fair_esm(probability, truth, length, least, divisor):
    """Sort all pairs at least so far apart, take the first L / divisor of them, and count."""
    ranked = sorted(
        ((probability[i, j], truth[i, j]) for i in range(length) for j in range(i + least, length)), reverse=True
    )
    top = ranked[: max(1, length // divisor)]
    return sum(right for _, right in top) / len(top) if top else float("nan")


def test_precisions_are_shares_of_the_likeliest_pairs():
    rng = np.random.default_rng(0)
    lengths = [40, 29, 31]
    answers, texts, expected = [], [], []
    for length in lengths:
        probability = rng.permutation(length**2).reshape(length, length) / length**2
        truth = np.triu(rng.random((length, length)) < 0.3, 1)
        i, j = pair_places(length)
        answers.append(ContactMap.of(length, probability[i, j].astype(np.float32)))
        # Also pairs too near to count, and some the other way round.
        texts.append(", ".join(f"{b + 1}-{a + 1}" if a % 2 else f"{a + 1}-{b + 1}" for a, b in np.argwhere(truth)))
        cuts = ((6, 1), (6, 2), (6, 5), (24, 1), (24, 5))
        expected.append([by_the_example_of_fair_esm(probability, truth, length, *cut) for cut in cuts])
    metrics = data.metrics(FACTS)
    assert metrics[0].name == "precision_L"
    stats = metrics[0].stats(np.array(texts, object), Predictions.of_files(answers))
    np.testing.assert_allclose(stats, expected)
    assert [metric.value(stats) for metric in metrics] == pytest.approx(np.mean(expected, axis=0))


def test_equal_scores_at_the_border_count_by_their_share():
    truth = np.array([True, False, True, False, False])
    assert precision_of(np.array([0.9, 0.5, 0.5, 0.5, 0.1]), truth, 2) == pytest.approx((1 + 1 / 3) / 2)
    assert precision_of(np.zeros(5), truth, 3) == pytest.approx(0.4)
    assert precision_of(np.arange(5), truth, 99) == pytest.approx(0.4)


def test_rivals_know_separations_and_residues():
    made = demo.touching(num_proteins=40, shortest=60, longest=90)
    table = table_of(made["sequence"], made["contacts"])
    train, test = table.take(range(30)), table.take(range(30, 40))
    answers = [rival.fit(train)(test.without_target()) for rival in data.baselines(FACTS)]
    precision = data.metrics(FACTS)[0]
    near, residues = (precision.value(precision.stats(test.target(), each)) for each in answers)
    share = np.mean([is_contact(t, len(s)).mean() for s, t in zip(test.column("sequence"), test.target(), strict=True)])
    assert share < near < residues
    # By the rule nine in ten pairs of opposite charge touch that are six apart, and 2 x 0.2 x 0.2 of all pairs are such.
    assert answers[0].values[0].probability[0] == pytest.approx(0.08 * 0.9 + 0.92 * 0.01, abs=0.02)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("1-8 3:9", "'3:9' is no pair"),
        ("A-8", "'A-8' is no pair"),
        ("0-8", "0-8 is not within the 22 residues"),
        ("1-8;3-23", "3-23 is not within the 22 residues"),
        ("", "no value in target column"),
    ],
)
def test_bad_contacts_are_listed_with_their_reason(cell, reason):
    frame = pd.DataFrame({"sequence": [SEQUENCES[0]] * 2, "contacts": ["1-8", cell]})
    (bad,) = data.read(frame, Request(target="contacts", task="contacts")).bad
    assert bad.position == 1
    assert reason in bad.reason


def test_pairs_may_be_parted_in_any_usual_way():
    for text in ("3-17 4-18", "3-17;4-18", "3-17, 4-18", "3 - 17,4-18 "):
        assert pairs_of(text).tolist() == [[2, 16], [3, 17]]
    with pytest.raises(ValueError, match="no pair"):
        pairs_of("3-17-18")


def test_training_rows_without_a_far_contact_are_refused():
    with pytest.raises(DataError, match="no contact in the training rows"):
        data.describe(table_of(SEQUENCES[:2], ["1-3", "2-7"]), "contacts", Request())


def test_answers_are_written_the_likeliest_first(tmp_path):
    ContactMap.of(8, np.array([0.1, 0.9, 0.5], np.float32)).write(tmp_path / "map.csv")
    lines = (tmp_path / "map.csv").read_text().splitlines()
    assert lines == ["i,j,probability", "1,8,0.9", "2,8,0.5", "1,7,0.1"]


def test_another_language_model_is_refused():
    with pytest.raises(UsageError, match="write random:"):
        plan_of("random-t5:2x32", table_of(SEQUENCES[:2]))
