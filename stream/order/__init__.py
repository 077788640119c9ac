"""Which sample comes when: splits, mixtures, shuffling and filters, as index arithmetic."""
