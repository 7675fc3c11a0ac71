"""DICOM result objects of a scan, for the archive that holds its images."""
