"""Location of the configurations that the package brings: datasets, mixtures, features."""

from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
"""Folder of the configurations; in the repository it is a link to ``configs``."""
