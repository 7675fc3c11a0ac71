"""Folder layouts of data sets: RSNA 2019, CQ500, single slices, any folder of DICOM files."""
