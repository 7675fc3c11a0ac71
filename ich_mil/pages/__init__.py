"""Reports: offline HTML pages of a study, a worklist and a run, and DICOM results."""
