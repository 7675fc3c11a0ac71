"""DICOM files: raw elements, decoded pixels, and the headers of CT slices."""
