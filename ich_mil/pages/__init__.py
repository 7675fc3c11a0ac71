"""Reports: offline HTML pages of a study, a cohort and a run, and DICOM results."""
