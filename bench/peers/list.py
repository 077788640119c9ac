"""The peers: their classes, their environments, and abilities beside speed.

``resume`` (to the exact next batch) and ``replay`` (of any step) are from the documentation that ``source`` names, for
the version in `bench/peers/requirements`; they are not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
VENVS = "build/peers"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A loader that is compared.

    Attributes:
        name: Name of the peer.
        module: Module that serves its requests.
        what: Classes that it uses.
        resume: ``yes``, ``no`` or ``partly``, from its documentation.
        replay: ``yes``, ``no`` or ``partly``, from its documentation.
        source: Documentation of both.
        own: Whether it runs in this repository's environment.
        copies: Whether it makes a copy of the pairs.
        variants: Variants, each a point.
        note: Remark for readers of the table.
    """

    name: str
    module: str
    what: str
    resume: str = "-"
    replay: str = "-"
    source: str = ""
    own: bool = False
    copies: bool = True
    variants: tuple[str, ...] = ("",)
    note: str = ""

    def requirements(self) -> list[tuple[Path, bool]]:
        """Return the files for pip to install, and whether to install dependencies too."""
        files = [(REQUIREMENTS / f"{self.name}.txt", True), (REQUIREMENTS / f"{self.name}.nodeps.txt", False)]
        return [(path, depends) for path, depends in files if path.is_file()]

    def python(self, venvs: Path) -> Path:
        """Return the path of the interpreter of its environment, which may not exist."""
        return venvs / self.name / "bin" / "python"


_ALL = (
    Peer(
        name="ours",
        module="bench.peers.loaders.ours",
        what="stream.make_loader",
        # Loader.state_at, Loader.batch_at.
        resume="yes",
        replay="yes",
        source="stream/loader/loader.py",
        own=True,
        copies=False,
        note="reads the converted root itself",
    ),
    Peer(
        name="lmdb",
        module="bench.peers.loaders.lmdb",
        what="one LMDB database, torch DataLoader with WeightedRandomSampler",
        # DataLoader has no state; torchdata's StatefulDataLoader would iterate the sampler again.
        resume="no",
        replay="no",
        source="https://docs.pytorch.org/data/0.8/_sources/torchdata.stateful_dataloader.rst.txt",
    ),
    Peer(
        name="webdataset",
        module="bench.peers.loaders.webdataset",
        what="tar files, WebDataset(resampled=True), RandomMix, torch DataLoader",
        # Its author: "WebDataset can't really do this for you".
        resume="no",
        replay="no",
        source="https://github.com/webdataset/webdataset/issues/271",
    ),
    Peer(
        name="grain",
        module="bench.peers.loaders.grain",
        what="ArrayRecordDataSource, MapDataset.mix, mp_prefetch",
        # Iterators have get_state and set_state; a MapDataset gives any element by number.
        resume="yes",
        replay="yes",
        source="docstrings of grain.MapDataset and grain.DatasetIterator",
    ),
    Peer(
        name="tfdata",
        module="bench.peers.loaders.tfdata",
        what="RLDS source, tfds.builder_from_directory, tf.data",
        # tf.train.Checkpoint saves an iterator with its buffers, but nothing outside its graph (threads).
        resume="partly",
        replay="no",
        source="https://www.tensorflow.org/api_docs/python/tf/train/Checkpoint",
        copies=False,
        variants=("sample", "choose", "threads"),
        note="decodes and resizes the source's own frames, so its pixels are not those of the root",
    ),
    Peer(
        name="mosaicml-streaming",
        module="bench.peers.loaders.mosaicml",
        what="MDS folders, Stream(proportion), StreamingDataset, StreamingDataLoader",
        # StreamingDataLoader.state_dict resumes at once, also at a step of the epoch written into the state.
        resume="yes",
        replay="partly",
        source="https://docs.mosaicml.com/projects/streaming/en/latest/distributed_training/fast_resumption.html",
    ),
    Peer(
        name="litdata",
        module="bench.peers.loaders.litdata",
        what="chunks, StreamingDataset, CombinedStreamingDataset(weights), StreamingDataLoader",
        # "Pause, resume data streaming"; nothing on steps that were not saved.
        resume="yes",
        replay="no",
        source="https://lightning.ai/docs/litdata/features/mulit-gpu-multi-node",
        note="an epoch ends with the first dataset that does; with few pairs there are many epochs",
    ),
    Peer(
        name="lerobot",
        module="bench.peers.loaders.lerobot",
        what="LeRobotDataset v3 with images in parquet and delta_timestamps, torch DataLoader with "
        "WeightedRandomSampler",
        # Before this (merged after 0.4.4), "checkpoints save step/optimizer/RNG but no dataloader position".
        resume="no",
        replay="no",
        source="https://github.com/huggingface/lerobot/pull/3769",
        note="its own decoder (Pillow, through float32); JPEGs of the root in parquet, not video",
    ),
    Peer(
        name="lance",
        module="bench.peers.loaders.lance",
        what="one Lance table, torch DataLoader (spawn) with WeightedRandomSampler",
        # The integration with PyTorch's DataLoader has no state.
        resume="no",
        replay="no",
        source="https://lancedb.github.io/lance/integrations/pytorch",
    ),
)

PEERS: dict[str, Peer] = {peer.name: peer for peer in _ALL}
"""By name."""
