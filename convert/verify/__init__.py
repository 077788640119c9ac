"""``python -m convert.verify``: check that files are what their manifests say."""
