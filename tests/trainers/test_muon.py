"""Muon against a float64 SVD, against torch.optim.Muon, and against AdamW of torch."""

import math

import pytest
import torch

from trainers.muon import (
    NEWTON_SCHULZ,
    POLAR_EXPRESS,
    MuonAdamW,
    momentum_at,
    neuron_factors,
    orthogonalized,
    shape_factor,
)


def polar(matrix):
    u, _, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    return u @ vt


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64), (96, 32), (32, 96)])
def test_orthogonalizing_a_stack_gives_the_polar_factors_of_a_float64_svd(shape, dtype):
    torch.manual_seed(0)
    stack = torch.randn(3, *shape)
    found = orthogonalized(stack, dtype=dtype)
    assert found.dtype is torch.float32
    for matrix, near in zip(stack, found, strict=True):
        exact = polar(matrix)
        # Five steps leave every singular value above a thousandth of the norm within 16 per cent of 1.
        cosine = (exact * near.double()).sum() / (exact.norm() * near.double().norm())
        assert cosine > 0.985
        values = torch.linalg.svdvals(near.double())
        assert values.max() < 1.16
        assert values.median() > 0.9


def test_the_five_polynomials_bring_every_singular_value_from_a_thousandth_to_near_one():
    values = torch.logspace(-3, 0, 400, dtype=torch.float64)
    for a, b, c in POLAR_EXPRESS:
        values = a * values + b * values**3 + c * values**5
    assert (values - 1).abs().max() < 0.16
    # The rival needs larger values to start with: the optimal polynomials are at least as near everywhere below 1/100.
    rival = small = torch.logspace(-3, -2, 100, dtype=torch.float64)
    for a, b, c in NEWTON_SCHULZ:
        rival = a * rival + b * rival**3 + c * rival**5
    for a, b, c in POLAR_EXPRESS:
        small = a * small + b * small**3 + c * small**5
    assert (small - 1).abs().mean() < (rival - 1).abs().mean()


@pytest.mark.parametrize("shape", [(48, 48), (64, 16), (16, 64)])
def test_without_its_additions_it_is_the_muon_of_torch(shape):
    torch.manual_seed(1)
    start = torch.randn(shape) * 0.1
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    group = {"params": [ours], "kind": "muon", "lr": 0.02, "weight_decay": 0.1}
    mine = MuonAdamW([group], betas=(0.9, 0.95), eps=1e-8, momentum=0.85, beta2=None, cautious=False,
                     coefficients=NEWTON_SCHULZ)  # fmt: skip
    other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.85, adjust_lr_fn="original")
    for _ in range(5):
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        other.step()
    moved = (theirs - start).norm()
    # torch orthogonalizes in bfloat16, we in float32 on a CPU.
    assert (ours - theirs).norm() / moved < 0.02


def test_the_other_parameters_get_exactly_the_adamw_of_torch():
    torch.manual_seed(2)
    start = torch.randn(7)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    group = {"params": [ours], "kind": "adamw", "lr": 0.01, "weight_decay": 0.1}
    mine = MuonAdamW([group], betas=(0.8, 0.95), eps=1e-10)
    other = torch.optim.AdamW([theirs], lr=0.01, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.1, fused=True)
    for _ in range(5):
        gradient = torch.randn(7)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        other.step()
    assert torch.equal(ours, theirs)


def test_a_stack_moves_each_matrix_as_it_would_move_alone():
    torch.manual_seed(3)
    starts, gradients = torch.randn(3, 24, 16), torch.randn(3, 24, 16)

    def moved(matrices, grads):
        parameters = [torch.nn.Parameter(matrix.clone()) for matrix in matrices]
        for parameter, gradient in zip(parameters, grads, strict=True):
            parameter.grad = gradient.clone()
        group = {"params": parameters, "kind": "muon", "lr": 0.02, "weight_decay": 0.2}
        MuonAdamW([group], betas=(0.9, 0.95), eps=1e-8).step()
        return torch.stack([parameter.detach() for parameter in parameters])

    together = moved(starts, gradients)
    alone = torch.cat([moved(starts[k : k + 1], gradients[k : k + 1]) for k in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("shape", "dim"), [((20, 8), -1), ((8, 20), -2)])
def test_neurons_get_steps_of_like_size_and_the_matrix_keeps_its_size(shape, dim):
    torch.manual_seed(4)
    update = torch.randn(2, *shape) * torch.logspace(-1, 1, shape[0])[:, None]
    keep = (shape[0], 1) if dim == -1 else (1, shape[1])
    found = update * neuron_factors(update, [torch.zeros(keep) for _ in range(2)], 0.95)
    torch.testing.assert_close(found.norm(dim=(-2, -1)), update.norm(dim=(-2, -1)))
    sizes = found.norm(dim=dim)
    assert (sizes.std(dim=1) / sizes.mean(dim=1)).max() < 1e-3


def test_steps_with_bf16_products_are_those_of_float32_within_its_rounding():
    torch.manual_seed(6)
    start, gradient = torch.randn(48, 16), torch.randn(48, 16)

    def change(dtype):
        weight = torch.nn.Parameter(start.clone())
        weight.grad = gradient.clone()
        group = {"params": [weight], "kind": "muon", "lr": 0.02}
        MuonAdamW([group], betas=(0.9, 0.95), eps=1e-8, dtype=dtype).step()
        assert weight.dtype is torch.float32
        return weight.detach() - start

    exact, rounded = change(None), change(torch.bfloat16)
    assert (rounded - exact).norm() / exact.norm() < 0.02


def test_cautious_decay_shrinks_only_weights_that_the_update_shrinks_too():
    torch.manual_seed(5)
    weight = torch.nn.Parameter(torch.randn(16, 16))
    before, gradient = weight.detach().clone(), torch.randn(16, 16)
    weight.grad = gradient
    group = {"params": [weight], "kind": "muon", "lr": 0.1, "weight_decay": 0.5}
    plain = {**group, "params": [torch.nn.Parameter(before.clone())], "weight_decay": 0.0}
    plain["params"][0].grad = gradient.clone()
    MuonAdamW([group], betas=(0.9, 0.95), eps=1e-8).step()
    MuonAdamW([plain], betas=(0.9, 0.95), eps=1e-8).step()
    change = before - plain["params"][0].detach()
    decayed = plain["params"][0].detach() - weight.detach()
    agrees = change * before > 0
    torch.testing.assert_close(decayed[agrees], 0.05 * before[agrees], atol=1e-5, rtol=1e-4)
    assert decayed[~agrees].abs().max() < 1e-6


def test_momentum_warms_up_and_the_rate_follows_the_shape():
    assert [momentum_at(step, 0.95) for step in (0, 150, 300, 9000)] == pytest.approx([0.85, 0.90, 0.95, 0.95])
    assert shape_factor(64, 16) == 2.0
    assert shape_factor(16, 64) == 1.0


def test_a_matrix_of_zero_gradient_stays_finite():
    weight = torch.nn.Parameter(torch.ones(4, 4))
    weight.grad = torch.zeros(4, 4)
    MuonAdamW([{"params": [weight], "kind": "muon", "lr": 0.1}], betas=(0.9, 0.95), eps=1e-8).step()
    assert torch.isfinite(weight).all()


@pytest.mark.parametrize("bad", [math.nan, 3.0])
def test_a_step_that_is_left_out_on_the_device_changes_nothing(bad):
    torch.manual_seed(0)
    matrix, scalar = torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3))
    groups = [
        {"params": [matrix], "kind": "muon", "lr": 0.1, "weight_decay": 0.1},
        {"params": [scalar], "kind": "adamw", "lr": 0.1},
    ]
    optimizer = MuonAdamW(groups, betas=(0.8, 0.95), eps=1e-10)

    def step(value, skip):
        matrix.grad, scalar.grad = torch.full((4, 3), value), torch.full((3,), value)
        matrix.grad[0, 0] = 0.5
        optimizer.found_inf = torch.tensor(float(skip))
        optimizer.step()

    def memory():
        tensors = [matrix, scalar, *(v for p in (matrix, scalar) for k, v in optimizer.state[p].items() if k != "step")]
        return [tensor.detach().clone() for tensor in tensors]

    step(1.0, skip=False)
    before = memory()
    step(bad, skip=True)
    assert all(torch.equal(a, b) for a, b in zip(memory(), before, strict=True))
    step(1.0, skip=False)
    assert not torch.equal(matrix, before[0])
