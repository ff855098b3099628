"""Molecules: SMILES as tokens, other writings of a molecule, and fine-tuning of encoders (random ones in the real format)."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from rdkit import Chem

import zoo
from domains.molecules import lm_finetune
from domains.molecules.chemistry import PATTERN
from domains.molecules.smiles_tokens import of_smiles, other_writing, other_writings
from trainers.errors import MissingError, UsageError
from zoo import run

SMILES = [
    "CCO",
    "C[C@H](N)C(=O)O",
    "C/C=C/Cl",
    "c1ccc2[nH]ccc2c1",
    "[Na+].[Cl-]",
    "CC(Br)C%10CCCCC%10",
    "[13CH3]O",
    "C",
]
TINY = {"options.weights": "random:2x32", "options.max_tokens": 64, "train.epochs": 2, "train.compile": "off"}


def test_tokens_are_atoms_and_bonds_and_lose_nothing():
    assert [re.findall(PATTERN, text) for text in ("C[C@H](Cl)Br", "C%10=N")] == [
        ["C", "[C@H]", "(", "Cl", ")", "Br"],
        ["C", "%10", "=", "N"],
    ]
    tokenizer = of_smiles(SMILES)
    for text in SMILES:
        numbers = tokenizer.encode([text], 64).numbers[0]
        names = [tokenizer.tokenizer.id_to_token(int(number)) for number in numbers]
        assert (names[0], "".join(names[1:-1]), names[-1]) == ("[CLS]", text, "[SEP]")


def test_the_same_texts_give_the_same_tokenizer_in_any_order():
    assert of_smiles(SMILES).as_json() == of_smiles(SMILES[::-1]).as_json()


@pytest.mark.parametrize("smiles", SMILES)
def test_another_writing_is_the_same_molecule_and_the_same_for_the_same_seed(smiles):
    canonical = Chem.CanonSmiles(smiles)
    written = {other_writing(canonical, seed) for seed in range(1, 20)}
    assert {Chem.CanonSmiles(text) for text in written} == {canonical}
    assert other_writing(canonical, 7) == other_writing(canonical, 7)
    assert len(written) > 1 or smiles in ("C", "[Na+].[Cl-]", "[13CH3]O")
    assert other_writings([canonical], 3)[0] == canonical


def molecules(num=40):
    rng = np.random.default_rng(0)
    smiles = [
        f"C{'C' * int(n)}{'O' * int(o)}" for n, o in zip(rng.integers(0, 15, num), rng.integers(0, 2, num), strict=True)
    ]
    return pd.DataFrame({"smiles": smiles, "y": [float(len(each)) for each in smiles]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random RoBERTa with its tokenizer, as transformers saves it."""
    from transformers import RobertaConfig, RobertaModel

    from domains.shared.tokens import write_for_transformers

    place = tmp_path_factory.mktemp("roberta")
    tokenizer = of_smiles(SMILES)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = RobertaConfig(vocab_size=tokenizer.size, pad_token_id=0, max_position_embeddings=100, **sizes)
    RobertaModel(config).eval().save_pretrained(place)
    write_for_transformers(tokenizer, place, 99)
    return place


def test_a_random_roberta_in_a_folder_gives_the_mean_state_that_transformers_itself_gives(folder, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    sets = {**TINY, "options.weights": str(folder), "train.epochs": 1, "train.lr": 1e-12, "train.head_lr": 1e-12}
    done = run.train("molecules/lm-finetune", molecules(), target="y", set=sets, fast=True, out=tmp_path / "run")
    learner = zoo.load(done.folder)._learner
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        for smiles in ("CCO", "CCCCCCCO"):
            state = model(**tokenizer([smiles], return_tensors="pt")).last_hidden_state.mean(dim=1)
            ours = learner.task.model(*learner.task._tokens([smiles]))
            torch.testing.assert_close(ours, learner.task.model.head(state), atol=1e-5, rtol=1e-5)


def test_views_are_averaged_and_do_not_depend_on_the_batch(folder):
    outcome = lm_finetune.Outcome(mean=1.0, std=2.0)
    options = lm_finetune.Options(weights=str(folder), views=3, max_tokens=64)
    config = lm_finetune.config_of(folder)
    torch.manual_seed(0)
    network = lm_finetune.PooledEncoder(lm_finetune.empty_encoder(config, 0.0), 32, 1, options).eval()
    task = lm_finetune.SmilesTask(network, outcome, of_smiles(SMILES), options, print)
    table = pd.DataFrame({"smiles": SMILES})

    def answers(frame):
        with torch.no_grad():
            return task.predict(network, task.collate(Rows(frame))).values

    class Rows:
        def __init__(self, frame):
            self.frame = frame

        def column(self, name):
            return self.frame[name]

    whole = answers(table)
    alone = np.concatenate([answers(table.iloc[[at]]) for at in range(len(table))])
    np.testing.assert_allclose(whole, alone, rtol=1e-4)
    written = other_writings([SMILES[1]], 3)
    with torch.no_grad():
        expected = network(*task._tokens(written)).mean().item() * 2 + 1
    assert whole[1] == pytest.approx(expected, rel=1e-4)


def test_training_writes_a_molecule_anew_and_its_target_stays(folder):
    options = lm_finetune.Options(weights=str(folder), rewrite=1.0)
    task = lm_finetune.SmilesTask(torch.nn.Linear(1, 1), lm_finetune.Outcome(), of_smiles(SMILES), options, print)
    rngs = [np.random.default_rng(at) for at in range(2)]
    numbers, is_token, target = task.draw([(SMILES[3], 1.0), (SMILES[1], -1.0)], rngs).inputs
    texts = [
        "".join(task.tokenizer.tokenizer.id_to_token(int(n)) for n in row[here][1:-1])
        for row, here in zip(numbers, is_token, strict=True)
    ]
    assert [Chem.CanonSmiles(text) for text in texts] == [Chem.CanonSmiles(each) for each in (SMILES[3], SMILES[1])]
    assert target.tolist() == [1.0, -1.0]


def test_weights_that_are_not_here_and_too_many_tokens_end_before_training(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingError, match=r"hf download|no such file"):
        lm_finetune.find(str(tmp_path / "nowhere"))
    sets = {**TINY, "options.weights": str(folder), "options.max_tokens": 512}
    with pytest.raises(UsageError, match=r"options\.max_tokens=99"):
        run.train("molecules/lm-finetune", molecules(), target="y", set=sets, fast=True, out=tmp_path / "run")
