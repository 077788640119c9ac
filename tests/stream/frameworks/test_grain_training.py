"""Training loops on Grain's own loaders, in processes as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

DATA_LOADER = """
import sys

import grain
import numpy as np

from stream import SampleSource


def main(root):
    source = SampleSource(root, "bridge,kuka", split="train", action=3)
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=0, num_epochs=2)
    loader = grain.DataLoader(
        data_source=source, sampler=sampler, operations=[grain.transforms.Batch(batch_size=8)], worker_count=2
    )
    batches = iter(loader)
    for step in range(3):
        batch = next(batches)  # frames uint8 [8, 2, 64, 64, 3], action float32 [8, 3, 7], language [8], ...
    state = batches.get_state()
    expected = [next(batches)["sample"] for _ in range(3)]

    batches = iter(loader)
    batches.set_state(state)
    for sample in expected:
        np.testing.assert_array_equal(next(batches)["sample"], sample)
    assert batch["frames"].shape == (8, 2, 64, 64, 3) and batch["action"].shape[:2] == (8, 3)
    assert batch["language"][0] == source[int(batch["sample"][0])]["language"]
    np.testing.assert_array_equal(batch["frames"][0], source[int(batch["sample"][0])]["frames"])


if __name__ == "__main__":
    main(sys.argv[1])
"""

MAP_DATASET = """
import sys

import grain
import numpy as np

from stream import make_loader, samples


def main(root):
    mixture = {"bridge": 2, "kuka": 1}
    dataset = samples(root, mixture, seed=3).batch(4).to_iter_dataset()
    dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=1))
    batches, loader = iter(dataset), make_loader(root, mixture, batch_size=4, seed=3)
    for step in range(6):
        if step == 3:
            state = batches.get_state()
            batches = iter(dataset)
            batches.set_state(state)
        batch, expected = next(batches), loader.batch_at(step)
        np.testing.assert_array_equal(batch["sample"], expected["sample"])
        np.testing.assert_array_equal(batch["frames"], expected["frames"])
        assert batch["language"].tolist() == expected["language"]


if __name__ == "__main__":
    main(sys.argv[1])
"""


FLAGS = """
from absl import app, flags

OWN = flags.DEFINE_string("own", "default", "")
import stream

stream.SampleSource
try:
    OWN.value
except flags.UnparsedFlagAccessError:
    print("unparsed")
app.run(lambda argv: print(OWN.value, flags.FLAGS.grain_py_debug_mode, argv[1:]))
"""


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import from this repository, without JAX and Orbax: Grain would import them in each of its processes."""
    (tmp_path / "hidden").mkdir()
    for name in ("jax", "orbax"):
        (tmp_path / "hidden" / f"{name}.py").write_text(f"raise ModuleNotFoundError('{name} is not installed')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'hidden'}{os.pathsep}{REPOSITORY}")


def python(*arguments: str | Path) -> str:
    """Run Python, and return its output."""
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("program", [DATA_LOADER, MAP_DATASET], ids=["DataLoader", "MapDataset"])
def test_a_training_loop_runs_and_resumes_as_a_script(oxe_root: Path, tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program)
    python(tmp_path / "train.py", oxe_root)
    if program == MAP_DATASET:
        python("-c", program, oxe_root)


@pytest.mark.long
def test_a_training_loop_runs_in_a_notebook(oxe_root: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    cells = [DATA_LOADER.replace('if __name__ == "__main__":\n    main(sys.argv[1])', ""), f"main({str(oxe_root)!r})"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300).execute()


def test_flags_of_a_program_are_left_to_it() -> None:
    output = python("-c", FLAGS, "--own=given", "--grain_py_debug_mode", "rest")
    assert output == "unparsed\ngiven True ['rest']\n"


@pytest.mark.parametrize("name", ["make_loader", "samples", "Normalize"])
def test_grain_without_jax_is_imported_without_a_warning(name: str) -> None:
    command = [sys.executable, "-c", f"import stream; stream.{name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
