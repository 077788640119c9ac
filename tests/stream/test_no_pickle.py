"""Nothing that lies on a disk is ever unpickled: pickles pass between a trainer and its own workers only."""

import ast
from pathlib import Path

PACKAGES = ("stream", "convert", "beam_jobs")
REPOSITORY = Path(__file__).resolve().parents[2]
BETWEEN_PROCESSES = {"stream/workers/pool.py", "stream/worker.py"}
LOADERS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def test_only_messages_to_the_workers_are_pickled() -> None:
    files = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]
    users = {str(path.relative_to(REPOSITORY)) for path in files if imported(path) & LOADERS}
    assert users == BETWEEN_PROCESSES
    text = "".join(path.read_text() for path in files)
    for unsafe in ("allow_pickle=True", "yaml.unsafe_load", "yaml.full_load", "UnsafeLoader", "FullLoader"):
        assert unsafe not in text
