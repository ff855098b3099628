"""DICOM series made up for tests."""

import numpy as np


def write_slice(path, pixels, height, *, uid="1.2.3", **tags):
    """One CT slice of unsigned 16-bit pixels, 0.5 mm between rows and 0.75 mm between columns."""
    import pydicom
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    found = pydicom.Dataset()
    found.file_meta = pydicom.dataset.FileMetaDataset()
    found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.file_meta.MediaStorageSOPClassUID = found.SOPClassUID = CTImageStorage
    found.file_meta.MediaStorageSOPInstanceUID = found.SOPInstanceUID = generate_uid()
    found.SeriesInstanceUID, found.Modality = uid, "CT"
    found.Rows, found.Columns = pixels.shape
    found.ImagePositionPatient, found.ImageOrientationPatient = [1.0, 2.0, height], [1, 0, 0, 0, 1, 0]
    found.PixelSpacing, found.PhotometricInterpretation = [0.5, 0.75], "MONOCHROME2"
    found.SamplesPerPixel, found.BitsAllocated, found.BitsStored, found.HighBit = 1, 16, 12, 11
    found.PixelRepresentation, found.PixelData = 0, pixels.astype("<u2").tobytes()
    for name, value in tags.items():
        setattr(found, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save_as(path, enforce_file_format=True)


def write_series(folder, stack, **tags):
    """Slices at 2 mm, named in an order of their own."""
    order = np.random.default_rng(0).permutation(len(stack))
    for name, at in enumerate(order):
        write_slice(folder / f"{name}.dcm", stack[at], 2.0 * at, **tags)
    return folder
