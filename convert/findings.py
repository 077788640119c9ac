"""Findings of ``pairstream verify`` and ``doctor``: collected by rule and split, shown as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from convert.datasets import VersionFolder
from convert.report import count_noun, fault, fit_table
from convert.rules import MAX_EXAMPLES, RULES, SEVERITIES, Rule
from stream.base.arguments import printable
from stream.base.progress import human_bytes, human_seconds
from stream.format.manifest import FileEntry, describe_file

_PER_FILE = 10
"""Damages of a file that are reported one by one."""
_TEXT = 60
"""Letters of an instruction in a line."""


@dataclass(kw_only=True)
class Example:
    """One occurrence of a finding; a field that does not apply is None.

    Attributes:
        file: Path of the damaged file.
        source_position: Number of the episode in the source file.
        record: Number of the record in the shard.
        text: Sentence about what was found.
        count: Count of occurrences that are alike.
        sha256: SHA-256 of the file if it differs from the manifest.
    """

    file: str | None = None
    source_file: str | None = None
    source_position: int | None = None
    shard: str | None = None
    record: int | None = None
    step: int | None = None
    text: str
    count: int = 1
    instruction: str = ""
    sha256: str | None = None

    @property
    def location(self) -> str:
        """Location for messages."""
        source_text = None if self.source_file is None else f"{self.source_file} #{self.source_position}"
        step_text = None if self.step is None else f"step {self.step}"
        record_text = None if self.record is None else f"record {self.record}"
        return " ".join(filter(None, (self.file or source_text or self.shard, step_text, record_text))) or "all"

    def to_text(self) -> str:
        """Return a line for people."""
        instruction = printable(self.instruction, latin=True)
        instruction = f" ({instruction[:_TEXT]}{'...' if len(instruction) > _TEXT else ''})" if instruction else ""
        repeat_note = f" ({self.count:,} of these)" if self.count > 1 else ""
        return f"{printable(self.location, latin=True)}: {printable(self.text, latin=True)}{repeat_note}{instruction}"


@dataclass
class Finding:
    """All that one rule found in a split; ``split`` is None if it concerns the dataset."""

    rule: Rule
    split: str | None
    count: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def unit(self) -> str:
        """Noun of what ``count`` counts."""
        return self.rule.unit.removesuffix("s") if self.count == 1 else self.rule.unit

    def to_json(self) -> dict[str, Any]:
        """Return the entry in ``--json``; ``episode`` is that of the first example."""
        examples = [asdict(example) for example in self.examples]
        for example in examples:
            del example["sha256"]
        return {
            "rule": self.rule.name,
            "severity": self.rule.severity,
            "split": self.split,
            "episode": {name: examples[0][name] for name in ("source_file", "source_position")},
            "count": self.count,
            "unit": self.unit,
            "meaning": self.rule.meaning,
            "examples": examples,
        }

    def to_lines(self, dataset: str) -> list[str]:
        """Return a line about the rule, and one for each example."""
        rule, context = self.rule, f"{dataset} {self.split or ''}".rstrip()
        headline = f"{rule.severity}: {context}: {rule.name}, {self.count:,} {self.unit}: {rule.meaning}"
        return [headline, *(f"  {example.to_text()}" for example in self.examples)]


@dataclass
class Notes:
    """Findings by rule and split; ``split`` is that of the files of ``add_file``."""

    split: str | None = None
    _found: dict[tuple[str, str | None], Finding] = field(default_factory=dict)
    _damage: dict[tuple[str, str], Example] = field(default_factory=dict)

    def _finding(self, rule_name: str, split: str | None) -> Finding:
        return self._found.setdefault((rule_name, split), Finding(RULES[rule_name], split))

    def add(self, rule_name: str, split: str | None, example: str | Callable[[], Example], *, count: int = 1) -> None:
        """Note that a rule applies ``count`` times; ``example`` is a text, or a function that is called if needed."""
        finding = self._finding(rule_name, split)
        finding.count += count
        if len(finding.examples) < MAX_EXAMPLES:
            finding.examples.append(Example(text=example) if isinstance(example, str) else example())

    def add_file(
        self, file_path: Path, sentence: str, *, check_name: str = "", count: int = 1, sha256: str | None = None
    ) -> None:
        """Note that a file is damaged: of a named check the first sentence, from the eleventh on only how many."""
        damage_key, finding = (str(file_path), check_name or sentence), self._finding("damaged", self.split)
        if damage_key not in self._damage and sum(file == damage_key[0] for file, _ in self._damage) >= _PER_FILE:
            damage_key, sentence = (damage_key[0], ""), "and more"
        finding.count += count
        if earlier_example := self._damage.get(damage_key):
            earlier_example.count += count
        else:
            self._damage[damage_key] = Example(file=damage_key[0], text=sentence, count=count, sha256=sha256)
            finding.examples.append(self._damage[damage_key])

    def check_file(self, file_path: Path, file_entry: FileEntry) -> bool:
        """Return whether a file has the size and SHA-256 of its manifest entry; note it if not."""
        try:
            actual_entry = describe_file(file_path)
        except OSError as error:
            missing = f"is not there, expected {human_bytes(file_entry.bytes)}"
            self.add_file(file_path, missing if isinstance(error, FileNotFoundError) else fault(error, file_path))
            return False
        size, sha256 = actual_entry.bytes, actual_entry.sha256
        if size != file_entry.bytes:
            self.add_file(file_path, f"has {size:,} bytes, expected {file_entry.bytes:,}", sha256=sha256)
        elif sha256 != file_entry.sha256:
            self.add_file(file_path, f"has SHA-256 {sha256}, expected {file_entry.sha256}", sha256=sha256)
        return (size, sha256) == (file_entry.bytes, file_entry.sha256)

    def merge(self, other_notes: Notes) -> None:
        """Take over what a process found."""
        for (rule_name, split), other_finding in other_notes._found.items():
            finding = self._finding(rule_name, split)
            finding.count += other_finding.count
            finding.examples += other_finding.examples
        self._damage |= other_notes._damage

    @property
    def damage(self) -> list[Example]:
        """Damages of files."""
        return list(self._damage.values())

    def count(self, rule_name: str, split: str | None) -> int:
        """Return how often a rule applied."""
        return self._found[rule_name, split].count if (rule_name, split) in self._found else 0

    def move(self, rule_name: str, split: str | None, worse_rule: str, *, first_text: str) -> None:
        """Move what one rule found to another, worse one; ``first_text`` becomes its first example."""
        old_finding = self._found.pop((rule_name, split))
        examples = [Example(text=first_text), *old_finding.examples][:MAX_EXAMPLES]
        self._found[worse_rule, split] = Finding(RULES[worse_rule], split, old_finding.count, examples)

    def findings(self) -> list[Finding]:
        """Return the findings, the worst first."""
        rule_order = list(RULES)
        return sorted(self._found.values(), key=lambda found: (rule_order.index(found.rule.name), found.split or ""))


def count_severities(findings: Sequence[Finding]) -> dict[str, int]:
    """Return the number of findings by severity: ``errors``, ``warnings``, ``hints``."""
    severities = [finding.rule.severity for finding in findings]
    return {f"{severity}s": severities.count(severity) for severity in SEVERITIES}


@dataclass(kw_only=True)
class DatasetReport(VersionFolder):
    """A version of a dataset, and what was found in it."""

    notes: Notes = field(default_factory=Notes)

    @property
    def findings(self) -> list[Finding]:
        """Findings, the worst first."""
        return self.notes.findings()

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of a dataset that a command reports in addition to the manifest's."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return the entry in ``--json``. ``bytes`` is the size of indexes and shards; counts are of the manifest."""
        splits = self.splits.values()
        return {
            "dataset": self.dataset,
            "version": self.version,
            "path": str(self.folder),
            "splits": list(self.splits),
            "shards": sum(len(entry.shards) for entry in splits),
            "episodes": sum(entry.episodes for entry in splits),
            "records": sum(entry.records for entry in splits),
            "labels": sorted({name for entry in splits for name in entry.labels}),
            "bytes": sum(file_entry.bytes for _, file_entry in self.files()),
            **self.facts,
            **count_severities(self.findings),
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """Result of a command: its settings, for JSON; what it looked at, for people; and its time in seconds."""

    root: str
    settings: Mapping[str, Any]
    looked_at: str
    seconds: float
    datasets: Sequence[DatasetReport]

    @property
    def findings(self) -> list[Finding]:
        """Findings of all datasets."""
        return [finding for dataset in self.datasets for finding in dataset.findings]

    @property
    def problems(self) -> list[Example]:
        """Examples of the errors of all datasets."""
        errors = [finding for finding in self.findings if finding.rule.severity == "error"]
        return [example for finding in errors for example in finding.examples]

    @property
    def ok(self) -> bool:
        """True if there is no error."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``--json``."""
        return {
            "root": self.root,
            **self.settings,
            "ok": self.ok,
            **count_severities(self.findings),
            "datasets": [dataset.to_json() for dataset in self.datasets],
            "findings": [
                {"dataset": dataset.dataset, "version": dataset.version, **finding.to_json()}
                for dataset in self.datasets
                for finding in dataset.findings
            ],
        }

    def table(self) -> tuple[list[str], list[list[str | int]]]:
        """Return the heads and the cells of a table of the datasets."""
        table_rows = []
        has_labels = any(dataset.to_json()["labels"] for dataset in self.datasets)
        for dataset in self.datasets:
            row = {name: value for name, value in dataset.to_json().items() if name != "path"}
            counts = {severity: row.pop(f"{severity}s") for severity in SEVERITIES}
            row |= {name: ", ".join(row[name]) or "-" for name in ("splits", "labels")}
            row |= {"bytes": human_bytes(row["bytes"])}
            if not has_labels:
                del row["labels"]
            found = [count_noun(count, severity) for severity, count in counts.items() if count]
            table_rows.append(row | {"findings": ", ".join(found) or "-"})
        return [column.replace("_", " ") for column in table_rows[0]], [list(row.values()) for row in table_rows]

    def summary(self) -> str:
        """Return one line about what was looked at and how much was found."""
        counts = count_severities(self.findings)
        severity_counts = ", ".join(count_noun(counts[f"{severity}s"], severity) for severity in SEVERITIES)
        datasets = count_noun(len(self.datasets), "dataset")
        return f"{severity_counts} in {datasets}: {self.looked_at}, {human_seconds(self.seconds)}"

    def to_text(self) -> str:
        """Return a table of the datasets, the findings with examples, and a summary."""
        text_lines = [fit_table(*self.table())]
        for severity in SEVERITIES:
            for report in self.datasets:
                for finding in report.findings:
                    if finding.rule.severity == severity:
                        text_lines += ["", *finding.to_lines(report.dataset)]
        return "\n".join([*text_lines, "", self.summary()])
