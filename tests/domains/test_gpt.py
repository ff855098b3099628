"""Our GPT against closed forms and float64: what each part and each option does, and that all of it learns."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from domains.text.gpt import GPT, IGNORED, GPTConfig, losses, mask_of, roles
from domains.text.operations import (
    attended,
    attended_short,
    document_blocks,
    normed,
    rotated,
    rotation,
    squared_relu,
    thinned,
)
from trainers.contract import Batch, Plan
from trainers.gradient import GradientLearner

SMALL = GPTConfig(vocab_size=31, max_length=16, depth=4, width=64, num_heads=4)


def a_model(config=SMALL, *, is_silent=False, seed=0):
    """A fresh model in float64; unless it is to be silent, with output matrices and gates that are not zero."""
    torch.manual_seed(seed)
    model = GPT(config).double()
    if not is_silent:
        for parameter in model.parameters():
            if parameter.ndim == 2 and not parameter.any():
                parameter.data.normal_(std=0.2)
        model.head.weight.data.normal_(std=0.3)
    return model


def some_tokens(rows=3, length=16, seed=1):
    return torch.randint(0, 31, (rows, length), generator=torch.Generator().manual_seed(seed))


# --- what a position can see ---


def test_no_logit_depends_on_a_later_token():
    model, tokens = a_model(), some_tokens()
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 31
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :9], before[:, :9], rtol=0, atol=1e-12)
    assert (after[:, 9:] - before[:, 9:]).abs().amax(dim=(0, 2)).min() > 1e-6  # and every later one does


def test_a_window_hides_what_lies_farther_back():
    model = a_model(replace(SMALL, short_window=3, depth=2))
    attention, x = model.blocks[0].attention, torch.randn(2, 16, 64, dtype=torch.float64)
    mask = mask_of(16, model.config.window(0), None, x.device)
    out = attention(x, model.rotation_2T1E, mask, None)
    changed = x.clone()
    changed[:, 5] += 1.0
    moved = (attention(changed, model.rotation_2T1E, mask, None) - out).abs().amax(dim=(0, 2)) > 1e-9
    assert moved.nonzero().flatten().tolist() == [5, 6, 7]


def test_the_pattern_repeats_over_the_layers_and_the_last_layer_sees_all():
    config = replace(SMALL, depth=7, short_window=5)
    assert [config.window(layer) for layer in range(7)] == [5, 5, 5, 16, 5, 5, 16]
    assert replace(config, short_window=None).window(0) == 8


def test_attention_equals_a_float64_softmax_written_out():
    model = a_model(replace(SMALL, qk_norm=False, value_embeddings=False, depth=1))
    attention, x = model.blocks[0].attention, torch.randn(1, 16, 64, dtype=torch.float64)
    query, key, value = (
        (x @ w.T).view(1, 16, 4, 16) for w in (attention.query_DD, attention.key_CD, attention.value_CD)
    )
    query, key = (rotated(each, model.rotation_2T1E)[0] for each in (query, key))
    scores = torch.einsum("qhe,khe->hqk", query, key) / 4
    scores = scores.masked_fill(torch.ones(16, 16).triu(1).bool(), -math.inf)
    expected = torch.einsum("hqk,khe->qhe", scores.softmax(-1), value[0]).reshape(16, 64) @ attention.output.weight.T
    torch.testing.assert_close(attention(x, model.rotation_2T1E, None, None)[0], expected)


@pytest.mark.parametrize("windows", ["L", "SSSL"])
def test_documents_packed_into_a_row_come_out_as_if_they_were_alone(windows):
    model, tokens = a_model(replace(SMALL, windows=windows, short_window=4)), some_tokens(rows=2)
    documents = torch.tensor([[0] * 5 + [1] * 11, [3] * 7 + [1] * 2 + [2] * 7])
    packed = model(tokens, documents)
    for row, start, stop in ((0, 0, 5), (0, 5, 16), (1, 0, 7), (1, 7, 9), (1, 9, 16)):
        alone = model(tokens[row : row + 1, start:stop])
        torch.testing.assert_close(packed[row : row + 1, start:stop], alone, rtol=1e-6, atol=1e-7)


# --- parts ---


@pytest.mark.parametrize("is_masked", [False, True])
def test_short_attention_for_cpus_and_its_gradients_are_those_of_torch(is_masked):
    inputs = [torch.randn(3, 16, 4, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    documents = torch.arange(16).div(5, rounding_mode="floor").expand(3, 16)
    mask = mask_of(16, 16, documents, documents.device) if is_masked else None
    ours, theirs = attended_short(*inputs, mask), attended(*inputs, mask)
    torch.testing.assert_close(ours, theirs)
    gradient = torch.randn_like(ours)
    for mine, other in zip(*(torch.autograd.grad(each, inputs, gradient) for each in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other)


def test_training_in_bf16_on_a_cpu_attends_like_float32_to_a_hundredth():
    inputs = [torch.randn(3, 16, 4, 8, requires_grad=True) for _ in range(3)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attended(*inputs, None)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), attended(*inputs, None), atol=2e-2, rtol=2e-2)


def test_dropout_leaves_out_whole_channels_of_a_row_and_keeps_the_mean():
    torch.manual_seed(0)
    thin = thinned(torch.ones(200, 5, 64), 0.25)
    assert thin.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert torch.equal(thin[:, 0], thin[:, 4])
    assert not torch.equal(thin[0], thin[1])
    assert thin.mean().item() == pytest.approx(1, abs=0.02)
    model, tokens = a_model(replace(SMALL, dropout=0.5)), some_tokens()
    assert not torch.equal(model(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))


@pytest.mark.parametrize(("window", "kv_heads"), [(16, 4), (5, 2)])
def test_blocks_of_documents_give_what_the_mask_of_documents_gives(window, kv_heads):
    query, key, value = (torch.randn(2, 16, heads, 8) for heads in (4, kv_heads, kv_heads))
    documents = torch.tensor([[0] * 5 + [1] * 11, [0] * 7 + [1] * 2 + [-1] * 7])
    mask = mask_of(16, window, documents, documents.device)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a CPU it is meant to be compiled
        found = attended(query, key, value, document_blocks(documents, window))
    torch.testing.assert_close(found, attended(query, key, value, mask))


def test_rotated_queries_and_keys_know_distances_only():
    angles = rotation(64, 8, 10_000.0).double()
    query, key = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8, dtype=torch.float64)
    at = [(rotated(query, angles[:, i : i + 1]) * rotated(key, angles[:, i - 7 : i - 6])).sum() for i in (7, 20, 63)]
    torch.testing.assert_close(torch.stack(at), at[0].expand(3), rtol=1e-5, atol=1e-6)
    assert abs((rotated(query, angles[:, 7:8]) * rotated(key, angles[:, 6:7])).sum() - at[0]) > 1e-3


def test_rotation_turns_complex_numbers():
    x, angles = torch.randn(1, 5, 2, 8, dtype=torch.float64), rotation(5, 8, 100.0).double()
    rates = 100.0 ** -(torch.arange(0, 8, 2) / 8)
    turned = torch.complex(x[..., ::2], x[..., 1::2]) * torch.exp(1j * torch.arange(5)[:, None] * rates)[:, None]
    expected = torch.stack([turned.real, turned.imag], dim=-1).flatten(-2)
    torch.testing.assert_close(rotated(x, angles), expected, rtol=1e-5, atol=1e-6)


def test_gradients_written_by_hand_are_those_of_finite_differences():
    x, angles = torch.randn(1, 3, 2, 6, dtype=torch.float64, requires_grad=True), rotation(3, 6, 100.0)
    for operation in (normed, squared_relu, lambda x: rotated(x, angles)):
        assert torch.autograd.gradcheck(operation, (x,))


def test_operations_for_cpus_equal_those_for_other_devices():
    x, angles = torch.randn(2, 5, 4, 8), rotation(5, 8, 100.0)
    torch.testing.assert_close(normed(x), functional.rms_norm(x, (8,), eps=1e-6))
    torch.testing.assert_close(squared_relu(x), x.relu().square())
    query, key = normed(x), normed(x.flip(2))
    plain = functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (query, key, x)), is_causal=True)
    torch.testing.assert_close(attended(query, key, x, None), plain.transpose(1, 2))
    halves = rotated(x.bfloat16(), angles)
    assert halves.dtype is torch.float32
    torch.testing.assert_close(halves, rotated(x, angles), rtol=0, atol=0.05)


def test_shared_keys_and_values_equal_heads_that_repeat_them():
    shared = a_model(replace(SMALL, num_kv_heads=2))
    full = a_model(SMALL)
    weights = shared.state_dict()
    for name, weight in weights.items():
        if name.endswith(("key_CD", "value_CD")):
            weights[name] = weight.view(2, 16, 64).repeat_interleave(2, dim=0).reshape(64, 64)
        elif name.startswith("value_embeddings"):
            weights[name] = weight.view(31, 2, 16).repeat_interleave(2, dim=1).reshape(31, 64)
        elif "attention.gate" in name:
            weights[name] = weight.repeat_interleave(2, dim=0)
    full.load_state_dict(weights)
    torch.testing.assert_close(shared(some_tokens()), full(some_tokens()))


@pytest.mark.parametrize("kind", ["relu2", "swiglu"])
def test_the_feed_forward_part_is_its_formula(kind):
    part, x = a_model(replace(SMALL, feed_forward=kind)).blocks[0].feed_forward, torch.randn(5, 64, dtype=torch.float64)
    inside = x @ part.inner.weight.T
    inside = inside.clamp_min(0) ** 2 if kind == "relu2" else functional.silu(x @ part.gate.weight.T) * inside
    assert inside.shape[1] == (256 if kind == "relu2" else 192)  # 4 x 64; 8/3 x 64 = 170.7, up to whole 64s
    torch.testing.assert_close(part(x), inside @ part.output.weight.T)


def test_a_fresh_model_finds_all_tokens_about_equally_likely_and_its_blocks_silent():
    model, tokens = a_model(is_silent=True), some_tokens()
    x = torch.randn(2, 16, 64, dtype=torch.float64)
    values = torch.randn(2, 16, 64, dtype=torch.float64)
    assert torch.equal(model.blocks[1](x, model.rotation_2T1E, None, values), x)
    loss = losses(model(tokens), tokens)["cross_entropy"] / tokens.numel()
    assert loss.item() == pytest.approx(math.log(31), abs=0.01)
    assert model.blocks[1].attention.query_DD.abs().max() <= (3 / 64) ** 0.5
    assert model.embedding.weight.std().item() == pytest.approx(1.0, abs=0.05)


def test_the_gate_of_the_value_embeddings_starts_at_one():
    attention = a_model(is_silent=True).blocks[3].attention
    attention.output.weight.data.copy_(torch.eye(64))
    x, values = torch.randn(1, 1, 64, dtype=torch.float64), torch.randn(1, 1, 64, dtype=torch.float64)
    # One position sees itself alone: its value comes out.
    found = attention(x, rotation(1, 16, 1e4), None, values)
    torch.testing.assert_close(found, x @ attention.value_CD.T + values)


def test_every_second_layer_up_to_the_last_has_value_embeddings():
    assert list(a_model(replace(SMALL, depth=5)).value_embeddings) == ["0", "2", "4"]
    assert len(a_model(replace(SMALL, value_embeddings=False)).value_embeddings) == 0


def test_depth_alone_fixes_width_and_heads():
    shapes = [(c.width, c.num_heads) for c in (GPTConfig.of_depth(d, vocab_size=9, max_length=8) for d in (3, 4, 12))]
    assert shapes == [(256, 2), (256, 2), (768, 6)]


# --- options ---


def test_the_cap_is_a_hyperbolic_tangent_and_without_it_logits_grow():
    capped, free = a_model(), a_model(replace(SMALL, logit_cap=None))
    for model in (capped, free):
        model.head.weight.data.mul_(20)
    plain = free(some_tokens())
    assert plain.abs().max() > 40
    torch.testing.assert_close(capped(some_tokens()), 15 * torch.tanh(plain / 15))


def test_logits_are_float32_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert GPT(SMALL)(some_tokens()).dtype is torch.float32


def test_normalised_queries_do_not_care_for_the_size_of_their_matrix():
    def moved(config):
        before, after = a_model(config), a_model(config)
        for block in after.blocks:
            block.attention.query_DD.data.mul_(3)
        return float((after(some_tokens()) - before(some_tokens())).abs().max())

    assert moved(SMALL) < 1e-4
    assert moved(replace(SMALL, qk_norm=False)) > 0.1


def test_queries_have_mean_square_one_so_that_no_product_exceeds_the_width_of_a_head():
    x = normed(torch.randn(50, 16, dtype=torch.float64) * 100)
    torch.testing.assert_close(x.square().mean(-1), torch.ones(50, dtype=torch.float64))
    assert (x @ x.T).abs().max() <= 16 + 1e-6


def test_a_normalised_embedding_does_not_care_for_the_size_of_its_table():
    def moved(config):
        before, after = a_model(config), a_model(config)
        after.embedding.weight.data.mul_(3)
        return float((after(some_tokens()) - before(some_tokens())).abs().max())

    assert moved(SMALL) < 1e-4
    assert moved(replace(SMALL, embedding_norm=False)) > 0.01


def test_z_loss_is_the_squared_log_of_the_normaliser_and_pulls_it_to_one():
    logits = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, 2, IGNORED], [0, IGNORED, 6]])
    found = losses(logits, targets, z_loss=0.1)
    kept = logits.detach()[targets != IGNORED]
    normaliser = kept.exp().sum(-1).log()
    torch.testing.assert_close(found["z"].detach(), 0.1 * (normaliser**2).sum())
    chosen = kept[torch.arange(4), torch.tensor([1, 2, 0, 6])]
    torch.testing.assert_close(found["cross_entropy"].detach(), (normaliser - chosen).sum())
    (gradient,) = torch.autograd.grad(found["z"], logits)
    expected = 0.2 * normaliser[:, None] * kept.softmax(-1)
    torch.testing.assert_close(gradient[targets != IGNORED], expected)
    assert not gradient[targets == IGNORED].any()
    assert "z" not in losses(logits, targets)


def test_a_tied_model_has_one_table_and_answers_with_it():
    model = a_model(replace(SMALL, is_tied=True))
    assert model.head.weight is model.embedding.weight
    assert roles(model)["embedding.weight"].kind == "head"
    assert "head.weight" not in roles(model)


def test_computing_activations_twice_changes_no_gradient():
    kept, twice = a_model(), a_model()
    twice.set_grad_checkpointing()
    for model in (kept, twice):
        losses(model(some_tokens()), some_tokens())["cross_entropy"].backward()
    for one, other in zip(kept.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


# --- wrong numbers ---


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"width": 66}, "width 66"), ({"num_kv_heads": 3}, "num_kv_heads 3"), ({"windows": "SXL"}, "'SXL'")],
)
def test_a_shape_that_cannot_be_is_refused_with_its_value(wrong, said):
    with pytest.raises(ValueError, match=said):
        replace(SMALL, **wrong)


def test_more_tokens_than_max_length_are_refused():
    with pytest.raises(ValueError, match="17 tokens in a row, but max_length is 16"):
        a_model()(some_tokens(length=17))


# --- learning ---


@pytest.mark.parametrize(
    "options",
    [{}, {"num_kv_heads": 1, "feed_forward": "swiglu", "windows": "SL"}, {"is_tied": True, "embedding_norm": False}],
)
def test_every_parameter_has_a_role_and_gets_a_gradient(options):
    model = a_model(replace(SMALL, **options))
    losses(model(some_tokens()), some_tokens(seed=2), z_loss=1e-4)["cross_entropy"].backward()
    known = roles(model)
    assert set(known) == {name for name, _ in model.named_parameters()}
    without = [name for name, parameter in model.named_parameters() if not parameter.grad.any()]
    assert not without
    assert all(parameter.ndim == 2 for name, parameter in model.named_parameters() if known[name].kind == "matrix")


def test_the_roles_are_those_of_the_table_of_rates():
    kinds = {name: role.kind for name, role in roles(a_model()).items()}
    assert kinds["embedding.weight"] == kinds["value_embeddings.3.weight"] == "embedding"
    assert kinds["head.weight"] == "head"
    assert {kinds[name] for name in ("residual_L", "x0_L", "head.bias", "blocks.1.attention.gate.weight")} == {"scalar"}
    matrices = {name.split(".", 2)[2] for name, kind in kinds.items() if kind == "matrix"}
    attention = {f"attention.{part}" for part in ("query_DD", "key_CD", "value_CD", "output.weight")}
    assert matrices == attention | {"feed_forward.inner.weight", "feed_forward.output.weight"}


class Silence:
    """A watch that sees nothing and never stops."""

    metric, higher_is_better, rank, world = "loss", False, 0, 1

    def __init__(self, folder):
        self.folder = self.cache = folder

    def log(self, **event):
        pass

    def should_stop(self):
        return None


class CountingTask:
    """Rows that count upwards from anywhere."""

    couples_rows, min_rows = False, 1

    def __init__(self, statistics, pretrained):
        self.model = GPT(replace(SMALL, depth=2, z_loss=1e-4))

    def roles(self):
        return roles(self.model)

    def examples(self, train, folder):
        return range(31)

    def sizes(self, examples):
        return None

    def draw(self, examples, rngs):
        rows = (torch.tensor(examples)[:, None] + torch.arange(17)) % 31
        count = float(rows[:, 1:].numel())
        return Batch((rows[:, :-1], rows[:, 1:]), {"cross_entropy": count, "z": count})

    def loss(self, model, inputs):
        return losses(model(inputs[0]), inputs[1], z_loss=1e-4)


def test_the_loop_trains_it_with_muon_and_adamw(tmp_path):
    settings = {"optimizer": "muon+adamw", "steps": 30, "batch_size": 8, "precision": "fp32", "compile": "off"}
    learner = GradientLearner(Plan("", "text", "generation", "", {}, settings, {}), lambda train: {}, CountingTask)
    learner.fit(range(31), None, Silence(tmp_path))
    tokens = torch.arange(17)[None]
    loss = losses(learner.task.model(tokens[:, :-1]), tokens[:, 1:])["cross_entropy"] / 16
    assert float(loss) < 0.1  # it was log(31) = 3.4
