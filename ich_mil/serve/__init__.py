"""Worker `ich-mil serve`: predicts the studies of a folder or of Orthanc as they arrive."""
