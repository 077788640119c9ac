"""One module a loader: how it stores the pairs and gives batches of them."""
