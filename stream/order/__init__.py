"""The order of samples as index arithmetic: splits, mixtures, shuffling and conditions."""
