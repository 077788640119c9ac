"""``pairstream verify``: check that files are what their manifests say."""
