"""The studies: a question each, and the command that answers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Length = Literal["short", "full"]
Kind = Literal["loader", "train", "formats", "peers"]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question and the command that answers it.

    Attributes:
        key: Name of its folder.
        kind: Room of its command.
        title: Heading on the page.
        seen: Measurement of the source project with tf.data, ``-`` if unknown.
        arguments: Arguments of the command with places for ``{root}``, ``{small_root}`` (128x128) and ``{source}``.
        repeats: Repeats of each point in the short and the full form.
        short: Further arguments of the short form.
        plot: Swept parameter to draw, if any.
        files: Plots that the command writes.
    """

    key: str
    kind: Kind
    title: str
    seen: str
    arguments: tuple[str, ...]
    repeats: tuple[int, int] = (2, 5)
    short: tuple[str, ...] = ()
    plot: str | None = None
    files: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Return the module that ``python -m`` runs."""
        return f"bench.{self.kind}"

    def command(self, places: dict[str, str], length: Length) -> list[str]:
        """Return the arguments of the command, without ``--out`` and ``--json``."""
        more = self.short if length == "short" else ()
        given = [argument.format(**places) for argument in (*self.arguments, *more)]
        root = [] if "--root" in given or "root={" in " ".join(self.arguments) else ["--root", places["root"]]
        return [*root, *given, "--repeat", str(self.repeats[0 if length == "short" else 1])]


def _loader(key: str, title: str, seen: str, *arguments: str, plot: str | None = None) -> Study:
    return Study(key=key, kind="loader", title=title, seen=seen, arguments=arguments, plot=plot)


STUDIES: tuple[Study, ...] = (
    _loader("headline", "Throughput, 29 datasets", "148 samples/s on 32 CPUs, batch 64, 256x256."),
    _loader("metadata", "Metadata", "Full metadata cost 9 %.", "--sweep", "metadata=none,dataset_only,full"),
    _loader("workers", "Worker processes", "-", "--sweep", "num-workers=0,1,2,4,8", plot="num_workers"),
    _loader(
        "datasets",
        "Number of datasets",
        "Two datasets instead of one cost 42 %.",
        "--sweep",
        "datasets=1,2,4,29",
        plot="datasets",
    ),
    _loader(
        "samples-per-episode",
        "Samples per episode",
        "2 or 5 samples per episode cost 25 %.",
        "--sweep",
        "samples-per-episode=0,1,2,5,10",
    ),
    _loader("shuffle", "Shuffling", "-", "--sweep", "shuffle=none,block:16,block:64,global"),
    _loader(
        "halves",
        "Two halves of one dataset beside the whole",
        "-",
        "--mixture",
        "bridge",
        "--sweep",
        "split=train,train[:50%]+train[50%:]",
    ),
    _loader("batch-size", "Batch size", "-", "--sweep", "batch-size=24,64,128,256", plot="batch_size"),
    _loader("image-size", "Image size", "-", "--sweep", "root={root},{small_root}"),
    _loader("weight-0", "A dataset with weight 0", "-", "--sweep", "weight=none,language_table:0"),
    Study(
        key="long",
        kind="loader",
        title="1,200 batches",
        seen="Memory grew to 36 GB until the kernel ended the job.",
        arguments=("--steps", "1200", "--num-workers", "4", "--no-limit"),
        repeats=(1, 3),
        files=("mixture_over_time.png", "mixture_windows_every_stride.png"),
    ),
    Study(
        key="startup",
        kind="loader",
        title="Start and end",
        seen="The first batch took 26 s to minutes; jobs hung in teardown.",
        arguments=("--sweep", "datasets=1,29", "--no-limit"),
        repeats=(3, 7),
    ),
    Study(
        key="train",
        kind="train",
        title="Training, with validation",
        seen="75 to 83 % of the training time went into the loader; validation splits stalled or were empty.",
        arguments=("--sweep", "step-ms=50,100,200", "--val-every", "80", "--val-steps", "10"),
        repeats=(1, 3),
    ),
    Study(
        key="formats",
        kind="formats",
        title="Formats",
        seen="-",
        arguments=("--pairs", "600", "--batch-sizes", "16,64"),
        repeats=(2, 3),
        short=("--workers", "2", "--orders", "shuffled"),
        files=("formats.svg",),
    ),
    Study(
        key="peers",
        kind="peers",
        title="Peers",
        seen="148 samples/s with tf.data on 32 CPUs.",
        arguments=("--source", "{source}", "--limit-s", "600"),
        repeats=(1, 3),
        short=("--peers", "ours,lmdb,webdataset,grain,lance,mosaicml-streaming,litdata,lerobot,tfdata:sample"),
        files=("peers.svg",),
    ),
)
"""All studies, in the order of the page."""
