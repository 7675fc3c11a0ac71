"""Reading, ordering and judging DICOM files; and synthetic ones to try it on."""
