"""The rooms of the repository and the arrows between them."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PROGRAMS = ("beam_jobs", "bench", "convert", "pairstream", "stream")
MOST_FILES = 15

_READERS = ("stream.base", "stream.batch", "stream.order", "stream.sample", "stream.format", "stream.storage")
ARROWS = {
    "stream.base": (),
    "stream.storage": ("stream.base",),
    "stream.format": ("stream.base", "stream.storage"),
    "stream.label": ("stream.base", "stream.format", "stream.storage"),
    "stream.cache": ("stream.base", "stream.format", "stream.label", "stream.storage"),
    "stream.sample": ("stream.base", "stream.format", "stream.storage"),
    "stream.order": ("stream.base", "stream.sample", "stream.format", "stream.storage"),
    "stream.batch": ("stream.base", "stream.cache", "stream.order", "stream.sample", "stream.format", "stream.storage"),
    "stream.statistics": _READERS,
    "stream.workers": _READERS,
    # Adapters give numpy arrays: LIBRARIES has no module of theirs.
    "stream.adapters": (
        *("stream.base", "stream.loader", "stream.statistics"),
        *("stream.batch", "stream.order", "stream.sample", "stream.format", "stream.storage"),
    ),
    "stream": ("stream",),
    "convert": ("convert", "stream.base", "stream.format", "stream.storage"),
    "beam_jobs": ("beam_jobs", "convert", "stream.base", "stream.format", "stream.storage"),
    "bench": ("bench", "beam_jobs", "convert", "pairstream", "stream"),
    "pairstream": ("pairstream", "stream", "convert"),
}
"""Imports that are allowed, by the longest name that fits the importing module."""

LIBRARIES = {
    "torch": (
        *("stream.frameworks.torch", "stream.frameworks.torch_augment", "stream.frameworks.torch_carriers"),
        *("stream.frameworks.lightning", "stream.frameworks.torch_ranks"),
    ),
    "lightning": ("stream.frameworks.lightning",),
    "transformers": ("stream.frameworks.transformers",),
    "jax": ("stream.frameworks.jax", "stream.frameworks.jax_augment"),
    "av": ("stream.format.video", "pairstream.export.video"),
    "nicegui": ("pairstream.browse",),
    "obstore": ("stream.storage.object_reads", "stream.storage.object_stores"),
    "rerun": ("pairstream.view.recording",),
    "huggingface_hub": ("stream.storage.hub", "stream.storage.hub_store"),
    "tensorflow": (),
    "tensorflow_datasets": (),
    "apache_beam": (),
}
"""Rooms and modules of ``stream`` that may import a library."""


WRITERS = {
    "convert.journal.store": "a journal that goes",
    "convert.sample.writer": "a sample, which is made again",
    "convert.source.rlds.dataset": "a copy for TFDS, gone with the process",
    "convert.storage.durable": "waits for the disk, on a stage",
    "convert.storage.object_store": "a copy on a stage",
    "pairstream.browse.static": "pages, which are made again",
    "stream.cache.quota": "a lock",
    "pairstream.export.command": "into a new folder",
    "pairstream.export.lerobot": "into a new folder",
    "pairstream.export.video": "into a new folder",
    "stream.cache.download": "waits for the disk, then placed",
    "stream.label.commit": "either name of a label is read",
    "stream.storage.files": "the one way",
    "stream.storage.table_writer": "waits for the disk, then placed",
    "stream.workers.pool": "a pipe",
}
"""Modules that may write or rename files themselves, and why; all others call ``stream.storage.files``."""


@functools.cache
def modules() -> dict[str, Path]:
    """Return the file of every module of the programs."""
    found = {}
    for program in PROGRAMS:
        for path in (REPOSITORY / program).rglob("*.py"):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def _statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, anywhere in it, type-only imports included."""
    for node in _statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in known else node.module


def is_in(module: str, room: str) -> bool:
    """Return whether a module is a room or in it."""
    return module == room or module.startswith(f"{room}.")


@functools.cache
def own_imports() -> dict[str, set[str]]:
    """Return what each module imports of the repository."""
    known = modules()
    return {
        name: {each for each in imports(path, known) if each.split(".")[0] in PROGRAMS and each != name}
        for name, path in known.items()
    }


def test_imports_follow_the_arrows() -> None:
    wrong = []
    for module, imported in own_imports().items():
        room = max((room for room in ARROWS if is_in(module, room)), key=len)
        for each in imported:
            allowed = is_in(each, room) or any(is_in(each, other) for other in ARROWS[room])
            if not allowed:
                wrong.append(f"{module} imports {each}")
    assert wrong == []


def test_no_program_imports_a_test() -> None:
    known = modules()
    wrong = [name for name, path in known.items() if any(is_in(module, "tests") for module in imports(path, known))]
    assert wrong == []


@pytest.mark.parametrize("level", [2, 9], ids=["rooms", "modules"])
def test_no_imports_go_in_a_circle(level: int) -> None:
    known = own_imports()
    packages = {name.rpartition(".")[0] for name in known}

    def place(module: str) -> str:
        parts = module.split(".")
        return module if level > 2 or module in packages or len(parts) <= 2 else ".".join(parts[:level])

    graph: dict[str, set[str]] = {}
    for module, imported in known.items():
        graph.setdefault(place(module), set()).update(place(each) for each in imported)
    for name, others in graph.items():
        others.discard(name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_libraries_are_imported_in_their_own_modules_only() -> None:
    known = modules()
    wrong = [
        f"{module} imports {each}"
        for module, path in known.items()
        if is_in(module, "stream")
        for each in imports(path, known)
        if not any(is_in(module, room) for room in LIBRARIES.get(each.split(".")[0], (module,)))
    ]
    assert wrong == []


def writes(node: ast.AST) -> bool:
    """Return whether a call writes a file or gives one its name, in ways that a power cut may undo."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        name, owner = node.func.id, ""
    elif isinstance(node.func, ast.Attribute):
        name, owner = node.func.attr, ast.unparse(node.func.value)
    else:
        return False
    modes = [
        each.value for each in (*node.args, *(word.value for word in node.keywords)) if isinstance(each, ast.Constant)
    ]
    if name == "open":
        return any(isinstance(mode, str) and len(mode) < 4 and mode[:1] in ("w", "a", "x") for mode in modes)
    if name == "replace":
        # With two arguments or by name it is one of texts or of records.
        return owner in ("os", "shutil") or (
            len(node.args) == 1 and not node.keywords and not owner.endswith("history")
        )
    return bool(owner) and name in ("write_text", "write_bytes", "rename", "renames", "copyfile", "copytree", "copy2")


def test_files_are_written_in_one_way_which_a_power_cut_does_not_undo() -> None:
    found = {
        module
        for module, path in modules().items()
        if not is_in(module, "bench") and any(map(writes, ast.walk(ast.parse(path.read_text()))))
    }
    assert found == WRITERS.keys()


@pytest.mark.parametrize("program", [*PROGRAMS, "tests"])
def test_folders_are_small_and_no_name_repeats_its_folder(program: str) -> None:
    for folder in {path.parent for path in (REPOSITORY / program).rglob("*.py")}:
        files = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
        assert len(files) <= MOST_FILES, f"{folder.relative_to(REPOSITORY)} has {len(files)} files"
        repeated = [name for name in files if name.startswith(f"{folder.name}_")]
        assert repeated == [], folder.relative_to(REPOSITORY)


def test_what_reads_no_tfds_dataset_starts_without_beam_and_tfds() -> None:
    code = (
        "import sys, convert.verify.command, convert.doctor.command, convert.reindex, convert.source.lerobot.dataset\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    heavy = {"apache_beam", "tensorflow_datasets", "tensorflow", "torch", "jax", "dask"}
    assert heavy.isdisjoint(loaded.stdout.split())


def test_importing_stream_takes_less_than_half_a_second_of_imports() -> None:
    code = "import sys, stream; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    heavy = {"grain", "numpy", "pyarrow", "pydantic", "torch", "jax", "apache_beam", "tensorflow"}
    assert heavy.isdisjoint(loaded.stdout.split())
