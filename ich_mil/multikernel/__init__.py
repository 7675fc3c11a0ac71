"""Multi-class Gaussian processes with weighted kernels, sampled by pseudo-marginal MCMC."""
