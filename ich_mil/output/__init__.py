"""Files of a prediction, a validation or a labelled collection of reports: tables, pages, DICOM results."""
