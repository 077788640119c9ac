"""Findings of ``convert.verify`` and ``convert.doctor``: collected by rule and split, shown as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from convert.datasets import VersionFolder
from convert.report import count_noun, fault, format_table
from convert.rules import MAX_EXAMPLES, RULES, SEVERITIES, Rule
from stream.base.arguments import printable
from stream.base.progress import human_bytes, human_seconds
from stream.format.manifest import FileEntry, describe_file

_PER_FILE = 10
"""Damages of a file that are told one by one."""
_TEXT = 60
"""Letters of an instruction in a line."""
_HIDDEN = ("sha256",)


@dataclass(kw_only=True)
class Example:
    """One occurrence of a finding; a field that does not apply is None.

    Attributes:
        file: Path of the damaged file.
        source_file: Source file of the episode.
        source_position: Number of the episode in the source file.
        shard: Shard that has it.
        record: Number of the record in the shard.
        step: Step in the episode, from 0.
        text: Sentence about what was found.
        count: Count of occurrences that are alike.
        instruction: Instruction of the episode.
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
    def place(self) -> str:
        """Location for messages."""
        source = None if self.source_file is None else f"{self.source_file} #{self.source_position}"
        step = None if self.step is None else f"step {self.step}"
        record = None if self.record is None else f"record {self.record}"
        return " ".join(part for part in (self.file or source or self.shard, step, record) if part) or "all"

    def to_text(self) -> str:
        """Return a line for people."""
        said = printable(self.instruction, latin=True)
        said = f" ({said[:_TEXT]}{'...' if len(said) > _TEXT else ''})" if said else ""
        alike = f" ({self.count:,} of these)" if self.count > 1 else ""
        return f"{printable(self.place, latin=True)}: {printable(self.text, latin=True)}{alike}{said}"


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
        return self.rule.unit if self.count != 1 else self.rule.unit.removesuffix("s")

    def to_json(self) -> dict[str, Any]:
        """Return the entry in ``--json``; ``episode`` is that of the first example."""
        first, examples = self.examples[0], [asdict(example) for example in self.examples]
        return {
            "rule": self.rule.name,
            "severity": self.rule.severity,
            "split": self.split,
            "episode": {"source_file": first.source_file, "source_position": first.source_position},
            "count": self.count,
            "unit": self.unit,
            "meaning": self.rule.meaning,
            "examples": [{name: each[name] for name in each if name not in _HIDDEN} for each in examples],
        }

    def to_lines(self, dataset: str) -> list[str]:
        """Return a line about the rule, and one for each example."""
        rule, where = self.rule, f"{dataset} {self.split or ''}".rstrip()
        head = f"{rule.severity}: {where}: {rule.name}, {self.count:,} {self.unit}: {rule.meaning}"
        return [head, *(f"  {example.to_text()}" for example in self.examples)]


@dataclass
class Notes:
    """Findings by rule and split; ``split`` is that of the files of ``add_file``."""

    split: str | None = None
    _found: dict[tuple[str, str | None], Finding] = field(default_factory=dict)
    _damage: dict[tuple[str, str], Example] = field(default_factory=dict)

    def _finding(self, rule: str, split: str | None) -> Finding:
        return self._found.setdefault((rule, split), Finding(RULES[rule], split))

    def add(self, rule: str, split: str | None, example: str | Callable[[], Example], *, count: int = 1) -> None:
        """Note that a rule applies ``count`` times; ``example`` is a text, or a function that is called if needed."""
        finding = self._finding(rule, split)
        finding.count += count
        if len(finding.examples) < MAX_EXAMPLES:
            finding.examples.append(Example(text=example) if isinstance(example, str) else example())

    def add_file(self, file: Path, text: str, *, check: str = "", count: int = 1, sha256: str | None = None) -> None:
        """Note that a file is damaged: of a named check the first sentence, from the eleventh on only how many."""
        key, finding = (str(file), check or text), self._finding("damaged", self.split)
        if key not in self._damage and sum(name == key[0] for name, _ in self._damage) >= _PER_FILE:
            key, text = (key[0], ""), "and more"
        finding.count += count
        if known := self._damage.get(key):
            known.count += count
        else:
            self._damage[key] = Example(file=key[0], text=text, count=count, sha256=sha256)
            finding.examples.append(self._damage[key])

    def check_file(self, path: Path, entry: FileEntry) -> bool:
        """Return whether a file has the size and SHA-256 of its manifest entry; note it if not."""
        try:
            found = describe_file(path)
        except FileNotFoundError:
            self.add_file(path, f"is not there, expected {human_bytes(entry.bytes)}")
            return False
        except OSError as error:
            self.add_file(path, fault(error, path))
            return False
        if found.bytes != entry.bytes:
            self.add_file(path, f"has {found.bytes:,} bytes, expected {entry.bytes:,}", sha256=found.sha256)
        elif found.sha256 != entry.sha256:
            self.add_file(path, f"has SHA-256 {found.sha256}, expected {entry.sha256}", sha256=found.sha256)
        return (found.bytes, found.sha256) == (entry.bytes, entry.sha256)

    def merge(self, other: Notes) -> None:
        """Take over what a process found."""
        for (rule, split), found in other._found.items():
            finding = self._finding(rule, split)
            finding.count += found.count
            finding.examples += found.examples
        self._damage |= other._damage

    @property
    def damage(self) -> list[Example]:
        """Damages of files."""
        return list(self._damage.values())

    def count(self, rule: str, split: str | None) -> int:
        """Return how often a rule applied."""
        return self._found[rule, split].count if (rule, split) in self._found else 0

    def move(self, rule: str, split: str | None, to: str, *, text: str) -> None:
        """Move what one rule found to another, worse one; ``text`` becomes its first example."""
        old = self._found.pop((rule, split))
        examples = [Example(text=text), *old.examples][:MAX_EXAMPLES]
        self._found[to, split] = Finding(RULES[to], split, old.count, examples)

    def findings(self) -> list[Finding]:
        """Return the findings, the worst first."""
        order = list(RULES)
        return sorted(self._found.values(), key=lambda found: (order.index(found.rule.name), found.split or ""))


def count_severities(findings: Sequence[Finding]) -> dict[str, int]:
    """Return the number of findings by severity: ``errors``, ``warnings``, ``hints``."""
    found = [finding.rule.severity for finding in findings]
    return {f"{severity}s": found.count(severity) for severity in SEVERITIES}


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
        """Facts of a dataset that a command tells besides those of the manifest."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return the entry in ``--json``. ``bytes`` is the size of indexes and shards; counts are of the manifest."""
        return {
            "dataset": self.dataset,
            "version": self.version,
            "path": str(self.folder),
            "splits": list(self.splits),
            "shards": sum(len(split.shards) for split in self.splits.values()),
            "episodes": sum(split.episodes for split in self.splits.values()),
            "records": sum(split.records for split in self.splits.values()),
            "labels": sorted({name for split in self.splits.values() for name in split.labels}),
            "bytes": sum(entry.bytes for _, entry in self.files()),
            **self.facts,
            **count_severities(self.findings),
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """Result of a command.

    Attributes:
        settings: Settings of the command, for JSON.
        looked_at: What was looked at, for people.
        seconds: Time that it took.
    """

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
        return [each for found in self.findings if found.rule.severity == "error" for each in found.examples]

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
        rows = []
        for dataset in self.datasets:
            row = {key: value for key, value in dataset.to_json().items() if key != "path"}
            names = {key: ", ".join(row[key]) or "-" for key in ("splits", "labels")}
            rows.append(row | names | {"bytes": human_bytes(row["bytes"])})
        return [head.replace("_", " ") for head in rows[0]], [list(row.values()) for row in rows]

    def summary(self) -> str:
        """Return one line about what was looked at and how much was found."""
        counts = count_severities(self.findings)
        found = ", ".join(count_noun(counts[f"{severity}s"], severity) for severity in SEVERITIES)
        datasets = count_noun(len(self.datasets), "dataset")
        return f"{found} in {datasets}: {self.looked_at}, {human_seconds(self.seconds)}"

    def to_text(self) -> str:
        """Return a table of the datasets, the findings with examples, and a summary."""
        lines = [format_table(*self.table())]
        found = [(dataset.dataset, finding) for dataset in self.datasets for finding in dataset.findings]
        for dataset, finding in sorted(found, key=lambda each: SEVERITIES.index(each[1].rule.severity)):
            lines += ["", *finding.to_lines(dataset)]
        return "\n".join([*lines, "", self.summary()])
