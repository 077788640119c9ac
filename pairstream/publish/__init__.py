"""Upload of a converted root to the Hugging Face Hub, with a dataset card."""
