"""``pairstream reindex ROOT``: make derived columns, statistics and registry entries again from raw columns.

A fix in the registry reaches converted datasets without reading images. New files are written into the journal first.
Then the manifest waits in the journal while they are put into place: after a kill at any moment the same command
completes the work.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before the slow imports.
    from stream.base.arguments import run_program

    run_program("convert.reindex")

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convert.command import root_parser, run_report
from convert.datasets import find_datasets
from convert.errors import ConvertError, UsageError
from convert.index.derived import find_fault, vector_inputs
from convert.index.statistics import split_statistics
from convert.index.tables import derive_steps
from convert.journal.journal import MANIFEST, Journal
from convert.registry.dataset import DatasetSpec
from convert.registry.registry import Registry, load_registry
from convert.report import format_table
from convert.storage.durable import writing
from stream.base.errors import closest
from stream.base.progress import Progress
from stream.format.manifest import Manifest, SplitEntry, TableEntry, describe_file, encode_manifest
from stream.format.names import DERIVED, MANIFEST_NAME, table_file
from stream.format.table import open_table
from stream.storage.remote import is_remote

_STORED = ("cameras", "instruction", "robot", "robot_path", "leave_out", "offset", "success_path")
"""Keys of a registry entry that images and raw columns depend on."""

_EPILOG = """\
exit codes:
  0    every dataset agrees with the registry
  1    the work stopped; run the same command again
  2    a wrong name, path, option or configuration; nothing was changed
  130  interrupted; run the same command again

examples:
  pairstream reindex data/oxe
  pairstream reindex data/oxe --datasets bridge,rt1 --config mine.yaml
"""


def reindex_root(
    root: str, *, datasets: Sequence[str] | None = None, config: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Make the derived columns, statistics and registry entries of converted datasets again.

    Progress goes to standard error. All datasets are checked before the first is changed.

    Args:
        root: Local output root, ``ROOT/<dataset>`` or ``ROOT/<dataset>/<version>``.
        datasets: Names of the datasets to reindex; default all.
        config: YAML files over the packaged registry.

    Returns:
        For each dataset its ``dataset``, ``version`` and ``path``, what is new as ``changed`` (``registry entry``,
        ``statistics``, ``files``, and each derived column that differs), and as ``kept`` the keys of the registry entry
        that differ and that only another conversion can follow.

    Raises:
        UsageError: A dataset or its registry entry is missing, not complete, or takes a column that was not converted.
        FormatError: A file is damaged.
        ConvertError: A file cannot be written.
    """
    if is_remote(root):
        raise UsageError(
            f"{root}: only local folders are reindexed; bring it here with `pairstream fetch`, reindex it, and "
            "copy it back"
        )
    registry = load_registry(config=config)
    folders = find_datasets(root, datasets)
    manifests = [_check(folder, registry)[0] for folder in folders]
    done = []
    steps = sum(manifest.steps for manifest in manifests)
    with Progress(steps, "steps", stream=sys.stderr, label="reindex") as shown:
        for folder, manifest in zip(folders, manifests, strict=True):
            done.append(_reindex(folder, registry))
            shown.advance(manifest.steps)
    return done


def _check(folder: Path, registry: Registry) -> tuple[Manifest, DatasetSpec]:
    """Return the manifest of a dataset and its registry entry; raises UsageError if its columns are not enough."""
    journal = Journal(folder)
    if journal.parameters() is not None:
        raise UsageError(f"{folder}: a conversion is not complete here; run the same convert.run command to finish it")
    manifest = journal.manifest() or journal.withdrawn()
    if manifest is None:
        raise UsageError(f"{folder}: no {MANIFEST_NAME}, so the conversion is not complete; convert it first")
    spec = _find_spec(folder, manifest, registry)
    for split, entry in manifest.splits.items():
        schema = open_table(folder / split / table_file("steps"), "steps", rows=entry.steps).arrow().schema
        for vector, part in [(name, part) for name, each in spec.vectors.items() for part in vector_inputs(each)]:
            if fault := find_fault(schema, part):
                raise UsageError(
                    f"{folder}: the registry's {vector} takes {part.path}, but in {split} {fault}; convert "
                    f"{spec.name} again with --overwrite, without leaving this feature out"
                )
    return manifest, spec


def _find_spec(folder: Path, manifest: Manifest, registry: Registry) -> DatasetSpec:
    spec = registry.datasets.get(manifest.dataset)
    if manifest.parameters.get("described_by") == "source":
        spec = registry.describe(manifest.dataset, manifest.spec)
    if spec is None:
        hint = closest(manifest.dataset, registry.datasets, noun="datasets")
        raise UsageError(f"{folder}: {manifest.dataset} is not in the registry; {hint}. Name its file with --config")
    for key, found in (("tfds_name", manifest.source.tfds_name), ("version", manifest.version)):
        if getattr(spec, key) != found:
            raise UsageError(
                f"{folder}: was converted from {key} {found}, the registry says {getattr(spec, key)}; convert "
                f"{spec.name} again with --overwrite"
            )
    return spec


def _reindex(folder: Path, registry: Registry) -> dict[str, Any]:
    journal = Journal(folder)
    journal.make()
    with journal.lock(MANIFEST, wait=True), journal.alone():
        # Checked again, as another process may have changed it before the lock was free.
        before, spec = _check(folder, registry)
        try:
            with journal.stage(MANIFEST) as stage:
                after = _write_new(folder, before, spec, stage)
                changed = _changes(before, after)
                moved = [name for name, entry in after.splits.items() if not _is_in_place(folder / name, entry)]
                if changed or moved or journal.manifest() is None:
                    journal.withdraw()
                    for split in moved:
                        journal.place_index(split, stage / split)
                    journal.write_manifest(after)
                    changed = changed or ("files",)
        finally:
            if (folder / MANIFEST_NAME).exists():
                journal.clear((), ())
    kept = tuple(key for key in _STORED if before.spec.get(key) != after.spec.get(key))
    return {
        "dataset": after.dataset,
        "version": after.version,
        "path": str(folder),
        "changed": changed,
        "kept": kept,
    }


def _write_new(folder: Path, before: Manifest, spec: DatasetSpec, stage: Path) -> Manifest:
    """Write the new ``steps`` of each split to a folder of the stage; returns the manifest that describes them."""
    splits: dict[str, SplitEntry] = {}
    statistics = {}
    for split, entry in before.splits.items():
        target = stage / split / table_file("steps")
        with writing(folder):
            target.parent.mkdir()
            table = derive_steps(folder / split, target, spec.vectors)
        _check_raw(folder / split / table_file("steps"), table, entry.index["steps"])
        splits[split] = entry.model_copy(update={"index": {**entry.index, "steps": table}})
        statistics[split] = split_statistics(target.parent, spec.vectors)
    update = {"spec": spec.model_dump(mode="json"), "splits": splits, "statistics": statistics}
    return before.model_copy(update=update)


def _check_raw(path: Path, found: TableEntry, expected: TableEntry) -> None:
    """Refuse to give damaged columns new checksums."""
    for name in sorted({*found.columns, *expected.columns} - set(DERIVED)):
        if found.columns.get(name) != expected.columns.get(name):
            raise ConvertError(
                f"{path}: column {name!r} is not what the manifest says, so the file is damaged; run the same "
                "convert.run command to mend it, then reindex"
            )


def _changes(before: Manifest, after: Manifest) -> tuple[str, ...]:
    def columns(manifest: Manifest, name: str) -> Mapping[str, str | None]:
        return {split: entry.index["steps"].columns.get(name) for split, entry in manifest.splits.items()}

    if encode_manifest(before) == encode_manifest(after):
        return ()
    found = {"registry entry": before.spec != after.spec, "statistics": before.statistics != after.statistics}
    found |= {name: columns(before, name) != columns(after, name) for name in DERIVED}
    return tuple(name for name, differs in found.items() if differs)


def _is_in_place(folder: Path, entry: SplitEntry) -> bool:
    found = describe_file(folder / table_file("steps"))
    return (found.bytes, found.sha256) == (entry.index["steps"].bytes, entry.index["steps"].sha256)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    description = "Make derived columns, statistics and registry entries of converted datasets again."
    parser = root_parser("convert.reindex", description=description, epilog=_EPILOG)
    parser.add_argument("--config", action="append", default=[], help="YAML with further datasets; may be repeated")

    def work(options: argparse.Namespace, names: list[str] | None) -> tuple[Any, str, bool]:
        done = reindex_root(options.root, datasets=names, config=options.config)
        return done, _to_text(done), False

    return run_report(parser, arguments, work=work, interrupted="interrupted; run the same command again")


def _to_text(done: Sequence[Mapping[str, Any]]) -> str:
    rows = [(result["dataset"], result["version"], ", ".join(result["changed"]) or "unchanged") for result in done]
    lines = [format_table(["dataset", "version", "new"], rows)]
    lines += [
        f"{result['dataset']}: the registry's {', '.join(result['kept'])} differ too; images and raw columns stay as "
        "they are, convert again with --overwrite to follow"
        for result in done
        if result["kept"]
    ]
    return "\n".join(lines)
