"""Pictures with masks: what is read, scores against counting, views, the U-Net, and masks as files."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from domains.contract import Doubt, Facts, Request
from domains.images import data, mask_scores, segment
from domains.images.mask_files import IGNORED, MaskPicture, MaskPng, class_values, read_mask
from domains.images.mask_views import training_pair
from domains.images.soft_masks import SoftPicture
from domains.images.unet import Unet
from domains.metrics import scores as scored
from domains.sniff import sniff
from trainers.contract import Predictions
from trainers.errors import DataError, UsageError
from zoo.ensemble import mean_of

MASKS = Request(task="segmentation")


def save(path, pixels, palette=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(np.asarray(pixels, np.uint8))
    if palette:
        picture = picture.convert("P")
        picture.putdata(np.asarray(pixels).reshape(-1).tolist())
        picture.putpalette([9, 9, 9] * 256)  # colours say nothing: indices are the classes
    picture.save(path)


def noise(number, shape=(12, 16, 3)):
    return np.random.default_rng(number).integers(0, 255, shape)


@pytest.fixture
def folder(tmp_path):
    """Eight pictures with palette masks of classes 1 and 2."""
    for number in range(8):
        save(tmp_path / "images" / f"x{number}.jpg", noise(number))
        save(tmp_path / "masks" / f"x{number}.png", noise(number, (12, 16)) % 3, palette=True)
    return tmp_path


def test_folders_pair_by_name_and_palette_indices_are_classes(folder):
    reading = data.read(folder, MASKS)
    assert (len(reading.table), reading.bad, reading.target) == (8, (), "mask")
    assert reading.table.context["values"] == (0, 1, 2)
    assert (reading.table.target()[3].array() == noise(3, (12, 16)) % 3).all()
    facts = data.describe(reading.table, "segmentation", MASKS)
    assert facts.schema["names"] == ["background", "class 1", "class 2"]


def test_without_a_task_a_folder_of_pictures_and_masks_is_no_folder_of_classes(folder):
    assert data.read(folder, Request()).task == "segmentation"


@pytest.mark.parametrize("layout", ["{kind}", "{part}/{kind}", "{kind}/{part}"])
def test_every_layout_that_is_read_is_recognised_and_its_pictures_are_counted(tmp_path, layout):
    for number, part in enumerate(["train", "train", "Testing", "valid"]):
        for kind, pixels in (("images", noise(number)), ("masks", noise(number, (12, 16)) % 2)):
            save(tmp_path / layout.format(kind=kind, part=part) / f"{number}.png", pixels)
    reading, seen = data.read(tmp_path, Request()), sniff(tmp_path)
    assert (reading.task, len(reading.table)) == ("segmentation", 4)
    assert (seen.type, seen.task, seen.num_rows) == ("images", "segmentation", 4)


def test_folders_of_other_pictures_called_like_masks_are_classes(tmp_path):
    for kind in ("label", "image", "other"):
        for number in range(4):
            save(tmp_path / kind / f"{kind}{number}.png", noise(number))
    assert sniff(tmp_path).task == data.read(tmp_path, Request()).task == "classification"


def test_a_table_of_masks_is_segmentation_to_whoever_asks_what_it_is(folder):
    rows = [{"image": f"images/x{i}.jpg", "mask": f"masks/x{i}.png"} for i in range(8)]
    pd.DataFrame(rows).to_csv(folder / "list.csv", index=False)
    assert sniff(folder / "list.csv").task == sniff(folder / "list.csv", target="mask").task == "segmentation"
    with pytest.raises(DataError, match="say --task segmentation"):
        data.read(folder / "list.csv", Request(target="mask"))


def test_patients_of_a_table_of_masks_are_the_group_without_being_named(folder):
    rows = [
        {"image": f"images/x{i % 8}.jpg", "mask": f"masks/x{i % 8}.png", "patient": f"P{i // 4}"} for i in range(40)
    ]
    frame = pd.DataFrame(rows)
    frame.to_csv(folder / "list.csv", index=False)
    reading = data.read(folder / "list.csv", MASKS)
    assert reading.group == "patient"
    assert any("rows of one stay on one side" in notice for notice in reading.notices)


def test_given_parts_are_kept_wherever_their_folders_are(tmp_path):
    for number, part in enumerate(["train", "train", "val", "test"]):
        save(tmp_path / part / "images" / f"{number}.png", noise(number))
        save(tmp_path / part / "masks" / f"{number}_mask.png", noise(number, (12, 16)) % 2)
    rows = data.read(tmp_path, MASKS).table
    keys = data.keys(rows, "segmentation", MASKS, fast=False)
    assert (keys.rule, list(keys.given)) == ("given", ["test", "train", "train", "valid"])


def test_a_column_called_split_says_the_part_of_each_row_of_a_table(folder):
    said = ["train"] * 4 + ["dev", "test", "test", "test"]
    rows = [{"image": f"images/x{i}.jpg", "mask": f"masks/x{i}.png", "Split": said[i]} for i in range(8)]
    pd.DataFrame(rows).to_csv(folder / "list.csv", index=False)
    table = data.read(folder / "list.csv", MASKS).table
    keys = data.keys(table, "segmentation", MASKS, fast=False)
    assert (keys.rule, list(keys.given)) == ("given", ["train"] * 4 + ["valid"] + ["test"] * 3)
    assert "column 'split'" in keys.because
    pd.DataFrame(rows).assign(Split=[*said[:-1], ""]).to_csv(folder / "list.csv", index=False)
    with pytest.raises(DataError, match="says nothing in 1 of 8 rows"):
        data.read(folder / "list.csv", MASKS)


def test_every_fault_is_named_with_its_row(folder):
    (folder / "masks" / "x0.png").unlink()
    save(folder / "masks" / "x1.png", noise(1, (16, 12)) % 3)
    save(folder / "masks" / "x2.png", noise(2))
    (folder / "images" / "x3.jpg").write_bytes(b"none")
    save(folder / "masks" / "alone.png", noise(0, (12, 16)) % 3)
    reading = data.read(folder, MASKS)
    reasons = {reading.table.ids[row.position]: row.reason for row in reading.bad}
    assert reasons.keys() == {"x0", "x1", "x2", "x3", "alone"}
    assert "no mask" in reasons["x0"]
    assert "16 x 12 and 12 x 16" in reasons["x1"]
    assert "mode RGB" in reasons["x2"]
    assert "no picture" in reasons["alone"]


def test_a_table_of_pictures_and_masks_is_read_and_its_groups_are_kept(folder):
    rows = [{"image": f"images/x{i}.jpg", "mask": f"masks/x{i}.png", "site": f"s{i // 2}"} for i in range(8)]
    pd.DataFrame(rows).to_csv(folder / "list.csv", index=False)
    request = Request(task="segmentation", group="site")
    reading = data.read(folder / "list.csv", request)
    assert not reading.bad
    group = data.keys(reading.table, "segmentation", request, fast=False).group
    assert group[0] == group[1] != group[2]


def test_masks_without_foreground_and_folders_without_masks_are_errors(folder, tmp_path_factory):
    for number in range(8):
        save(folder / "masks" / f"x{number}.png", np.zeros((12, 16)))
    with pytest.raises(DataError, match="every mask is background"):
        data.read(folder, MASKS)
    empty = tmp_path_factory.mktemp("empty")
    save(empty / "a" / "x.png", noise(0))
    with pytest.raises(DataError, match="images/ and masks/"):
        data.read(empty, MASKS)


def doubts(folder, masks, parts=None):
    """What is said of a table of pictures with these masks, one colour each."""
    rows = []
    for number, pixels in enumerate(masks):
        save(folder / "i" / f"{number}.png", noise(number))
        save(folder / "m" / f"{number}.png", pixels)
        rows.append({"image": f"i/{number}.png", "mask": f"m/{number}.png"})
    frame = pd.DataFrame(rows) if parts is None else pd.DataFrame(rows).assign(split=parts)
    frame.to_csv(folder / "list.csv", index=False)
    reading = data.read(folder / "list.csv", MASKS)
    return reading, " | ".join(notice for notice in reading.notices if isinstance(notice, Doubt))


def grey(*values):
    """(12, 16) in which each value has some rows."""
    return np.resize(values, 12)[:, None].repeat(16, axis=1)


def test_a_class_that_no_training_mask_holds_is_told(tmp_path):
    reading, said = doubts(
        tmp_path, [grey(0, 1)] * 9 + [grey(0, 1, 7)] * 3, ["train"] * 6 + ["valid"] * 3 + ["test"] * 3
    )
    assert "never learned: class 7" in said
    facts = data.describe(reading.table.take(range(6)), "segmentation", MASKS)
    assert facts.schema["unlearned"] == ["class 7"]
    assert not doubts(tmp_path, [grey(0, 1)] * 6, ["train", "test"] * 3)[1]


def test_masks_that_number_objects_or_mix_two_habits_are_told_with_the_likely_cause(tmp_path):
    assert "8 of 8 classes are so rare" in doubts(tmp_path, [grey(0, 9 + i) for i in range(8)])[1]
    mixed = doubts(tmp_path, [grey(0, 255)] * 5 + [grey(0, 1)] * 5)[1]
    assert "without any foreground: 5. 5 masks hold 255 where others hold 1" in mixed
    unlabelled = doubts(tmp_path, [grey(0, 1, 255)] * 5 + [grey(0, 0)] * 5)[1]
    assert unlabelled == "pictures without any foreground: 5"


def test_two_masks_of_one_picture_in_a_table_are_told(folder):
    rows = [{"image": f"images/x{i}.jpg", "mask": f"masks/x{i}.png"} for i in range(8)]
    pd.DataFrame([*rows, {"image": "images/x0.jpg", "mask": "masks/x1.png"}]).to_csv(folder / "list.csv", index=False)
    assert any(
        "1 pictures have copies with another mask: 0 = 8" in notice
        for notice in data.read(folder / "list.csv", MASKS).notices
    )
    pd.DataFrame([*rows, rows[0]]).to_csv(folder / "list.csv", index=False)
    assert not any("another mask" in notice for notice in data.read(folder / "list.csv", MASKS).notices)


@pytest.mark.parametrize(
    ("seen", "values", "said"),
    [((0, 255), (0, 255), "one class"), ((0, 1, 255), (0, 1), "unlabelled"), ((2, 5), (0, 2, 5), "")],
)
def test_the_values_of_masks_are_classes(seen, values, said):
    found, note = class_values(seen)
    assert found == values
    assert said in note


def test_unlabelled_pixels_are_no_class(tmp_path):
    save(tmp_path / "m.png", [[0, 5, 255]])
    assert MaskPng(str(tmp_path / "m.png"), (0, 5)).array().tolist() == [[0, 1, IGNORED]]


def test_an_answer_is_written_with_the_values_of_the_training_masks(tmp_path):
    classes = noise(0, (7, 5)) % 3
    MaskPicture.of(classes, (0, 4, 200)).write(tmp_path / "m.png")
    assert (read_mask(tmp_path / "m.png") == np.array([0, 4, 200])[classes]).all()
    assert Image.open(tmp_path / "m.png").mode == "P"


def test_scores_are_those_of_scikit_learn_over_all_labelled_pixels():
    from sklearn.metrics import accuracy_score, f1_score, jaccard_score

    rng = np.random.default_rng(0)
    truth = [rng.integers(0, 3, (9, 8)) for _ in range(12)]
    truth[0][:3] = IGNORED
    answers = [rng.integers(0, 3, (9, 8)) for _ in range(12)]
    rows = np.array([MaskPicture.of(each, (0, 1, 2)) for each in truth], dtype=object)
    found = scored(
        mask_scores.mask_metrics(("background", "a", "b")),
        rows,
        Predictions.of_files([MaskPicture.of(each, (0, 1, 2)) for each in answers]),
        np.arange(12),
    )
    wanted, given = np.concatenate(truth).ravel(), np.concatenate(answers).ravel()
    wanted, given = wanted[wanted != IGNORED], given[wanted != IGNORED]
    iou, dice = (score(wanted, given, average=None) for score in (jaccard_score, f1_score))
    assert found["iou"]["value"] == pytest.approx(iou[1:].mean())
    assert found["dice"]["value"] == pytest.approx(dice[1:].mean())
    assert (found["iou_a"]["value"], found["dice_b"]["value"]) == (pytest.approx(iou[1]), pytest.approx(dice[2]))
    assert found["pixel_accuracy"]["value"] == pytest.approx(accuracy_score(wanted, given))
    assert found["iou_a"]["low"] < found["iou_a"]["value"] < found["iou_a"]["high"]


def test_a_class_that_is_nowhere_is_left_out_of_the_mean():
    truth = np.array([MaskPicture.of(np.array([[0, 1]]), (0, 1, 2))] * 3, dtype=object)
    answers = Predictions.of_files([MaskPicture.of(np.array([[0, 1]]), (0, 1, 2))] * 3)
    found = scored(mask_scores.mask_metrics(("background", "a", "b")), truth, answers, np.arange(3))
    assert found["iou"]["value"] == 1.0
    assert found["iou_b"]["value"] is None
    assert "no true mask holds b" in found["iou_b"]["reason"]
    wrong = Predictions.of_files([MaskPicture.of(np.array([[2, 1]]), (0, 1, 2))] * 3)
    found = scored(mask_scores.mask_metrics(("background", "a", "b")), truth, wrong, np.arange(3))
    assert (found["iou"]["value"], found["dice"]["value"], found["pixel_accuracy"]["value"]) == (1.0, 1.0, 0.5)


def test_a_view_cuts_picture_and_mask_alike():
    """The picture's red tells the class of its pixel."""
    classes = np.zeros((40, 60), np.uint8)
    classes[10:30, 20:50] = 1
    picture = np.repeat(classes[..., None] * 200, 3, axis=2).astype(np.uint8)
    sums = set()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        view, mask = training_pair(picture, classes, 32, scale=0.3, flip=True, colour=0.0, rng=rng)
        assert np.mean((view[..., 0] > 100) == (mask == 1)) > 0.95
        sums.add(int(mask.sum()))
    assert len(sums) > 4


FACTS = Facts(
    "images",
    "segmentation",
    "mask",
    10,
    (),
    {"median_long_side": 40.0, "longest_side": 40.0, "megapixels": 0.1},
    {"kind": "masked", "names": ["background", "a", "b"], "values": [0, 1, 2], "path": None},
)


def task_of(**options):
    options = segment.Options(network="test_efficientnet", weights="none", width=8, **options)
    fitted = {"backbone": {"network": "test_efficientnet", "args": {}, "weights": None}}
    fitted["pictures"] = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}
    torch.manual_seed(0)
    model = segment._network(fitted["backbone"], FACTS, options, None)
    return segment.SegmentTask(model, options, FACTS, fitted)


def test_every_parameter_of_the_unet_has_a_role_and_gets_a_gradient():
    task = task_of()
    assert set(task.roles()) == {name for name, _ in task.model.named_parameters()}
    totals = task.loss(
        task.model, (torch.randint(0, 255, (2, 3, 32, 32)).byte(), torch.randint(0, 3, (2, 32, 32)).byte())
    )
    sum(totals.values()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in task.model.parameters())


def test_a_network_of_one_resolution_is_refused():
    with pytest.raises(UsageError, match="resolutions"):
        Unet({"network": "test_vit", "args": {}}, 2, width=8, most=64, weights=None)


def test_the_loss_counts_classes_that_a_view_holds_and_no_unlabelled_pixel():
    task = task_of()
    masks = torch.zeros(2, 32, 32, dtype=torch.uint8)
    masks[0, :16], masks[1] = 2, IGNORED
    logits = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    totals = task.loss(lambda _: logits, (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), masks))
    p = logits[0].softmax(0)
    truth = masks[0].long()
    entropy = -p.log().gather(0, truth[None]).mean()
    dice = 2 * (p[2] * (truth == 2)).sum() / (p[2].sum() + (truth == 2).sum())
    assert float(totals["cross_entropy"]) == pytest.approx(float(entropy), rel=1e-5)
    assert float(totals["dice"]) == pytest.approx(1 - float(dice), rel=1e-5)


def test_an_answer_has_the_size_of_its_file_and_lies_where_the_picture_does(folder):
    """A model that answers class 1 where a pixel is bright, on a picture whose upper left is."""
    pixels = np.zeros((50, 80, 3))
    pixels[:25, :40] = 255
    save(folder / "new" / "p.png", pixels)
    task = task_of()
    rows = data.read(folder / "new", Request(facts=FACTS)).table
    (answer,) = task.predict(
        lambda x: torch.stack([0 * x[:, 0], x[:, 0], 0 * x[:, 0] - 9], 1), task.collate(rows)
    ).values
    assert answer.array().shape == (50, 80)
    assert np.mean((answer.array() == 1) == (pixels[..., 0] > 0)) > 0.97


def test_folds_answer_with_the_class_of_the_highest_mean_probability_also_at_other_sizes():
    rng = np.random.default_rng(0)
    probabilities = [torch.from_numpy(rng.dirichlet(np.ones(3), (10, 14)).transpose(2, 0, 1)) for _ in range(3)]
    softs = [Predictions.of_files([SoftPicture.of(each, (10, 14), (0, 1, 7))]) for each in probabilities]
    found = mean_of(softs).values[0]
    mean = np.mean([each.numpy() for each in probabilities], axis=0)
    clear = np.sort(mean, axis=0)[2] - np.sort(mean, axis=0)[1] > 1 / 255
    assert (found.array() == mean.argmax(axis=0))[clear].all()
    assert (found.values, clear.mean() > 0.95) == ((0, 1, 7), True)
    halves = torch.zeros(3, 20, 28)
    halves[1, :10], halves[2, 10:] = 1, 1  # of a network that saw the picture larger, and is sure
    sure = mean_of([softs[0], *[Predictions.of_files([SoftPicture.of(halves, (10, 14), (0, 1, 7))])] * 3]).values[0]
    assert (sure.array()[:5] == 1).all()
    assert (sure.array()[5:] == 2).all()


def test_two_pictures_of_one_name_are_refused_and_none_is_dropped(folder):
    save(folder / "images" / "x3.png", noise(3))
    with pytest.raises(DataError, match=r"images/x3\.jpg and images/x3\.png differ in nothing but their endings"):
        data.read(folder, MASKS)


def test_masks_that_lose_numbers_or_have_several_frames_are_bad_rows(folder):
    (folder / "masks" / "x1.png").unlink()
    save(folder / "masks" / "x1.jpg", noise(1, (12, 16)) % 2 * 255)
    frames = [Image.fromarray((noise(n, (12, 16)) % 3).astype(np.uint8)) for n in (1, 2)]
    frames[0].save(folder / "masks" / "x2.png", save_all=True, append_images=frames[1:])
    reasons = {row.position: row.reason for row in data.read(folder, MASKS).bad}
    assert "is a JPEG, which changes numbers" in reasons[1]
    assert "holds 2 pages or frames" in reasons[2]


def test_two_masks_of_one_picture_are_an_error_and_neither_is_chosen(folder):
    save(folder / "masks" / "x5_mask.png", noise(9, (12, 16)) % 3)
    with pytest.raises(DataError, match=r"x5.* are both masks of images/x5\.jpg"):
        data.read(folder, MASKS)
