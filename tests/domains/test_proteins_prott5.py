"""ProtT5 embeds as transformers' `T5EncoderModel` does, whatever the batch. All weights here are small and random."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration, T5Tokenizer

from domains.contract import Request
from domains.proteins import data, esm2_embed, esm2_finetune
from domains.shared.proteins import embedder, prott5
from domains.shared.proteins.language_models import ESM2, PROTT5, language_model
from domains.shared.proteins.residues import RARE, STANDARD
from trainers.contract import Machine, Plan
from trainers.errors import DataError, MissingError
from trainers.settings import SETTINGS
from trainers.vectors import VectorCache

SEQUENCES = ["MKTAYIAKQR", "ACDEFGHIKLMNPQRSTVWYXBUZO" * 3, "W"]
# As Rostlab/prot_t5_xl_half_uniref50-enc has it, but for the sizes.
SIZES = {"d_model": 48, "d_kv": 32, "d_ff": 80, "num_heads": 3, "num_layers": 3, "num_decoder_layers": 2}
SHAPE = {**SIZES, "vocab_size": 128, "feed_forward_proj": "relu", "pad_token_id": 0, "eos_token_id": 1}


@pytest.fixture(scope="module")
def tokenizer():
    """transformers' own on ProtT5's pieces: after the special ones a letter each, with the mark of a new word."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(f"▁{letter}", -2.0) for letter in "ALGVSREDTIPKFQNYMHWCXBOUZ"]
    return T5Tokenizer(vocab=[*pieces, *((f"<extra_id_{99 - i}>", 0.0) for i in range(100))])


@pytest.fixture(scope="module")
def random_network():
    """An encoder with noise on every weight, so that no scale is still at its start."""
    torch.manual_seed(0)
    network = T5EncoderModel(T5Config(**SHAPE)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


@pytest.fixture(scope="module")
def folder(random_network, tmp_path_factory):
    """The same as transformers writes it."""
    path = tmp_path_factory.mktemp("prott5")
    random_network.save_pretrained(path)
    return path


def embeddings(spec, sequences):
    with torch.no_grad():
        return prott5.pooled(prott5.load_encoder(str(spec)), *prott5.tokens(sequences, max_residues=1022))


def written_as_the_authors_do(sequence):
    return " ".join("X" if letter in "UZOB" else letter for letter in sequence)


def test_token_numbers_are_those_of_transformers_tokenizer(tokenizer):
    expected = tokenizer([written_as_the_authors_do(each) for each in SEQUENCES], padding="longest")["input_ids"]
    numbers, is_residue = prott5.tokens(SEQUENCES, max_residues=1022)
    assert numbers.tolist() == expected
    assert is_residue.sum(dim=1).tolist() == [len(each) for each in SEQUENCES]


def test_every_letter_that_reading_lets_through_has_a_token():
    numbers, _ = prott5.tokens([STANDARD + RARE], max_residues=100)
    assert prott5.UNKNOWN not in numbers
    assert len(set(numbers[0].tolist())) == len(STANDARD) + 2  # X for the rare ones, and the end


def test_embeddings_with_random_weights_are_the_mean_of_the_residues_states_alone(random_network, tokenizer, folder):
    found = embeddings(folder, SEQUENCES)
    for sequence, vector in zip(SEQUENCES, found, strict=True):
        encoded = tokenizer(written_as_the_authors_do(sequence), return_tensors="pt")
        with torch.no_grad():
            states = random_network(encoded["input_ids"]).last_hidden_state
        assert (vector - states[0, :-1].mean(dim=0)).abs().max() < 1e-4
    alone = torch.cat([embeddings(folder, [sequence]) for sequence in SEQUENCES])
    assert (found - alone).abs().max() < 1e-4


@pytest.mark.parametrize("form", ["half safetensors", "half pickle", "with a decoder"])
def test_random_weights_are_read_from_every_form_that_the_hub_has(form, random_network, folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    if form == "with a decoder":
        whole = T5ForConditionalGeneration(T5Config(**SHAPE))
        whole.encoder.load_state_dict(random_network.encoder.state_dict())
        whole.save_pretrained(tmp_path)
    elif form == "half safetensors":
        T5EncoderModel.from_pretrained(folder, dtype=torch.float16).save_pretrained(tmp_path)
    else:
        state = {name: value.half() for name, value in random_network.state_dict().items()}
        torch.save(state, tmp_path / "pytorch_model.bin")
    encoder = prott5.load_encoder(str(tmp_path))
    assert not encoder.training
    for name, value in random_network.state_dict().items():
        found = encoder.state_dict()[name]
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, value, rtol=1e-3, atol=1e-4)


def test_the_kind_of_model_is_told_from_its_config(folder):
    assert language_model(str(folder)) is PROTT5
    assert language_model(str(folder / "model.safetensors")) is PROTT5
    assert language_model("random-t5:2x32") is PROTT5
    assert language_model("random:2x32") is ESM2
    with pytest.raises(MissingError, match="Give the whole folder"):
        prott5.read_config(str(folder / "model.safetensors"))


@pytest.mark.parametrize(
    ("wrong", "said"), [({"vocab_size": 150}, "'t5' model with 150"), ({"model_type": "bert"}, "'bert'")]
)
def test_another_model_is_refused_as_its_tokens_mean_something_else(wrong, said, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **wrong}))
    with pytest.raises(DataError, match=said):
        prott5.read_config(str(tmp_path))


def test_a_checkpoint_with_a_missing_tensor_is_refused(random_network, folder, tmp_path):
    state = dict(random_network.state_dict())
    del state["encoder.block.1.layer.1.DenseReluDense.wi.weight"]
    shutil.copy(folder / "config.json", tmp_path)
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"1 tensors of a T5 encoder.*block\.1\.layer\.1\.DenseReluDense\.wi"):
        prott5.load_encoder(str(tmp_path))


def test_the_formula_counts_the_parameters_of_the_network_and_those_of_the_released_one(random_network, folder):
    config = prott5.read_config(str(folder))
    assert prott5.num_parameters(config) == sum(each.numel() for each in random_network.parameters())
    # Its file, in half precision, has 2.42 GB.
    real = {**config, "d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_heads": 32, "num_layers": 24}
    assert round(2 * prott5.num_parameters(real) / 1e9, 2) == 2.42


def frame(sequences):
    return pd.DataFrame({"sequence": sequences, "y": ["a", "b"] * (len(sequences) // 2)})


def plan_for(weights, **options):
    chosen = esm2_embed.Options(**{**esm2_embed.TINY["options"], "weights": str(weights), **options})
    settings = SETTINGS["embed"].model_validate(esm2_embed.TINY["train"])
    table = data.read(frame(SEQUENCES[:2] * 3), Request(target="y")).table
    facts = data.describe(table, "classification", Request())
    return Plan(
        *("proteins/x", "proteins", "classification", "domains.proteins.esm2_embed"),
        *(chosen.model_dump(), settings.model_dump(), facts.as_json(), Machine(), 0),
        esm2_embed.plan(facts, chosen, settings, Machine()),
    )


def encoder_for(weights, **options):
    plan = plan_for(weights, **options)
    return embedder.ProteinEncoder(plan, embedder.reference_of(plan.options["weights"], 0))


def test_what_is_cached_depends_on_sequence_weights_and_options(folder, tmp_path):
    rows = data.read(frame(["MKUA", "MKXA", "MKLA", "MKUAW"]), Request(target="y")).table
    plain = encoder_for(folder, max_residues=4)
    # U is read as X, and what is cropped away does not count.
    assert plain.keys(rows) == [b"MKXA", b"MKXA", b"MKLA", b"MKXA"]
    shutil.copytree(folder, tmp_path / "other")
    T5EncoderModel(T5Config(**SHAPE)).save_pretrained(tmp_path / "other")
    others = [encoder_for(folder), encoder_for(tmp_path / "other", max_residues=4), encoder_for("random-t5:2x32")]
    others.append(encoder_for("random:2x32"))
    identities = [each.identity for each in (plain, *others)]
    assert len(set(identities)) == 5
    assert plain.identity == encoder_for(folder, max_residues=4).identity


def test_a_second_run_encodes_nothing(folder, tmp_path, monkeypatch):
    from trainers.embed import embedded

    rows = data.read(frame(SEQUENCES[:2]), Request(target="y")).table
    for encoder in (encoder_for(folder), encoder_for(folder)):
        cache = VectorCache(tmp_path / "embeddings.sqlite")
        found = embedded(rows, encoder, cache, num_tokens=100)
        cache.close()
        monkeypatch.setattr(embedder.ProteinEncoder, "encode", None)
    np.testing.assert_allclose(found, embeddings(folder, [s[:64] for s in SEQUENCES[:2]]), atol=1e-4)


def test_a_plan_says_what_prott5_costs_and_finetuning_it_is_refused(folder):
    estimates = plan_for(folder).estimates
    assert estimates["num_parameters_frozen"] == prott5.num_parameters(prott5.read_config(str(folder)))
    with pytest.raises(DataError, match="not an ESM-2 encoder"):
        esm2_finetune.plan(SimpleNamespace(), esm2_finetune.Options(weights=str(folder)), SimpleNamespace(), Machine())
