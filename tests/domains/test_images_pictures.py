"""Every kind of pixel becomes the same 8-bit RGB; views draw all chance from their generator; shelves keep pictures."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import RandomResizedCrop

from domains.images.augment import random_box, training_view
from domains.images.shelf import shelve
from domains.images.views import PlainViews
from domains.shared.pictures import PictureError, dim_pictures, open_rgb, picture_print, to_rgb
from domains.shared.timm_backbone import normalised
from trainers.errors import DataError

CONFIG = {
    "input_size": [3, 32, 32],
    "interpolation": "bicubic",
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "crop_pct": 0.875,
    "crop_mode": "center",
}


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_sixteen_bits_are_scaled_and_not_cut(tmp_path):
    Image.fromarray(np.array([[0, 257 * 100, 65535]], np.uint16)).save(tmp_path / "deep.png")
    assert np.asarray(open_rgb(tmp_path / "deep.png"))[0, :, 0].tolist() == [0, 100, 255]


def test_twelve_bits_in_sixteen_are_told_with_the_largest_value(tmp_path):
    tops = {"full.png": 65535, "half.tif": 4096, "dim.tif": 4095, "dimmer.png": 700, "black.png": 0}
    for name, top in tops.items():
        Image.fromarray(np.array([[0, top]], np.uint16)).save(tmp_path / name)
    Image.fromarray(np.array([[0, 9]], np.uint8)).save(tmp_path / "eight.png")
    prints = {name: picture_print(tmp_path / name) for name in (*tops, "eight.png")}
    (said,) = dim_pictures(prints)
    assert "2 of 5 16-bit pictures hold no value above 4,095 of 65,535 (dim.tif for one)" in said
    assert not dim_pictures({name: prints[name] for name in ("full.png", "half.tif", "eight.png", "black.png")})


def test_floats_outside_zero_to_one_are_refused_with_their_range(tmp_path):
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32)).save(tmp_path / "unit.tif")
    assert np.asarray(open_rgb(tmp_path / "unit.tif"))[0, :, 0].tolist() == [0, 128, 255]
    Image.fromarray(np.array([[0.0, 3000.0]], np.float32)).save(tmp_path / "counts.tif")
    with pytest.raises(PictureError, match="from 0 to 3000"):
        open_rgb(tmp_path / "counts.tif")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_alpha_is_laid_over_white(mode):
    clear = Image.new("RGBA", (2, 2), (10, 10, 10, 0)).convert(mode)
    assert np.asarray(to_rgb(clear)).min() == 255


def test_a_palette_with_a_transparent_colour_is_laid_over_white(tmp_path):
    picture = Image.new("P", (2, 1))
    picture.putpalette([0, 0, 0, 200, 100, 50])
    picture.putpixel((1, 0), 1)
    picture.save(tmp_path / "p.png", transparency=0)
    assert np.asarray(open_rgb(tmp_path / "p.png"))[0].tolist() == [[255, 255, 255], [200, 100, 50]]


@pytest.mark.parametrize("mode", ["1", "L", "CMYK", "YCbCr", "HSV", "LAB"])
def test_every_other_mode_becomes_rgb_as_pillow_converts_it(mode):
    picture = Image.fromarray(noise(4, 4)).convert("L" if mode == "1" else "RGB").convert(mode)
    assert to_rgb(picture).tobytes() == picture.convert("RGB").tobytes()


def test_exif_rotation_is_applied(tmp_path):
    picture = Image.fromarray(noise(4, 6))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn clockwise
    picture.save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(np.asarray(open_rgb(tmp_path / "turned.png")), np.rot90(np.asarray(picture), -1))


def test_only_known_formats_are_opened(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png", format="PPM")
    with pytest.raises(PictureError, match="not a picture"):
        open_rgb(tmp_path / "x.png")


def test_the_judged_view_equals_timms_evaluation_transform(tmp_path):
    for i, shape in enumerate([(40, 56), (20, 20), (64, 33)]):
        Image.fromarray(noise(*shape, seed=i)).save(tmp_path / f"{i}.png")
    paths = sorted(tmp_path.glob("*.png"))
    ours = normalised(PlainViews(CONFIG).batch(paths), CONFIG)
    transform = create_transform(**CONFIG, is_training=False)
    theirs = torch.stack([transform(Image.open(path).convert("RGB")) for path in paths])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_training_view_depends_on_its_generator_alone():
    how = {"scale": 0.5, "flip": True, "interpolation": "bicubic"}
    torch.manual_seed(0)
    first = training_view(noise(30, 40), 32, rng=np.random.default_rng(1), **how)
    torch.manual_seed(9)
    again = training_view(noise(30, 40), 32, rng=np.random.default_rng(1), **how)
    other = training_view(noise(30, 40), 32, rng=np.random.default_rng(2), **how)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.shape == (32, 32, 3)
    assert first.dtype == np.uint8


def test_boxes_are_spread_like_torchvisions():
    rng = np.random.default_rng(0)
    ours = np.array([random_box(60, 90, scale=(0.3, 1.0), ratio=(3 / 4, 4 / 3), rng=rng) for _ in range(4000)])
    torch.manual_seed(0)
    blank = torch.empty(3, 60, 90)
    theirs = np.array([RandomResizedCrop.get_params(blank, [0.3, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)])
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=1.0)
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), atol=1.0)


def test_mirroring_happens_half_of_the_time_and_not_at_all_when_off():
    picture = noise(8, 8)
    plain = training_view(picture, 8, scale=1, flip=False, interpolation="bicubic", rng=np.random.default_rng(0))
    assert np.array_equal(plain, picture)
    mirrored = [
        np.array_equal(
            training_view(picture, 8, scale=1, flip=True, interpolation="bicubic", rng=np.random.default_rng(s)),
            plain[:, ::-1],
        )
        for s in range(200)
    ]
    assert 70 < sum(mirrored) < 130


def test_a_shelf_keeps_small_pictures_and_shrinks_large_ones(tmp_path):
    Image.fromarray(noise(10, 20)).save(tmp_path / "small.png")
    Image.fromarray(noise(100, 300)).save(tmp_path / "large.png")
    paths = [tmp_path / "small.png", tmp_path / "large.png"]
    shelf = shelve(paths, 50, tmp_path / "kept", num_bytes=100_000)
    np.testing.assert_array_equal(shelf[0], noise(10, 20))
    assert shelf[1].shape == (50, 150, 3)
    assert len(shelf) == 2


def test_a_shelf_is_used_again_and_one_that_was_cut_off_is_not(tmp_path):
    Image.fromarray(noise(4, 4)).save(tmp_path / "a.png")
    shelve([tmp_path / "a.png"], 50, tmp_path / "kept", num_bytes=48)
    before = (tmp_path / "kept" / "pictures.bin").stat().st_mtime_ns
    shelve([tmp_path / "a.png"], 50, tmp_path / "kept", num_bytes=48)
    assert (tmp_path / "kept" / "pictures.bin").stat().st_mtime_ns == before
    (tmp_path / "kept" / "pictures.json").unlink()
    (tmp_path / "kept" / "pictures.bin").write_bytes(b"1")
    np.testing.assert_array_equal(shelve([tmp_path / "a.png"], 50, tmp_path / "kept", num_bytes=48)[0], noise(4, 4))


def test_a_shelf_too_large_for_the_disk_decodes_each_time(tmp_path):
    Image.fromarray(noise(4, 4)).save(tmp_path / "a.png")
    shelf = shelve([tmp_path / "a.png"], 50, tmp_path / "kept", num_bytes=10**18)
    np.testing.assert_array_equal(shelf[0], noise(4, 4))
    assert not (tmp_path / "kept" / "pictures.bin").exists()


def test_a_picture_that_broke_after_reading_is_named(tmp_path):
    (tmp_path / "gone.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"gone\.png"):
        PlainViews(CONFIG).batch([tmp_path / "gone.png"])
