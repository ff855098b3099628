"""train.channels_last: kernels and pictures lie otherwise in memory, and what is learned is the same."""

import numpy as np
import pytest
import torch
from torch import nn
from toys import ToyWatch, VectorTask, plan_of, vector_rows, vector_statistics

from trainers.contract import Batch
from trainers.gradient import GradientLearner
from trainers.precision import lay_out, placed

SETTINGS = {"steps": 8, "batch_size": 8, "lr": 0.01, "precision": "fp32", "keep": "last", "compile": "off"}


class PictureTask(VectorTask):
    """Vectors as pictures of 4 channels; `seen` notes whether the model was called with channels last."""

    def __init__(self, statistics, seen):
        super().__init__(statistics)
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.model = nn.Sequential(nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GELU(), pool), nn.Linear(8, 1))
        note = lambda module, inputs: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))  # noqa: E731
        self.model.register_forward_pre_hook(note)

    def draw(self, examples, rngs):
        batch = super().draw(examples, rngs)
        return Batch({**batch.inputs, "x": as_pictures(batch.inputs["x"])}, batch.counts)

    def collate(self, rows):
        return as_pictures(super().collate(rows))


def as_pictures(x):
    return x[:, :, None, None].repeat(1, 1, 5, 6)


def trained(folder, **settings):
    seen = []
    plan = plan_of({**SETTINGS, **settings})
    learner = GradientLearner(plan, vector_statistics, lambda values, pretrained: PictureTask(values, seen))
    learner.fit(vector_rows(24), vector_rows(7, seed=5), ToyWatch(folder))
    learner.save(folder / "model")
    answers = learner.predict(vector_rows(9, seed=2).without_target()).values
    loaded = GradientLearner.load(plan, folder / "model", lambda values, pretrained: PictureTask(values, seen))
    assert np.allclose(loaded.predict(vector_rows(9, seed=2).without_target()).values, answers, atol=1e-6)
    return learner, loaded, answers, seen


def test_channels_last_learns_the_same_in_another_order_of_memory(tmp_path):
    plain, _, expected, before = trained(tmp_path / "plain")
    other, loaded, found, after = trained(tmp_path / "other", channels_last=True)
    assert not any(before)
    assert all(after), "training, evaluation and prediction alike"
    for each in (other, loaded):
        assert each.task.model[0][0].weight.is_contiguous(memory_format=torch.channels_last)
    weights = plain.task.model.state_dict()
    for name, value in other.task.model.state_dict().items():
        assert torch.allclose(value, weights[name], atol=1e-5), name
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 5, 6, 7)])
def test_only_pictures_and_volumes_are_laid_out_anew(shape):
    inputs = {"x": torch.zeros(shape), "y": [torch.zeros(2, 3, 4, 5)]}
    found = placed(inputs, torch.device("cpu"), torch.channels_last)
    assert found["x"] is inputs["x"]
    assert found["y"][0].stride() == (60, 1, 15, 3)
    volume = placed(torch.zeros(2, 3, 4, 5, 6), torch.device("cpu"), torch.channels_last)
    assert volume.stride() == (360, 1, 90, 18, 3)


def test_a_network_of_pictures_and_volumes_is_laid_out_by_the_dimensions_of_each_kernel():
    model = nn.ModuleDict({"flat": nn.Conv2d(4, 8, 3), "deep": nn.Conv3d(4, 8, 3), "dense": nn.Linear(4, 8)})
    lay_out(model, torch.channels_last)
    assert model["flat"].weight.is_contiguous(memory_format=torch.channels_last)
    assert model["deep"].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert model["dense"].weight.is_contiguous()
