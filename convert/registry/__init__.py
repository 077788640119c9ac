"""What is known of each dataset: cameras, actions, states, rates, mixtures."""
