"""The parameters of a measured training run."""

from __future__ import annotations

from dataclasses import dataclass

from bench.measure.sweep import duration, one_of, option
from stream.batch.spec import METADATA
from stream.storage.arguments import whole


@dataclass(frozen=True, kw_only=True)
class TrainParameters:
    """Parameters of a training run."""

    root: str = option("build/demo/oxe", str, "converted root, for example that of `make demo`")
    mixture: str = option("oxe29", str, "name of a mixture or dataset, or a YAML file")
    split: str = option("train", str, "split or role of training; of a packaged mixture `train` is train[:90%%]")
    val_split: str = option("val", str, "split or role of validation; of a packaged mixture `val` is train[90%%:]")
    batch_size: int = option(64, whole(1), "rows of a batch")
    num_workers: int = option(2, whole(0), "worker processes of each loader")
    metadata: str = option("full", one_of(METADATA), f"one of {', '.join(METADATA)}")
    decode: str = option("host", str, "place where JPEG is decoded: host, or device (nvJPEG on CUDA)")
    warmup: int = option(8, whole(1), "steps that are not measured, the first one included")
    steps: int = option(160, whole(1), "steps that are measured")
    val_every: int = option(80, whole(0), "steps between validations, 0 for none")
    val_steps: int = option(10, whole(1), "batches of a validation")
    seed: int = option(0, whole(0), "seed of the order of samples")
    device: str | None = option(None, str, "cpu, cuda, cuda:1 and so on; by default cuda if there is one")
    step_ms: float | None = option(None, duration, "milliseconds of a sleep that replaces the model's step")
