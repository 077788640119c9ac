"""The peers: what each is, what it needs, and what it can do beside being fast.

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
    """One of those that are compared.

    what: the classes that are used. resume, replay: ``yes``, ``no`` or ``partly``, see above. copies: whether it has a
    copy of its own. variants: each is a point. note: for those who read the table.
    """

    name: str
    module: str
    what: str
    resume: str
    replay: str
    source: str
    copies: bool = True
    variants: tuple[str, ...] = ("",)
    note: str = ""

    @property
    def own(self) -> bool:
        """Whether it is this repository's own, which needs no environment but this one."""
        return self.name == "ours"

    def requirements(self) -> list[tuple[Path, bool]]:
        """Files for pip to install, and whether with what they depend on."""
        files = [(REQUIREMENTS / f"{self.name}.txt", True), (REQUIREMENTS / f"{self.name}.nodeps.txt", False)]
        return [(path, depends) for path, depends in files if path.is_file()]

    def python(self, venvs: Path) -> Path:
        """Where the interpreter of its environment is, or would be."""
        return venvs / self.name / "bin" / "python"


_ALL = (
    Peer(
        name="ours",
        module="bench.peers.loaders.ours",
        what="stream.make_loader",
        # stream/loader/loader.py: Loader.state_at, Loader.batch_at.
        resume="yes",
        replay="yes",
        source="stream/loader/loader.py",
        copies=False,
        note="its data are the converted root itself",
    ),
    Peer(
        name="lmdb",
        module="bench.peers.loaders.lmdb",
        what="one LMDB database, torch DataLoader with WeightedRandomSampler",
        # DataLoader has no state. torchdata's StatefulDataLoader, which this is not, goes through the sampler again.
        resume="no",
        replay="no",
        source="https://docs.pytorch.org/data/0.8/_sources/torchdata.stateful_dataloader.rst.txt",
    ),
    Peer(
        name="webdataset",
        module="bench.peers.loaders.webdataset",
        what="tar files, WebDataset(resampled=True), RandomMix, torch DataLoader",
        # Its author: "WebDataset can't really do this for you"; restarting gives the same distribution.
        resume="no",
        replay="no",
        source="https://github.com/webdataset/webdataset/issues/271",
    ),
    Peer(
        name="grain",
        module="bench.peers.loaders.grain",
        what="ArrayRecordDataSource, MapDataset.mix, mp_prefetch",
        # Its iterators have get_state and set_state; a MapDataset, batched too, gives any element by number.
        resume="yes",
        replay="yes",
        source="docstrings of grain.MapDataset and grain.DatasetIterator",
    ),
    Peer(
        name="tfdata",
        module="bench.peers.loaders.tfdata",
        what="RLDS source, tfds.builder_from_directory, tf.data",
        # tf.train.Checkpoint saves an iterator with its buffers; what is outside its graph (threads) is not saved.
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
        # StreamingDataLoader.state_dict resumes at once, also at a step of the epoch that one writes into the state.
        resume="yes",
        replay="partly",
        source="https://docs.mosaicml.com/projects/streaming/en/latest/distributed_training/fast_resumption.html",
    ),
    Peer(
        name="litdata",
        module="bench.peers.loaders.litdata",
        what="chunks, StreamingDataset, CombinedStreamingDataset(weights), StreamingDataLoader",
        # "Pause, resume data streaming"; nothing on going to a step that was not saved.
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
        # The integration with PyTorch's DataLoader tells of no state.
        resume="no",
        replay="no",
        source="https://lancedb.github.io/lance/integrations/pytorch",
    ),
)

PEERS: dict[str, Peer] = {peer.name: peer for peer in _ALL}
"""By name."""
