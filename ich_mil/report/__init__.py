"""What people read: offline pages of a study, a cohort and a run, a benchmark's report, DICOM results."""
