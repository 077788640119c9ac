"""Registry of datasets and mixtures: cameras, actions, states, rates, weights."""
