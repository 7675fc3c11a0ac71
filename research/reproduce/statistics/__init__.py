"""Statistics used only in the report of a benchmark.

Arguments that the functions share: `labels` (B,) in {0, 1} or `UNKNOWN`, unlabelled scans are left out;
`probability` (B,) in [0, 1]; `patients`, B patient keys; `seed` and `resamples` of the bootstrap over
patients. All intervals are 95 % intervals. A column `note` says why a number is NaN.
"""
