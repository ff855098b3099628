"""Flow matching: on the straight path from noise to a picture, at every time the direction is the picture less the noise.

Source: Lipman et al. 2022, arXiv 2210.02747, section 4.1, with a path that ends in the picture itself; classifier-free guidance
as in Ho and Salimans 2022, arXiv 2207.12598, equation 6. Pictures are floats from -1 to 1, (rows, 3, side, side); a time is 0
in the noise and 1 in the picture.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from domains.contract import Baseline
from domains.images.labelled import FILE
from domains.shared.pictures import in_threads, open_checked
from trainers.contract import Predictions

TIMES = (0.125, 0.375, 0.625, 0.875)
"""At which a held-out picture is looked at, with noise that depends on its pixels alone."""

Velocity = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""velocity(pictures on the way, times (rows,), classes (rows,)) -> directions."""


def as_floats(pictures_uint8: torch.Tensor) -> torch.Tensor:
    """-1 to 1."""
    return pictures_uint8.float() / 127.5 - 1


def as_bytes(pictures: torch.Tensor) -> np.ndarray:
    """(rows, side, side, 3) uint8."""
    values = ((pictures.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return np.asarray(values.permute(0, 2, 3, 1).cpu().numpy())


def square(path: Path, side: int) -> np.ndarray:
    """(3, side, side) uint8: the central square of the picture in `path`."""
    return shrunk(np.asarray(open_checked(path)), side)


def shrunk(picture_HWC: np.ndarray, side: int) -> np.ndarray:
    """(3, side, side) uint8: the central square of a picture."""
    picture = Image.fromarray(np.asarray(picture_HWC))
    short = min(picture.size)
    left, top = (picture.width - short) // 2, (picture.height - short) // 2
    view = picture.resize((side, side), Image.Resampling.BICUBIC, box=(left, top, left + short, top + short))
    return np.asarray(view).transpose(2, 0, 1)


def fixed_noise(picture_CHW: np.ndarray) -> np.ndarray:
    """(times, 3, side, side) float32: the same for the same pixels always."""
    rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(picture_CHW).tobytes()))
    return rng.standard_normal((len(TIMES), *picture_CHW.shape), dtype=np.float32)


def on_the_way(pictures: torch.Tensor, noise: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Where the path is at each time."""
    share = times.view(-1, 1, 1, 1)
    return (1 - share) * noise + share * pictures


def flow_errors(velocity: Velocity, pictures: torch.Tensor, noise: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """(rows,) mean squared error of the direction over pixels and TIMES.   noise: (rows, times, 3, side, side)."""
    total = torch.zeros(len(pictures), device=pictures.device)
    for at, time in enumerate(TIMES):
        times = torch.full((len(pictures),), time, device=pictures.device)
        wanted = pictures - noise[:, at]
        found = velocity(on_the_way(pictures, noise[:, at], times), times, classes)
        total += (found.float() - wanted).square().flatten(1).mean(dim=1)
    return total / len(TIMES)


def drawn(velocity: Velocity, noise: torch.Tensor, classes: torch.Tensor, *, steps: int) -> torch.Tensor:
    """Pictures at the end of the path that begins in `noise`, by `steps` steps of the midpoint rule."""
    x = noise
    for step in range(steps):
        start, half = step / steps, 0.5 / steps
        times = [torch.full((len(x),), at, device=x.device) for at in (start, start + half)]
        middle = x + half * velocity(x, times[0], classes)
        x = x + velocity(middle, times[1], classes) / steps
    return x.clamp(-1, 1)


def guided(velocity: Velocity, guidance: float, no_class: int) -> Velocity:
    """What the class adds to the direction, `guidance` times."""

    def of(x: torch.Tensor, times: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        with_class = velocity(x, times, classes)
        if guidance == 1.0:
            return with_class
        without = velocity(x, times, torch.full_like(classes, no_class))
        return without + guidance * (with_class - without)

    return of


def grid(pictures_NHWC: np.ndarray, columns: int) -> Image.Image:
    """Pictures side by side, row by row, on white."""
    side, rows = pictures_NHWC.shape[1], -(-len(pictures_NHWC) // columns)
    found = Image.new("RGB", (columns * (side + 1) - 1, rows * (side + 1) - 1), "white")
    for at, picture in enumerate(pictures_NHWC):
        found.paste(Image.fromarray(picture), (at % columns * (side + 1), at // columns * (side + 1)))
    return found


def mean_picture(side: int) -> Baseline:
    """The mean of the training pictures as the end of every path, whatever was seen on it."""
    return _rival(
        "mean picture", "every path leads to the mean of the training pictures", lambda mean, _: _to_mean(mean), side
    )


def gaussian_pixels(side: int) -> Baseline:
    """The best guess from each value alone: its mean and variance over the training pictures."""
    return _rival("gaussian pixels", "the best guess from each pixel by itself", _best_linear, side)


def _to_mean(mean: torch.Tensor) -> Velocity:
    return lambda x, times, classes: mean.expand_as(x)


def _best_linear(mean: torch.Tensor, variance: torch.Tensor) -> Velocity:
    """The conditional mean of picture less noise where both are normal and independent."""

    def of(x: torch.Tensor, times: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        t = times.view(-1, 1, 1, 1)
        slope = (t * variance - (1 - t)) / (t**2 * variance + (1 - t) ** 2)
        return mean + slope * (x - t * mean)

    return of


def _rival(name: str, about: str, make: Callable[[torch.Tensor, torch.Tensor], Velocity], side: int) -> Baseline:
    def fit(train: Any) -> Callable[[Any], Predictions]:
        pictures = as_floats(torch.from_numpy(squares(train, side)))
        velocity = make(pictures.mean(dim=0), pictures.var(dim=0, correction=0))

        def predict(rows: Any) -> Predictions:
            found = squares(rows, side)
            noise = torch.from_numpy(np.stack([fixed_noise(each) for each in found]))
            nobody = torch.zeros(len(found), dtype=torch.long)
            errors = flow_errors(velocity, as_floats(torch.from_numpy(found)), noise, nobody)
            return Predictions.of_numbers(errors.double().numpy())

        return predict

    return Baseline(name, about, fit)


def squares(rows: Any, side: int) -> np.ndarray:
    """(rows, 3, side, side) uint8 of the pictures of `rows`."""
    paths: Sequence[Path] = [Path(rows.context["root"]) / file for file in rows.column(FILE)]
    return np.stack(in_threads(lambda path: square(path, side), paths))
