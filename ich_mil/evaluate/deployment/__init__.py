"""Evaluation at a site in use: recalibration, triage, drift, out-of-distribution scans."""
