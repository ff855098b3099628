"""ESM-2 gives fair-esm's numbers from every format, whatever the batch. All checkpoints here are small and random."""

import argparse

import esm
import numpy as np
import pytest
import torch

from domains.shared.esm import empty_encoder, encoder_roles, num_parameters, pool_tokens
from domains.shared.proteins.esm2 import (
    RESIDUE_TOKENS,
    VOCABULARY,
    esm2_config,
    pooled,
    tokens,
)
from domains.shared.proteins.esm2_forward import can_walk
from domains.shared.proteins.esm2_weights import load_encoder, read_config
from domains.shared.weights import random_shape
from trainers.errors import DataError, MissingError, UsageError
from trainers.memory import checkpoint_activations

LAYERS, WIDTH, HEADS = 3, 48, 3
SEQUENCES = ["MKTAYIAKQR", "ACDEFGHIKLMNPQRSTVWYXBUZO" * 3, "W"]


@pytest.fixture(scope="module")
def reference():
    """fair-esm's network, with noise on every weight so that no bias or norm is still at its start."""
    torch.manual_seed(0)
    model = esm.ESM2(LAYERS, WIDTH, HEADS, "ESM-1b").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def checkpoints(reference, tmp_path_factory):
    """The same weights as a fair-esm checkpoint, a bare state_dict, and transformers folders in both file formats."""
    folder, state = tmp_path_factory.mktemp("weights"), reference.state_dict()
    settings = argparse.Namespace(
        encoder_layers=LAYERS, encoder_embed_dim=WIDTH, encoder_attention_heads=HEADS, token_dropout=True
    )
    prefixed = {
        f"encoder.{'' if name.startswith('lm_head') else 'sentence_encoder.'}{name}": value
        for name, value in state.items()
    }
    torch.save({"cfg": {"model": settings}, "model": prefixed}, folder / "esm2_tiny.pt")
    torch.save(state, folder / "bare.pt")
    load_encoder(str(folder / "bare.pt")).save_pretrained(folder / "hub")
    return {"fair": folder / "esm2_tiny.pt", "bare": folder / "bare.pt", "hub": folder / "hub"}


def embeddings(encoder, sequences):
    with torch.no_grad():
        return pooled(encoder, *tokens(sequences, max_residues=1022))


def test_token_numbers_are_those_of_fair_esm(reference):
    assert list(VOCABULARY) == reference.alphabet.all_toks
    _, _, expected = reference.alphabet.get_batch_converter()([(str(i), s) for i, s in enumerate(SEQUENCES)])
    assert torch.equal(tokens(SEQUENCES, max_residues=1022)[0], expected)


@pytest.mark.parametrize("form", ["fair", "bare", "hub"])
def test_embeddings_equal_those_of_fair_esm_with_random_weights_in_every_format(form, reference, checkpoints):
    convert = reference.alphabet.get_batch_converter()
    with torch.no_grad():
        alone = [reference(convert([("", s)])[2], repr_layers=[LAYERS])["representations"][LAYERS] for s in SEQUENCES]
    expected = torch.stack([states[0, 1:-1].mean(dim=0) for states in alone])
    found = embeddings(load_encoder(str(checkpoints[form])), SEQUENCES)
    assert (found - expected).abs().max() < 1e-4


def test_an_embedding_does_not_depend_on_what_else_is_in_the_batch(checkpoints):
    encoder = load_encoder(str(checkpoints["hub"]))
    together = embeddings(encoder, SEQUENCES)
    alone = torch.cat([embeddings(encoder, [sequence]) for sequence in SEQUENCES])
    assert (together - alone).abs().max() < 1e-4


def test_on_cpu_gradients_equal_those_of_transformers_own_forward_pass(checkpoints):
    encoder = load_encoder(str(checkpoints["hub"]))
    numbers, is_residue = tokens(SEQUENCES, max_residues=1022)
    expected = gradients(encoder, transformers_pooled(encoder, numbers, is_residue))
    found = gradients(encoder, pooled(encoder, numbers, is_residue))
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-6, name


@pytest.mark.parametrize("sequences", [SEQUENCES, [SEQUENCES[1], SEQUENCES[1][::-1]]], ids=["padded", "of one length"])
def test_in_bfloat16_gradients_on_cpu_are_as_exact_as_those_of_transformers(sequences, checkpoints):
    encoder = load_encoder(str(checkpoints["hub"]))
    batch = tokens(sequences, max_residues=1022)
    exact = flat(gradients(encoder, transformers_pooled(encoder, *batch)))
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = pooled(encoder, *batch), transformers_pooled(encoder, *batch)
    errors = [(flat(gradients(encoder, each)) - exact).norm() / exact.norm() for each in (ours, theirs)]
    assert errors[0] < 0.05
    assert errors[0] < 1.2 * errors[1]


def transformers_pooled(encoder, numbers, is_residue):
    states = encoder(input_ids=numbers, attention_mask=(numbers != 1).long()).last_hidden_state
    return pool_tokens(states, is_residue)


def gradients(encoder, vectors):
    """Of a fixed weighted sum of the vectors, by name of the parameter."""
    weights = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
    parameters = dict(encoder.named_parameters())
    found = torch.autograd.grad((vectors * weights).sum(), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def flat(by_name):
    return torch.cat([value.float().flatten() for value in by_name.values()])


def test_pooling_ignores_start_end_and_padding_and_is_exact_on_half_precision_states():
    _, is_residue = tokens(["AC", "ACD"], max_residues=10)
    states = torch.full((2, 5, 4), 1e4, dtype=torch.bfloat16)
    states[0, 1:3], states[1, 1:4] = 2.0, 3.0
    assert torch.equal(pool_tokens(states, is_residue), torch.tensor([[2.0] * 4, [3.0] * 4]))


def test_long_sequences_are_cropped_to_the_limit_and_keep_their_end_token():
    numbers, is_residue = tokens(["A" * 2000, "C"], max_residues=1022)
    assert numbers.shape == (2, 1024)
    assert is_residue.sum(dim=1).tolist() == [1022, 1]
    assert numbers[0, -1] == 2


def test_the_formula_counts_the_parameters_of_the_network():
    config = esm2_config(layers=2, width=32, heads=2)
    assert num_parameters(config) == sum(p.numel() for p in empty_encoder(config).parameters())


def test_every_parameter_has_a_role_and_depth_grows_from_input_to_output():
    names = [name for name, _ in empty_encoder(esm2_config(layers=2, width=32, heads=2)).named_parameters()]
    roles = encoder_roles(names, 2)
    assert sorted(roles) == sorted(names)
    assert roles["embeddings.word_embeddings.weight"].depth == 0
    assert {role.depth for role in roles.values()} == {0, 1, 2}
    assert not [name for name in names if "contact" in name]


def test_random_weights_must_be_well_written():
    assert random_shape("random:6x320") == (6, 320)
    assert random_shape("facebook/esm2_t6_8M_UR50D") is None
    for spec in ("random", "random:6", "random:6x100"):
        with pytest.raises(UsageError, match="LAYERSxWIDTH"):
            random_shape(spec)


def test_a_misspelt_fair_esm_name_is_offered_the_right_one():
    with pytest.raises(MissingError, match="Did you mean esm2_t6_8M_UR50D"):
        read_config("esm2_t6_8M_UR50")


def test_a_checkpoint_with_a_missing_tensor_is_refused(checkpoints, tmp_path):
    state = torch.load(checkpoints["bare"], weights_only=True)
    del state["layers.1.fc1.weight"]
    torch.save(state, tmp_path / "torn.pt")
    with pytest.raises(DataError, match=r"torn\.pt: 1 tensors.*encoder\.layer\.1\.intermediate\.dense\.weight"):
        load_encoder(str(tmp_path / "torn.pt"))


def test_a_model_of_another_kind_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 30522}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="'bert' model with 30522 tokens"):
        read_config(str(tmp_path))


def test_every_letter_that_reading_lets_through_has_a_token():
    from domains.shared.proteins.residues import RARE, STANDARD

    assert set(STANDARD + RARE) == set(RESIDUE_TOKENS)
    assert np.unique(list(RESIDUE_TOKENS.values())).size == 25


def test_layers_that_are_computed_twice_to_save_memory_are_called_as_a_whole(checkpoints):
    encoder = load_encoder(str(checkpoints["hub"])).train()
    numbers, _ = tokens(SEQUENCES, max_residues=1022)
    assert can_walk(encoder, numbers)
    plain = embeddings(encoder, SEQUENCES)
    assert checkpoint_activations(encoder)
    assert not can_walk(encoder, numbers)
    torch.testing.assert_close(embeddings(encoder, SEQUENCES), plain, rtol=1e-4, atol=1e-4)


def test_layers_that_are_watched_are_called_one_by_one(checkpoints):
    encoder, seen = load_encoder(str(checkpoints["hub"])), []
    numbers, is_residue = tokens(SEQUENCES, max_residues=1022)
    plain = pooled(encoder, numbers, is_residue)
    for name, part in encoder.named_modules():
        part.register_forward_hook(lambda module, inputs, output, name=name: seen.append(name))
    assert not can_walk(encoder, numbers)
    assert torch.allclose(pooled(encoder, numbers, is_residue), plain, atol=1e-5)
    for part in ("query", "key", "value"):
        assert f"encoder.layer.0.attention.self.{part}" in seen


def test_a_random_checkpoint_of_ones_own_trains_without_dropout_of_attention(tmp_path):
    from transformers import EsmConfig, EsmModel

    own = {**esm2_config(layers=1, width=32, heads=2), "attention_probs_dropout_prob": 0.1}
    EsmModel(EsmConfig(**own), add_pooling_layer=False).save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path)).train()
    assert encoder.config.attention_probs_dropout_prob == 0.0
    assert read_config(str(tmp_path))["attention_probs_dropout_prob"] == 0.0
    assert can_walk(encoder, tokens(SEQUENCES, max_residues=1022)[0])
