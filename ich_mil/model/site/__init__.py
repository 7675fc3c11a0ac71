"""A model at a site: validation, recalibration, thresholds, drift, kinds of bleed."""
