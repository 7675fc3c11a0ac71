"""DICOM files to ordered CT series in HU."""
