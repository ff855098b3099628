"""Molecules that are written: n-grams, scores of samples, and the causal model over SMILES."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

import zoo
from domains.molecules import generated
from domains.molecules.ngrams import NGram
from domains.molecules.smiles_lm import Options, WritingTask, _config, _network
from domains.molecules.smiles_tokens import of_smiles
from trainers.errors import DataError
from zoo import run

TINY = {"options.width": 32, "options.depth": 1, "options.max_tokens": 32, "train.epochs": 2, "train.compile": "off"}


def value_of(name, answers):
    metric = next(each for each in generated.metrics() if each.name == name)
    return metric.value(metric.stats(np.array([]), answers))


def test_valid_unique_and_new_are_counted_as_in_moses():
    # Two are no molecules; OCC is CCO written differently; CCO was in training.
    written = ["CCO", "OCC", "C1CC", "c1ccccc1", "N", ""]
    answers = generated.predictions(written, np.array([[8.0, 4], [4.0, 4], [4, 2], [2, 2], [2, 2], [2, 2]]), {"CCO"})
    assert value_of("validity", answers) == 4 / 6
    assert value_of("uniqueness", answers) == 3 / 4
    assert value_of("novelty", answers) == 2 / 3
    assert value_of("bits_per_token", answers) == 22 / 16


def test_rows_without_a_molecule_have_no_bits_and_count_in_no_mean_of_them():
    answers = generated.predictions(["C", "CC"], np.array([[np.nan, 0], [3.0, 2]]), set())
    assert value_of("bits_per_token", answers) == 1.5
    assert list(answers.problems) == ["", ""]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_n_grams_are_probabilities_and_cost_is_their_logarithm(order):
    model = NGram(["CCO", "CCN", "CO"], order)
    for context in [(), ("C",), ("C", "C"), ("N", "F")]:
        assert model.shares(context[max(0, len(context) - order + 1) :]).sum() == pytest.approx(1)
    # Over all texts of up to so many tokens the probabilities of texts add up to nearly one.
    texts = ["".join(each) for length in range(1, 9) for each in product("CON", repeat=length)]
    total = sum(2.0 ** -model.cost(text)[0] for text in texts) + model.shares(())[model.place[""]]
    assert 0.75 < total < 1.0


def test_unigrams_are_shares_of_tokens_witten_bell_smoothed():
    model = NGram(["CC", "CO"], 1)  # six tokens with two ends; three kinds
    share = (3 + 3 * 1 / 4) / (6 + 3)
    assert model.shares(())[model.place["C"]] == pytest.approx(share)


def test_higher_orders_find_their_training_texts_likelier():
    texts = ["CCO", "CCN", "CCOCC", "CCNCC"] * 5
    costs = [sum(NGram(texts, order).cost(text)[0] for text in texts) for order in (1, 2, 4)]
    assert costs == sorted(costs, reverse=True)


@pytest.fixture
def task():
    torch.manual_seed(0)
    options = Options(width=32, depth=2, max_tokens=12)
    tokenizer = of_smiles(["CCO", "c1ccccc1", "CN"])
    network = _network(_config(options, tokenizer.size)).eval()
    return WritingTask(network, tokenizer, frozenset({"CCO"}), options, seed=0)


class Rows:
    def __init__(self, smiles):
        self.smiles, self.ids = smiles, [str(at) for at in range(len(smiles))]

    def column(self, name):
        return pd.Series(self.smiles, dtype=object)


def test_bits_of_random_weights_are_the_log_probabilities_of_each_next_token(task):
    tokens, following, _ = task.collate(Rows(["CCO", "CN"]))
    with torch.no_grad():
        costs = task._costs(task.model, tokens, following)
    for row, smiles in enumerate(["CCO", "CN"]):
        numbers = task.tokenizer.encode([smiles], 12).numbers[0].tolist()
        bits = 0.0
        for at in range(1, len(numbers)):  # one token after the other, nothing padded
            with torch.no_grad():
                logits = task.model(input_ids=torch.tensor([numbers[:at]])).logits[0, -1]
            bits -= logits.double().log_softmax(0)[numbers[at]].item() / np.log(2)
        assert costs[row] == pytest.approx([bits, len(numbers) - 1], rel=1e-4)


def test_random_weights_draw_each_token_as_often_as_they_say(task):
    logits = torch.randn(1, task.tokenizer.size).repeat(20_000, 1)
    chance = torch.from_numpy(np.random.default_rng(0).random(len(logits)))
    drawn = task._drawn(logits.clone(), chance)
    expected = logits[0].double().clone()
    expected[[0, 1, 2, 4]] = -torch.inf  # padding, unknown, start and mask are never written
    expected = expected.softmax(0)
    found = torch.bincount(drawn, minlength=len(expected)) / len(drawn)
    torch.testing.assert_close(found.double(), expected, atol=0.012, rtol=0)


def test_writing_with_the_cache_is_writing_token_by_token_without_it(task):
    rows = Rows(["CCO", "CN", "CN"])
    task.row_sizes(rows)
    _, _, chance = task.collate(rows)
    with torch.no_grad():
        written = task._written(task.model, torch.as_tensor(chance), torch.device("cpu"))
    for row in range(3):
        numbers = [2]
        for at in range(11):
            with torch.no_grad():
                logits = task.model(input_ids=torch.tensor([numbers])).logits[:, -1]
            token = task._drawn(logits, torch.as_tensor(chance[row, at : at + 1])).item()
            if token == 3:
                break
            numbers.append(token)
        assert written[row] == "".join(task.tokenizer.tokenizer.id_to_token(number) for number in numbers[1:])
    assert written[1] != written[2] or len(written[1]) < 3  # the same row twice gets two molecules


def molecules(num=60):
    rng = np.random.default_rng(0)
    smiles = ["C" * int(n) + str(rng.choice(["O", "N", "Cl", "C(=O)O"])) for n in rng.integers(1, 12, num)]
    return pd.DataFrame({"smiles": smiles})


def test_a_run_writes_into_empty_places_and_says_what_is_valid_and_new(tmp_path):
    done = run.train("molecules/smiles-lm", molecules(), set=TINY, fast=True, out=tmp_path / "run")
    assert set(done.metrics["baseline"]) == {"1-grams", "6-grams"}
    assert set(done.metrics["test"]) == {"bits_per_token", "validity", "uniqueness", "novelty"}
    places = pd.DataFrame({"number": range(5)})
    found = zoo.load(done.folder).predict(places)
    assert found["problem"].tolist() == [""] * 5
    assert set(found["prediction_valid"]) <= {0.0, 1.0}
    assert found["prediction_bits"].isna().all()
    pd.testing.assert_frame_equal(found, zoo.load(done.folder).predict(places))
    own = done.predict(molecules().iloc[:3])
    assert (own["prediction_bits"] > 0).all()


def test_a_target_or_molecules_that_are_all_too_long_are_refused(tmp_path):
    with pytest.raises(DataError, match="--target y"):
        run.train("molecules/smiles-lm", molecules().assign(y=1.0), target="y", set=TINY, fast=True, out=tmp_path / "a")
    long = pd.DataFrame({"smiles": ["C" * (40 + at) for at in range(30)]})
    with pytest.raises(DataError, match=r"Raise options\.max_tokens"):
        run.train("molecules/smiles-lm", long, set=TINY, fast=True, out=tmp_path / "b")
