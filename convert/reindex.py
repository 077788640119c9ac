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
from convert.report import fit_table
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
    output_root: str, *, datasets: Sequence[str] | None = None, config: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Make the derived columns, statistics and registry entries of converted datasets again.

    Progress goes to standard error. All datasets are checked before the first is changed.

    Args:
        output_root: Local output root, ``ROOT/<dataset>`` or ``ROOT/<dataset>/<version>``.
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
    if is_remote(output_root):
        remedy = "bring it here with `pairstream fetch`, reindex it, and copy it back"
        raise UsageError(f"{output_root}: only local folders are reindexed; {remedy}")
    registry = load_registry(config=config)
    folders = find_datasets(output_root, datasets)
    manifests = [_check(folder, registry)[0] for folder in folders]
    results = []
    num_steps = sum(manifest.steps for manifest in manifests)
    with Progress(num_steps, "steps", stream=sys.stderr, label="reindex") as progress:
        for folder, manifest in zip(folders, manifests, strict=True):
            results.append(_reindex(folder, registry))
            progress.advance(manifest.steps)
    return results


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
        for vector_name, vector in spec.vectors.items():
            for part in vector_inputs(vector):
                if problem := find_fault(schema, part):
                    raise UsageError(
                        f"{folder}: the registry's {vector_name} takes {part.path}, but in {split} {problem}; "
                        f"convert {spec.name} again with --overwrite, without leaving this feature out"
                    )
    return manifest, spec


def _find_spec(folder: Path, manifest: Manifest, registry: Registry) -> DatasetSpec:
    spec = registry.datasets.get(manifest.dataset)
    if manifest.parameters.get("described_by") == "source":
        spec = registry.describe(manifest.dataset, manifest.spec)
    if spec is None:
        hint = closest(manifest.dataset, registry.datasets, noun="datasets")
        raise UsageError(f"{folder}: {manifest.dataset} is not in the registry; {hint}. Name its file with --config")
    for field_name, converted_value in (("tfds_name", manifest.source.tfds_name), ("version", manifest.version)):
        if (value := getattr(spec, field_name)) != converted_value:
            difference = f"{field_name} {converted_value}, the registry says {value}"
            raise UsageError(f"{folder}: was converted from {difference}; convert {spec.name} again with --overwrite")
    return spec


def _reindex(folder: Path, registry: Registry) -> dict[str, Any]:
    journal = Journal(folder)
    journal.make()
    with journal.lock(MANIFEST, wait=True), journal.alone():
        # Checked again, as another process may have changed it before the lock was free.
        before, spec = _check(folder, registry)
        try:
            with journal.stage(MANIFEST) as stage_folder:
                new_manifest = _write_new(folder, before, spec, stage_folder)
                changed = _changes(before, new_manifest)
                splits = new_manifest.splits.items()
                moved_splits = [split for split, entry in splits if not _is_in_place(folder / split, entry)]
                if changed or moved_splits or journal.manifest() is None:
                    journal.withdraw()
                    for moved_split in moved_splits:
                        journal.place_index(moved_split, stage_folder / moved_split)
                    journal.write_manifest(new_manifest)
                    changed = changed or ("files",)
        finally:
            if (folder / MANIFEST_NAME).exists():
                journal.clear((), ())
    kept_keys = tuple(key for key in _STORED if before.spec.get(key) != new_manifest.spec.get(key))
    location = {"dataset": new_manifest.dataset, "version": new_manifest.version, "path": str(folder)}
    return {**location, "changed": changed, "kept": kept_keys}


def _write_new(folder: Path, before: Manifest, spec: DatasetSpec, stage_folder: Path) -> Manifest:
    """Write the new ``steps`` of each split to a folder of the stage; returns the manifest that describes them."""
    new_splits: dict[str, SplitEntry] = {}
    statistics = {}
    for split, entry in before.splits.items():
        steps_path = stage_folder / split / table_file("steps")
        with writing(folder):
            steps_path.parent.mkdir()
            steps_entry = derive_steps(folder / split, steps_path, spec.vectors)
        _check_raw(folder / split / table_file("steps"), steps_entry, entry.index["steps"])
        new_splits[split] = entry.model_copy(update={"index": {**entry.index, "steps": steps_entry}})
        statistics[split] = split_statistics(steps_path.parent, spec.vectors)
    update = {"spec": spec.model_dump(mode="json"), "splits": new_splits, "statistics": statistics}
    return before.model_copy(update=update)


def _check_raw(steps_path: Path, actual: TableEntry, recorded: TableEntry) -> None:
    """Refuse to give damaged columns new checksums."""
    for column in sorted({*actual.columns, *recorded.columns} - set(DERIVED)):
        if actual.columns.get(column) != recorded.columns.get(column):
            reason = f"column {column!r} is not what the manifest says, so the file is damaged"
            raise ConvertError(f"{steps_path}: {reason}; run the same convert.run command to mend it, then reindex")


def _changes(before: Manifest, new_manifest: Manifest) -> tuple[str, ...]:
    def columns(manifest: Manifest, column: str) -> Mapping[str, str | None]:
        return {split: entry.index["steps"].columns.get(column) for split, entry in manifest.splits.items()}

    if encode_manifest(before) == encode_manifest(new_manifest):
        return ()
    changed = ["registry entry"] if before.spec != new_manifest.spec else []
    changed += ["statistics"] if before.statistics != new_manifest.statistics else []
    return (*changed, *(name for name in DERIVED if columns(before, name) != columns(new_manifest, name)))


def _is_in_place(folder: Path, entry: SplitEntry) -> bool:
    actual_entry = describe_file(folder / table_file("steps"))
    return (actual_entry.bytes, actual_entry.sha256) == (entry.index["steps"].bytes, entry.index["steps"].sha256)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    description = "Make derived columns, statistics and registry entries of converted datasets again."
    parser = root_parser("reindex", description=description, epilog=_EPILOG)
    parser.add_argument("--config", action="append", default=[], help="YAML with further datasets; may be repeated")

    def work(options: argparse.Namespace, dataset_names: list[str] | None) -> tuple[Any, str, bool]:
        results = reindex_root(options.root, datasets=dataset_names, config=options.config)
        return results, _to_text(results), False

    return run_report(parser, arguments, make_report=work, interrupt_message="interrupted; run the same command again")


def _to_text(results: Sequence[Mapping[str, Any]]) -> str:
    table_rows = [(line["dataset"], line["version"], ", ".join(line["changed"]) or "unchanged") for line in results]
    text_lines = [fit_table(["dataset", "version", "new"], table_rows)]
    remedy = "images and raw columns stay as they are, convert again with --overwrite to follow"
    for result in results:
        if result["kept"]:
            keys = ", ".join(result["kept"])
            text_lines.append(f"{result['dataset']}: the registry's {keys} differ too; {remedy}")
    return "\n".join(text_lines)
