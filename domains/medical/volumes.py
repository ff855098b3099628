"""Volumes of NIfTI files and DICOM series in one orientation, and masks written back in the geometry of their source.

Axes are (x, y, z) of the file turned to the nearest of right, anterior, superior (RAS), so that a flipped or permuted file
of the same anatomy gives the same array. Letters: C channels, X Y Z voxels.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.orientations import apply_orientation, inv_ornt_aff, io_orientation, ornt_transform

SUFFIXES = (".nii.gz", ".nii")
RAS = np.array([[0, 1], [1, 1], [2, 1]])
SAME_PLACE = 0.01
"""Two grids are one when no corner of them is farther apart than this share of a voxel: headers hold float32."""

FAR_APART = 0.5
"""Share of a voxel by which the two affines of one header differ, so that they mean different places: rounding is less."""
MOST_PACKED = 1032
"""How many bytes deflate makes of one at most (Deutsch 1996, RFC 1951: 258 in a two-bit code)."""
MOST_VOXELS = 1 << 30
"""Of one file, channels included: 4 GiB in float32."""


class VolumeError(ValueError):
    """A file that is no usable volume; the text says why."""


@dataclass(frozen=True)
class Geometry:
    """Where the voxels of a file lie. shape: (x, y, z) in the order of the file.   affine: voxel to mm, row by row."""

    shape: tuple[int, int, int]
    affine: tuple[tuple[float, ...], ...]

    @property
    def matrix(self) -> np.ndarray:
        """(4, 4) float64 affine of the file."""
        return np.asarray(self.affine, np.float64)

    @property
    def orientation(self) -> np.ndarray:
        """(3, 2) nibabel's orientation: which axis of RAS each axis of the file is nearest to, and whether it is flipped."""
        return np.asarray(io_orientation(self.matrix))

    @property
    def spacing(self) -> tuple[float, float, float]:
        """mm between voxels along x, y, z of RAS."""
        turned = self.matrix @ inv_ornt_aff(self.orientation, self.shape)
        x, y, z = np.linalg.norm(turned[:3, :3], axis=0).tolist()
        return x, y, z

    def to_ras(self, array: np.ndarray) -> np.ndarray:
        """An array in the order of the file, with its axes turned to RAS."""
        return np.ascontiguousarray(apply_orientation(array, self.orientation))

    def from_ras(self, array_XYZ: np.ndarray) -> np.ndarray:
        """An array in RAS, in the order of the file again."""
        return np.ascontiguousarray(apply_orientation(array_XYZ, ornt_transform(RAS, self.orientation)))

    def distance_to(self, other: Geometry) -> float:
        """How far apart the two grids put the same corner at most, as a share of the smallest voxel edge."""
        corners = np.array(np.meshgrid(*[(0, n - 1) for n in self.shape])).reshape(3, -1)
        points = np.vstack([corners, np.ones(corners.shape[1])])
        apart = np.linalg.norm(((self.matrix - other.matrix) @ points)[:3], axis=0).max()
        return float(apart / min(self.spacing))


@dataclass(frozen=True)
class Volume:
    """An image in RAS. array: (C, X, Y, Z) float32.   geometry: of its file.   notes: what was assumed of it.
    patient: as DICOM names it, "" where nothing does."""

    array: np.ndarray
    geometry: Geometry
    notes: tuple[str, ...] = ()
    patient: str = ""

    @property
    def mark(self) -> str:
        """Equal for copies, also those saved in another orientation."""
        return mark_of(self.array)


@dataclass(frozen=True)
class Mask:
    """Class numbers of every voxel, packed: a scan of 100 MB takes about 100 kB. `array` unpacks them.

    The order of voxels is that of the file that the mask belongs to.
    """

    geometry: Geometry
    packed: bytes
    suffix = ".nii.gz"

    @classmethod
    def of(cls, labels: np.ndarray, geometry: Geometry) -> Mask:
        """labels: whole numbers 0 to 255 in the order of the file."""
        return cls(geometry, zlib.compress(np.asarray(labels, np.uint8).tobytes(), 1))

    def array(self) -> np.ndarray:
        """(x, y, z) uint8 in the order of the file."""
        return np.frombuffer(zlib.decompress(self.packed), np.uint8).reshape(self.geometry.shape)

    def write(self, path: Path) -> None:
        """A NIfTI file with the shape and the affine of the source, in mm."""
        image = nib.Nifti1Image(self.array(), self.geometry.matrix)
        image.header.set_xyzt_units("mm")
        image.set_sform(self.geometry.matrix, 1)
        image.set_qform(self.geometry.matrix, 1)
        if _forms_apart(image) > SAME_PLACE:  # a sheared grid, which a qform cannot say
            image.set_qform(None, 0)
        nib.save(image, path)

    def __str__(self) -> str:
        return f"mask of {' x '.join(map(str, self.geometry.shape))} voxels"


@dataclass(frozen=True)
class MaskFile:
    """The true mask of a case: read when it is asked for. values: the number in the file of each class, in order."""

    path: str
    values: tuple[int, ...]

    def array(self) -> np.ndarray:
        """(x, y, z) uint8 class positions in the order of the file."""
        found, _ = read_labels(Path(self.path))
        return np.searchsorted(np.array(self.values), found).astype(np.uint8)

    def __str__(self) -> str:
        return self.path


def mark_of(array: np.ndarray) -> str:
    """A hash of all values and their shape."""
    digest = hashlib.blake2b(repr(array.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def is_volume(name: str) -> bool:
    """Whether a file name ends as those that are read."""
    return name.lower().endswith(SUFFIXES)


def stem(name: str) -> str:
    """A file name without its suffix."""
    return next((name[: -len(suffix)] for suffix in SUFFIXES if name.lower().endswith(suffix)), name)


def read_image(paths: Sequence[Path]) -> Volume:
    """The channels of one case: files, or folders with a DICOM series each, or one file whose fourth axis they are.

    Raises VolumeError for files that are no volumes, have no affine, hold NaN, or lie on different grids.
    """
    channels: list[np.ndarray] = []
    grids: list[Geometry] = []
    notes: list[str] = []
    patients: list[str] = []
    for path in paths:
        values, affine, told, patient = _stored(path)
        patients += [patient] if patient else []
        geometry = _geometry(values.shape, affine, path)
        grids.append(geometry)
        notes += told
        if problem := unlike(grids[0], geometry):
            raise VolumeError(f"channel {path.name} and {paths[0].name} {problem}")
        if values.ndim > 3 and len(paths) > 1 and values.shape[3] > 1:
            raise VolumeError(f"{path.name} has {values.shape[3]} channels of its own, and there is a file for each")
        with np.errstate(over="ignore"):  # what float32 cannot hold is told below
            values = values.astype(np.float32)
        for channel in np.moveaxis(values.reshape(*geometry.shape, -1), -1, 0):
            if not np.isfinite(channel).all():
                num = np.count_nonzero(~np.isfinite(channel))
                raise VolumeError(f"{path.name} holds {num:,} voxels that are no number, or too large for one")
            channels.append(geometry.to_ras(channel))
    if len(set(patients)) > 1:
        raise VolumeError(f"its channels are of several patients: {', '.join(sorted(set(patients)))}")
    return Volume(np.stack(channels), grids[0], tuple(dict.fromkeys(notes)), next(iter(patients), ""))


def read_labels(path: Path) -> tuple[np.ndarray, Geometry]:
    """(x, y, z) int64 values of a mask in the order of its file, and its geometry.

    Raises VolumeError as `read_image`, and for values that are no whole numbers.
    """
    values, affine, *_ = _stored(path)
    geometry = _geometry(values.shape, affine, path)
    if values.size != np.prod(geometry.shape):
        raise VolumeError(
            f"mask {path.name} has {values.ndim} axes ({' x '.join(map(str, values.shape))}): one label a voxel"
        )
    if not np.isfinite(values).all():
        raise VolumeError(f"mask {path.name} holds voxels that are no number")
    whole = np.rint(values)
    if (off := values[values != whole]).size:
        raise VolumeError(f"mask {path.name} holds {off.flat[0]:.6g}, which is no whole number")
    return whole.astype(np.int64).reshape(geometry.shape), geometry


def unlike(one: Geometry, other: Geometry) -> str:
    """How two grids that should be one differ, as the end of a sentence; empty where they do not."""
    if one.shape != other.shape:
        return f"differ in shape: {' x '.join(map(str, one.shape))} and {' x '.join(map(str, other.shape))} voxels"
    spacings = [tuple(float(f"{each:.7g}") for each in geometry.spacing) for geometry in (one, other)]
    if not np.allclose(spacings[0], spacings[1], rtol=SAME_PLACE):
        return f"differ in spacing: {spacings[0]} and {spacings[1]} mm"
    if not np.allclose(one.matrix[:3, :3], other.matrix[:3, :3], atol=SAME_PLACE * min(one.spacing)):
        axes = ["".join(map(str, nib.aff2axcodes(geometry.matrix))) for geometry in (one, other)]
        return f"differ in orientation: {axes[0]} and {axes[1]}, affine {_rounded(one)} and {_rounded(other)}"
    if one.distance_to(other) > SAME_PLACE:
        origins = [tuple(np.round(geometry.matrix[:3, 3], 3).tolist()) for geometry in (one, other)]
        if origins[0] == origins[1]:  # small differences of the axes add up over many voxels
            apart = one.distance_to(other)
            return f"differ in place by {apart:.2g} voxels at a corner: spacing {spacings[0]} and {spacings[1]} mm"
        return f"differ in origin: {origins[0]} and {origins[1]} mm"
    return ""


def _rounded(geometry: Geometry) -> list[list[float]]:
    rows: list[list[float]] = np.round(geometry.matrix[:3, :3], 3).tolist()
    return rows


def _stored(path: Path) -> tuple[np.ndarray, np.ndarray, Sequence[str], str]:
    """Values, affine, notes and patient of a NIfTI file (which names none) or of a folder with a DICOM series."""
    if path.is_dir():
        from domains.medical.dicom import SeriesError, read_series

        try:
            return read_series(path)
        except SeriesError as error:
            raise VolumeError(str(error)) from None
    try:
        image: Any = nib.load(path)
        _refuse_absurd(image, path)
        values = np.asanyarray(image.dataobj)
        if values.dtype.kind not in "biuf":
            raise VolumeError(f"{path.name} holds {image.get_data_dtype()} voxels: give one real number a voxel")
        return values, np.asarray(image.affine, np.float64), _doubts(image), ""
    except VolumeError:
        raise
    except ImageFileError as error:
        raise VolumeError(f"{path.name} is no readable NIfTI file ({str(error).splitlines()[0]})") from None
    except (OSError, ValueError, EOFError, OverflowError, zlib.error) as error:
        raise VolumeError(f"{path.name} is cut off or broken ({str(error).splitlines()[0]})") from None


def _doubts(image: Any) -> list[str]:
    """What a NIfTI header leaves open about where its voxels lie; nibabel takes the sform where there are two answers."""
    codes = [int(image.header.get(f"{form}form_code", 0)) for form in "qs"]
    if not any(codes):
        return ["the header says nothing of the orientation (no qform, no sform): right and left are assumed"]
    if not all(codes) or len(image.shape) < 3 or _forms_apart(image) <= FAR_APART:
        return []
    return ["qform and sform place the voxels differently: the sform is taken, and other tools may take the qform"]


def _forms_apart(image: Any) -> float:
    """How far apart the two affines of a header put a corner, as a share of a voxel."""
    grids = [
        (tuple(image.shape[:3]), tuple(map(tuple, form.tolist()))) for form in (image.get_sform(), image.get_qform())
    ]
    return Geometry(*grids[0]).distance_to(Geometry(*grids[1]))


def _refuse_absurd(image: Any, path: Path) -> None:
    """Believe no header whose file could not hold what it promises: the memory would be taken before reading fails."""
    shape, on_disk = tuple(int(n) for n in image.shape), path.stat().st_size
    promised = math.prod(shape) * image.get_data_dtype().itemsize
    most = on_disk * (MOST_PACKED if path.suffix == ".gz" else 1)
    if min(shape, default=1) < 0 or promised > most:
        raise VolumeError(
            f"{path.name} declares {' x '.join(map(str, shape))} voxels, {promised / 2**30:,.1f} GiB, and its "
            f"{on_disk:,} bytes cannot hold them"
        )
    if math.prod(shape) > MOST_VOXELS:
        raise VolumeError(
            f"{path.name} declares {' x '.join(map(str, shape))} voxels, more than {MOST_VOXELS:,}: cut it into parts"
        )


def _geometry(stored_shape: Sequence[int], affine: np.ndarray, path: Path) -> Geometry:
    shape = tuple(int(n) for n in stored_shape)
    if len(shape) < 2 or 0 in shape or any(n > 1 for n in shape[4:]):
        raise VolumeError(f"{path.name} has shape {shape}: a volume has 2 or 3 axes, and a fourth for channels")
    if affine.shape != (4, 4) or not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-12:
        raise VolumeError(f"{path.name} has an affine that places no voxels: {affine.round(3).tolist()}")
    x, y, z = (*shape[:3], 1)[:3]
    return Geometry((x, y, z), tuple(tuple(row) for row in affine.tolist()))
