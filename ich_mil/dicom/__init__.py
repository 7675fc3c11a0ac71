"""DICOM files to ordered CT series in HU, and synthetic DICOM data sets for tests."""
