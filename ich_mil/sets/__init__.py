"""Data sets: label files and DICOM folders to prepared scans, splits and packed bags."""
