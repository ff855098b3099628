"""Models filled from a file are built without storage: the same weights, never held twice."""

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import nn
from toys import ToyWatch, VectorTask, plan_of, vector_rows, vector_statistics

from trainers.empty import fill, give_storage, without_storage
from trainers.errors import StoppedError
from trainers.gradient import GradientLearner


class Tied(nn.Module):
    """Two names for one matrix, a frozen bias, running means, and a table that no file holds."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head, self.norm = nn.Embedding(5, 4), nn.Linear(4, 5), nn.BatchNorm1d(4)
        self.head.weight = self.embedding.weight
        self.head.bias.requires_grad_(False)
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        nn.init.xavier_uniform_(self.embedding.weight)

    def forward(self, numbers):
        return self.head(self.norm(self.embedding(numbers)) + self.table)


@pytest.fixture
def saved(tmp_path):
    model = Tied()
    model(torch.tensor([0, 1, 2, 3]))  # moves the running means
    save_model(model, str(tmp_path / "model.safetensors"))
    return model.eval(), tmp_path / "model.safetensors"


def empty():
    with without_storage():
        model = Tied()
    assert all(parameter.is_meta for parameter in model.parameters())
    give_storage(model, "cpu")
    return model.eval()


def test_a_model_built_without_storage_and_filled_equals_the_one_that_was_saved(saved):
    model, file = saved
    found = empty()
    fill(found, file)
    assert found.head.weight is found.embedding.weight, "tied weights stay tied"
    assert [p.requires_grad for p in found.parameters()] == [p.requires_grad for p in model.parameters()]
    assert torch.equal(found(torch.tensor([4, 2])), model(torch.tensor([4, 2])))
    assert found.state_dict().keys() == model.state_dict().keys()


def test_modules_made_afterwards_have_storage_again():
    with without_storage():
        pass
    assert not nn.Linear(2, 2).weight.is_meta


def test_a_file_of_another_model_is_refused_with_the_names(saved, tmp_path):
    _, file = saved
    tensors = load_file(file)
    save_file({**tensors, "more": torch.zeros(1)}, tmp_path / "more.safetensors")
    with pytest.raises(ValueError, match="differ in more"):
        fill(empty(), tmp_path / "more.safetensors")
    save_file({**tensors, "head.bias": torch.zeros(6)}, tmp_path / "shape.safetensors")
    with pytest.raises(ValueError, match=r"head.bias is \(6,\), the model has \(5,\)"):
        fill(empty(), tmp_path / "shape.safetensors")
    del tensors["norm.running_mean"]
    save_file(tensors, tmp_path / "less.safetensors")
    with pytest.raises(ValueError, match=r"differ in norm\.running_mean"):
        fill(empty(), tmp_path / "less.safetensors")


def test_loading_and_resuming_draw_no_weights_that_a_file_brings(tmp_path):
    had_storage = []

    def make_task(statistics, pretrained):
        task = VectorTask(statistics, dropout=0.1, norm=True)
        had_storage.append(not task.model[1].weight.is_meta)
        return task

    plan, rows = plan_of({"steps": 6, "batch_size": 8, "save_steps": 2, "precision": "fp32"}), vector_rows(24)
    with pytest.raises(StoppedError):
        GradientLearner(plan, vector_statistics, make_task).fit(rows, None, ToyWatch(tmp_path, stop_at=(3, "signal")))
    resumed = GradientLearner(plan, vector_statistics, make_task)
    resumed.fit(rows, None, ToyWatch(tmp_path))
    resumed.save(tmp_path / "model")
    loaded = GradientLearner.load(plan, tmp_path / "model", make_task)
    assert had_storage == [True, False, False]
    whole = GradientLearner(plan, vector_statistics, make_task)
    whole.fit(rows, None, ToyWatch(tmp_path / "whole"))
    for name, value in whole.task.model.state_dict().items():
        assert torch.equal(resumed.task.model.state_dict()[name], value)
        assert torch.equal(loaded.task.model.state_dict()[name], value)
