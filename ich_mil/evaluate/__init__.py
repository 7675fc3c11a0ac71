"""Evaluation of scan and slice scores: metrics, bootstrap, recalibration, triage and drift detection."""
