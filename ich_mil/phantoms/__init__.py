"""Synthetic head CT (phantoms) as DICOM, and synthetic bleeds drawn into real scans."""
