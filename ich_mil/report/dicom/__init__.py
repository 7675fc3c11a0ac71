"""Results as DICOM objects that go back to the archive their images came from."""
