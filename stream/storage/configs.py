"""The configurations that come with the package: datasets, mixtures, features."""

from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
"""Folder of the configurations; in the repository a link to its ``configs``."""
