"""Parameter groups by role, and an optimizer's memory by name."""

import copy
import json
import sys

import pytest
import torch
from torch import nn

from trainers import optim
from trainers.contract import Role
from trainers.errors import MissingError, UsageError
from trainers.settings import Gradient


def model_and_roles():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    roles = {
        "0.weight": Role("embedding", 0),
        "1.weight": Role("matrix", 1),
        "1.bias": Role("scalar", 1),
        "2.weight": Role("scalar", 2),
        "2.bias": Role("scalar", 2),
        "3.weight": Role("head", 3),
        "3.bias": Role("head", 3),
    }
    return model, roles


def facts(optimizer):
    return {name: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for name in group["names"]}


def test_only_matrices_are_decayed():
    found = facts(optim.make_optimizer(*model_and_roles(), Gradient(weight_decay=0.1)))
    assert [name for name, (_, decay) in sorted(found.items()) if decay] == ["1.weight", "3.weight"]


def test_layers_learn_the_more_slowly_the_nearer_they_are_to_the_input():
    found = facts(optim.make_optimizer(*model_and_roles(), Gradient(lr=1.0, layer_decay=0.5)))
    assert [found[name][0] for name in ("0.weight", "1.bias", "2.weight", "3.bias")] == [0.125, 0.25, 0.5, 1.0]


def test_the_head_may_have_a_rate_of_its_own():
    found = facts(optim.make_optimizer(*model_and_roles(), Gradient(lr=1e-5, head_lr=1e-3)))
    assert found["3.weight"][0] == 1e-3
    assert found["1.weight"][0] == 1e-5


def test_a_parameter_without_a_role_does_not_train():
    model, roles = model_and_roles()
    del roles["0.weight"]
    found = facts(optim.make_optimizer(model, roles, Gradient()))
    assert "0.weight" not in found
    assert not model[0].weight.requires_grad


def test_a_tied_parameter_is_in_one_group():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    found = facts(optim.make_optimizer(model, {"0.weight": Role("embedding")}, Gradient()))
    assert list(found) == ["0.weight"]
    both = {"0.weight": Role("embedding"), "1.weight": Role("head", 1)}
    assert list(facts(optim.make_optimizer(model, both, Gradient()))) == ["0.weight"]


def test_a_role_of_no_parameter_is_named_with_its_neighbour():
    model, _ = model_and_roles()
    with pytest.raises(ValueError, match=r"'3\.wieght'.*Did you mean 3\.weight"):
        optim.make_optimizer(model, {"3.wieght": Role("head")}, Gradient())


def test_freezing_without_a_head_is_refused():
    model, roles = model_and_roles()
    with pytest.raises(UsageError, match="freeze_epochs=0"):
        optim.make_optimizer(model, {"1.weight": roles["1.weight"]}, Gradient(freeze_epochs=1))


def test_head_only_leaves_gradients_to_the_head_and_can_be_undone():
    model, roles = model_and_roles()
    optimizer = optim.make_optimizer(model, roles, Gradient())
    optim.set_head_only(optimizer, True)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["3.weight", "3.bias"]
    optim.set_head_only(optimizer, False)
    assert all(p.requires_grad for p in model.parameters())


HERE = ["adamw", "sgd", "muon+adamw", "adafactor", "lamb", "lars", "lion", "schedule-free", "soap"]


def step(model, optimizer):
    model(torch.tensor([[0, 1], [2, 3]])).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", HERE)
def test_an_optimizer_with_restored_memory_goes_on_bit_by_bit(name):
    settings = Gradient(optimizer=name)
    model, roles = model_and_roles()
    optimizer = optim.make_optimizer(model, roles, settings)
    for _ in range(12):  # soap turns its axes every tenth step
        step(model, optimizer)
    memory, tensors = optim.optimizer_memory(optimizer)
    memory, tensors = (
        json.loads(json.dumps(memory)),
        {name: tensor.clone().contiguous() for name, tensor in tensors.items()},
    )
    twin = copy.deepcopy(model)
    other = optim.make_optimizer(twin, roles, settings)
    optim.load_optimizer_memory(other, memory, tensors)
    for _ in range(12):
        step(model, optimizer)
        step(twin, other)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("name", HERE)
def test_every_optimizer_descends_at_its_own_default_rates(name):
    model, roles = model_and_roles()
    optimizer = optim.make_optimizer(model, roles, Gradient(optimizer=name))
    losses = []
    for _ in range(60):
        losses.append(model(torch.tensor([[0, 1], [2, 3]])).square().sum().item())
        step(model, optimizer)
    assert losses[-1] < 0.9 * losses[0]


def test_memory_that_json_and_tensors_cannot_hold_is_refused_by_name():
    model, roles = model_and_roles()
    optimizer = optim.make_optimizer(model, roles, Gradient())
    optimizer.state[model[1].weight]["helper"] = object()
    with pytest.raises(TypeError, match=r"1\.weight/helper as object"):
        optim.optimizer_memory(optimizer)


def test_muon_moves_the_hidden_matrices_and_each_role_has_the_rate_of_the_table():
    model, roles = model_and_roles()
    optimizer = optim.make_optimizer(model, roles, Gradient(optimizer="muon+adamw"))
    scale = (4 / 768) ** -0.5
    found = facts(optimizer)
    assert found["1.weight"] == (0.04, 0.2)
    assert found["0.weight"] == (pytest.approx(0.6 * scale), 0.0)
    assert found["3.weight"] == (pytest.approx(0.004 * scale), 0.0)
    assert found["2.weight"] == (pytest.approx(0.005 * scale), 0.0)
    kinds = {name: group["kind"] for group in optimizer.param_groups for name in group["names"]}
    assert [name for name, kind in kinds.items() if kind == "muon"] == ["1.weight"]
    unscaled = optim.make_optimizer(model, roles, Gradient(optimizer="muon+adamw", width_scaled=["embedding", "head"]))
    assert facts(unscaled)["2.weight"][0] == 0.005


def test_a_convolution_is_left_to_adamw_and_a_model_without_matrices_refuses_muon():
    model = nn.Sequential(nn.Conv1d(2, 3, 1, bias=False))
    with pytest.raises(UsageError, match="optimizer=adamw"):
        optim.make_optimizer(model, {"0.weight": Role("matrix")}, Gradient(optimizer="muon+adamw"))


def test_what_the_user_says_wins_over_an_optimizers_own_defaults():
    settings = Gradient(optimizer="muon+adamw", lr=0.02, scalar_lr=0.1)
    assert (settings.lr, settings.scalar_lr, settings.embedding_lr) == (0.02, 0.1, 0.6)
    assert Gradient.model_validate(settings.model_dump(mode="json")) == settings


def test_8_bit_adam_without_a_gpu_names_what_to_use():
    with pytest.raises(UsageError, match="needs a CUDA GPU; this training runs on cpu"):
        optim.make_optimizer(*model_and_roles(), Gradient(optimizer="adamw-8bit"))


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(MissingError, match=r"pip install 'domain-model-zoo\[optimizers\]'") as caught:
        optim.make_optimizer(*model_and_roles(), Gradient(optimizer="soap"))
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("name", ["sgd", "muon+adamw"])
def test_rates_decay_and_momentum_follow_their_factors(name):
    optimizer = optim.make_optimizer(*model_and_roles(), Gradient(optimizer=name, lr=0.1, weight_decay=0.2))
    optim.set_rates(optimizer, 0.5, 0.25, 0.7)
    group = next(group for group in optimizer.param_groups if "1.weight" in group["names"])
    assert (group["lr"], group["weight_decay"]) == (0.05, 0.05)
    assert group["momentum"] == 0.7


def test_one_step_equals_adamw_written_out_in_float64():
    model, roles = model_and_roles()
    model.double()
    settings = Gradient(lr=0.01, weight_decay=0.1)
    optimizer = optim.make_optimizer(model, roles, settings)
    before = model[1].weight.detach().clone()
    model(torch.tensor([0, 1, 2])).square().sum().backward()
    gradient = model[1].weight.grad.clone()
    optim.set_rates(optimizer, 0.5)
    optimizer.step()
    lr = 0.005
    expected = before * (1 - lr * 0.1) - lr * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(model[1].weight.detach(), expected, rtol=1e-9, atol=1e-12)


def test_moments_read_back_lie_in_memory_as_the_channels_last_weights_they_belong_to():
    """Fused AdamW walks both by address: a row-by-row moment beside a channels_last weight pairs wrong elements."""
    torch.manual_seed(0)
    start = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)

    def stepped(num_before: int, through_file: bool) -> torch.Tensor:
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(start.clone())
        optimizer = optim.make_optimizer(model, {"weight": Role("matrix")}, Gradient())
        generator = torch.Generator().manual_seed(1)
        for number in range(4):
            if through_file and number == num_before:
                memory, tensors = optim.optimizer_memory(optimizer)
                rows = {name: value.contiguous() for name, value in tensors.items()}
                optim.load_optimizer_memory(optimizer, memory, rows)
            gradient = torch.randn(4, 3, 5, 5, generator=generator)
            model.weight.grad = gradient.to(memory_format=torch.channels_last)
            optimizer.step()
        return model.weight.detach()

    assert torch.equal(stepped(2, through_file=True), stepped(2, through_file=False))
