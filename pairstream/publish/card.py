"""Dataset card of a converted root: the README.md that the Hugging Face Hub shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from stream.base.progress import human_bytes
from stream.format.catalog import Dataset
from stream.format.names import FORMAT_VERSION

MARK = "<!-- written by pairstream publish; remove this line to keep your own card -->"
"""Line of a card that a later upload replaces."""
_LICENCES = re.compile(r"cc0-1\.0|cc-by(-nc)?(-sa|-nd)?-[34]\.0|apache-2\.0|mit|bsd-[23]-clause")
_COLUMNS = [
    "dataset",
    "version",
    "layout",
    "episodes",
    "hours",
    "samples",
    "size",
    "rate",
    "robot",
    "splits",
    "cameras",
]
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10**7, "1M<n<10M"))


def write_card(
    repository: str,
    datasets: Sequence[Dataset],
    descriptions: Sequence[Mapping[str, Any]],
    *,
    folder: str = "",
    licence: str | None = None,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """Return the text of a card.

    Args:
        repository: ``ORG/NAME``.
        datasets: Datasets of the root.
        descriptions: Description of each, see ``pairstream.info.overview.describe``.
        folder: Folder of the root in the repository.
        licence: Licence of the repository; by default that of all sources if they have the same.
        pictures: Path in the repository of a picture of each dataset, by name.
    """
    root = f"hf://datasets/{repository}" + (f"/{folder}" if folder else "")
    names = [dataset.name for dataset in datasets]
    mixture = repr(names[0]) if len(names) == 1 else repr(dict.fromkeys(names, "size"))
    return "\n".join(
        [
            _header(repository, descriptions, licence),
            MARK,
            f"# {repository.rpartition('/')[2]}",
            "",
            f"{_counts(descriptions)} of robot data as random-access frames, in format {FORMAT_VERSION} of pairstream.",
            "",
            *_pictures(pictures or {}),
            "## Load",
            "",
            "With pairstream and its extra `hub`:",
            "",
            "```python",
            "import pairstream as ps",
            "",
            f"loader = ps.make_loader({root!r}, {mixture}, batch_size=64, num_workers=4,",
            '                        shuffle="block:64")',
            "for batch in loader:",
            '    batch["frames"], batch["action"], batch["language"]',
            "```",
            "",
            "The index and the records that were read are kept in `~/.cache/pairstream`. Add `@COMMIT` to the address",
            "to read the same files for ever. For long runs, copy the data first:",
            "",
            "```bash",
            f"pairstream fetch {root} LOCAL --mixture {names[0]}",
            "```",
            "",
            "## Content",
            "",
            *_content(descriptions),
            "",
            "## Sources and licences",
            "",
            *_sources(datasets, descriptions),
            "",
        ]
    )


def _header(repository: str, descriptions: Sequence[Mapping[str, Any]], licence: str | None) -> str:
    samples = sum(description["samples"] for description in descriptions)
    licences = {_hub_licence(description["license"]) for description in descriptions}
    robots = sorted({re.sub(r"[^a-z0-9]+", "-", str(row["robot"]).lower()) for row in descriptions if row["robot"]})
    header = {
        "pretty_name": repository.rpartition("/")[2],
        "license": licence or (licences.pop() if len(licences) == 1 else "other"),
        "task_categories": ["robotics"],
        "tags": ["robotics", "pairstream", *robots],
        "size_categories": [next((name for bound, name in _SIZES if samples < bound), "n>10M")],
        # The viewer reads neither ArrayRecord nor Arrow files of this form.
        "viewer": False,
    }
    return f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n"


def _hub_licence(licence: str | None) -> str:
    """Return the identifier of a licence on the Hub, ``other`` if it is not one of the common ones.

    >>> _hub_licence("CC BY 4.0"), _hub_licence("Apache-2.0"), _hub_licence(None)
    ('cc-by-4.0', 'apache-2.0', 'other')
    """
    name = re.sub(r"[\s_]+", "-", (licence or "").strip().lower())
    return (
        name
        if re.fullmatch(r"cc0-1\.0|cc-by(-nc)?(-sa|-nd)?-[34]\.0|apache-2\.0|mit|bsd-[23]-clause", name)
        else "other"
    )


def _counts(descriptions: Sequence[Mapping[str, Any]]) -> str:
    episodes, samples, num_bytes = (sum(row[key] for row in descriptions) for key in ("episodes", "samples", "bytes"))
    plural = "s" if len(descriptions) != 1 else ""
    hours = sum(description["hours"] or 0 for description in descriptions)
    total = f"{len(descriptions)} dataset{plural}, {episodes:,} episodes, {hours:,.1f} hours"
    return f"{total}, {samples:,} samples and {human_bytes(num_bytes)}"


def _pictures(pictures: Mapping[str, str]) -> list[str]:
    return [line for name, path in pictures.items() for line in (f"![Frames of {name}]({path})", "", f"{name}", "")]


def _content(descriptions: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for row in descriptions:
        cameras = ", ".join(
            f"{name} {'/'.join(camera['sizes'])} {camera['codec'] or 'depth'}"
            for name, camera in row["cameras"].items()
        )
        hours = "" if row["hours"] is None else f"{row['hours']:,.2f}"
        rate = "" if row["rate"] is None else f"{row['rate']:g} Hz"
        splits = ", ".join(f"{name} {count:,}" for name, count in row["splits"].items())
        numbers = [f"{row['episodes']:,}", hours, f"{row['samples']:,}", human_bytes(row["bytes"]), rate]
        rows.append(
            [row["dataset"], row["version"], row["layout"], *numbers, row["robot"] or "", splits, ", ".join(cameras)]
        )
    return _table(_COLUMNS, rows)


def _sources(datasets: Sequence[Dataset], descriptions: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for dataset, row in zip(datasets, descriptions, strict=True):
        spec, source = dataset.manifest.spec, dataset.manifest.source
        # Only the name: the path may be one of the machine that converted.
        source_name = f"{source.tfds_name} {source.version}"
        rows.append([row["dataset"], source_name, row["license"] or "not stated", str(spec.get("description") or "")])
    return [
        *_table(("dataset", "source", "licence of the source", "description"), rows),
        "",
        "The licence of each source holds for its frames and texts. Read it, and cite the source, before you use them.",
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"

    return [line(columns), line(["---"] * len(columns)), *map(line, rows)]
