"""DICOM network node: receives studies by C-STORE, runs the model, and sends results by C-STORE."""
