"""Smoke test of an installation, outside of the repository: ``python smoke.py FOLDER [--torch]``.

It uses only what the wheel brings and its dependencies: convert is left out if its extra is not installed, and the root
of the release in ``root-0.2.tar.xz`` next to this file is loaded in any case.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import time
from pathlib import Path


def run(*command: str) -> str:
    """Run ``pairstream`` of this environment."""
    program = Path(sys.executable).with_name("pairstream")
    return subprocess.run([str(program), *command], check=True, capture_output=True, text=True).stdout


def load(root: Path, name: str, *, torch: bool) -> None:
    """Load batches in workers, save and open the loader, and show a step again."""
    import pairstream as ps

    chosen = {"frames": ps.Frames([0]), "action": ps.Vector(2)}
    loader = ps.make_loader(root, name, batch_size=4, seed=3, num_workers=1, num_steps=4, **chosen)
    batches = [ps.digest(batch) for batch in loader]
    loader.save(root / "loader.json")
    assert ps.digest(ps.load_loader(root / "loader.json").batch_at(2)) == batches[2]
    assert batches[2] in run("replay", "--loader", str(root / "loader.json"), "--step", "2", "--digest")
    if torch:
        batch = ps.torch.as_tensors(loader.batch_at(0))
        assert batch["action"].float().mean().isfinite()
        batches_of_tensors = iter(ps.torch.StreamDataset(root, name, batch_size=4, num_workers=1, **chosen))
        assert next(batches_of_tensors)["frames"].shape[0] == 4


def main(folder: Path, *, torch: bool) -> None:
    """Run all that this installation allows, and print one line."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import pairstream as ps; ps.__all__"], check=True)
    with tarfile.open(Path(__file__).with_name("data") / "root-0.2.tar.xz") as archive:
        archive.extractall(folder / "released", filter="data")
    (folder / "released" / "expected.json").unlink()
    for name in ("pairs", "frames"):
        load(folder / "released", name, torch=torch)
    assert "2 datasets" in run("info", str(folder / "released"))
    if converts := importlib.util.find_spec("apache_beam") is not None:
        run("sample", "--datasets", "bridge", "--output", str(folder / "source"), "--steps", "12")
        run("convert", "--datasets", "bridge", "--source", str(folder / "source"), "--output", str(folder / "oxe"))
        run("verify", str(folder / "oxe"))
        load(folder / "oxe", "bridge", torch=torch)
    version = run("--version").strip()
    done = "converted and loaded" if converts else "loaded"
    print(
        f"{version}, Python {sys.version.split()[0]}: {done}{', with torch' if torch else ''}, "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), torch="--torch" in sys.argv[2:])
