"""Description of one dataset to generate: its registry entry, feature tree and entry in ``configs/sample.yaml``."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import tensorflow_datasets as tfds
import yaml

from convert.errors import UsageError
from convert.registry.dataset import DatasetSpec, Part
from convert.source.rlds.metadata import flatten_features
from stream.base.configs import CONFIGS


class SampleSource:
    """Everything needed to generate episodes of one dataset.

    Attributes:
        spec: Entry of the registry.
        tree: Features as a TFDS connector, from ``configs/features``.
        features: Leaves of the tree.
        hints: Entry of the dataset in ``configs/sample.yaml``, with the defaults of all datasets.
        parts: Meaning of numbers, from the registry and the hints.
        content: Hash of all that the files depend on besides the command's arguments.
    """

    def __init__(self, spec: DatasetSpec) -> None:
        """Read features and hints.

        Raises:
            UsageError: The feature tree is unknown, or has a feature without a fixed shape.
        """
        dataset_name, folder = spec.tfds_name, CONFIGS / "features"
        try:
            declared = folder.joinpath(f"{dataset_name}.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            available = sorted(file.name.removesuffix(".json") for file in folder.iterdir())
            raise UsageError(
                f"{dataset_name}: no feature tree to make a sample of; configs/features has {', '.join(available)}. "
                f"Put the features.json of the dataset there as {dataset_name}.json"
            ) from None
        self.spec = spec
        self.tree: Any = tfds.features.FeaturesDict.from_json(json.loads(declared))
        self.features = tuple(flatten_features(self.tree, context=f"configs/features/{dataset_name}.json").values())
        for feature in self.features:
            if None in feature.shape:
                subject = f"{dataset_name}: {feature.path} has the shape {feature.shape}"
                raise UsageError(f"{subject}; a sample needs fixed sizes")
        configured = yaml.safe_load(CONFIGS.joinpath("sample.yaml").read_text(encoding="utf-8"))
        common, hints = configured["any"], configured["datasets"].get(dataset_name, {})
        self.hints = {**common, **hints, "features": {**common["features"], **hints.get("features", {})}}
        self.parts = (*spec.action, *spec.state, *map(Part.model_validate, self.hints["parts"]))
        content = "\0".join([declared, spec.model_dump_json(), json.dumps(self.hints)])
        self.content = hashlib.sha256(content.encode()).hexdigest()
