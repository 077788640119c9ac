"""The wheel, installed into an environment and used outside of the repository."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.stream.conftest import oxe_root

__all__ = ["oxe_root"]

pytestmark = pytest.mark.long
REPOSITORY = Path(__file__).resolve().parents[1]


def run(*command: object, cwd: Path, code: int = 0, seconds: float = 300) -> str:
    done = subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the tracked files; the build must not find what earlier builds left."""
    copy = tmp_path_factory.mktemp("repository")
    tracked = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=REPOSITORY).split("\0")
    for name in tracked:
        source = REPOSITORY / name
        if name and (source.is_symlink() or source.is_file()):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            # Another test may remove its file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(source, copy / name, follow_symlinks=False)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", copy / "dist", ".", cwd=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel, and the libraries of this one but not its packages of ours."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    # Behind its own packages; the editable install of this repository is not followed from here.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with a folder `configs` that has nothing to do with ours."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "configs").mkdir()
    (folder / "configs" / "__init__.py").write_text("raise ImportError('the configs of somebody else')\n")
    return folder


def test_the_wheel_has_the_packages_and_their_data_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"beam_jobs", "convert", "pairstream", "stream"}
    assert {f"{top}/py.typed" for top in tops} <= set(names)
    assert {"stream/configs/mixtures/oxe29.yaml", "stream/configs/slots/rdt.yaml"} <= set(names)
    assert "stream/configs/datasets.yaml" in names


def test_converting_and_loading_work_outside_of_the_repository(python: Path, beside: Path) -> None:
    command = python.parent / "pairstream"
    run(command, "sample", "--datasets", "bridge", "--output", "source", "--steps", "12", cwd=beside)
    run(command, "convert", "--datasets", "bridge", "--source", "source", "--output", "oxe", cwd=beside)
    assert "0 errors, 0 warnings" in run(command, "verify", "oxe", cwd=beside)
    code = """
import pairstream as ps
loader = ps.make_loader("oxe", "bridge", batch_size=2, num_workers=1)
batch = next(iter(loader))
assert batch["frames"].shape == (2, 2, 256, 256, 3), batch["frames"].shape
loader.save("loader.json")
print(ps.torch.StreamDataset.__name__)
"""
    assert run(python, "-c", code, cwd=beside).strip().endswith("StreamDataset")
    assert "digest" in run(command, "replay", "--loader", "loader.json", "--step", "3", cwd=beside)


def test_commands_that_need_no_further_extra_show_their_help(python: Path, beside: Path) -> None:
    command = python.parent / "pairstream"
    for name in ("verify", "doctor", "sample", "reindex", "info", "replay", "fetch", "label", "export"):
        assert run(command, name, "--help", cwd=beside).startswith(f"usage: pairstream {name} ")
    assert run(command, "convert", "--help", cwd=beside) == run(python, "-m", "convert.run", "--help", cwd=beside)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_make_dist_builds_trains_in_an_empty_environment_without_constraints(
    oxe_root: Path, tmp_path: Path
) -> None:
    """Of the dependencies pip takes the newest versions that pyproject.toml allows."""
    run("make", "dist", f"DIST={tmp_path}", f"PYTHON={sys.executable}", cwd=REPOSITORY)
    (built,) = tmp_path.glob("pairstream-*.whl")
    (source,) = tmp_path.glob("pairstream-*.tar.gz")
    for package in (built, source):
        folder = tmp_path / f"environment-{package.suffix[1:]}"
        run(sys.executable, "-m", "venv", folder, cwd=tmp_path)
        python = folder / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package, cwd=folder, seconds=1200)
        assert "No broken requirements" in run(python, "-m", "pip", "check", cwd=folder)
        code = f"""
import numpy as np, pairstream as ps
loader = ps.make_loader({str(oxe_root)!r}, "bridge", batch_size=16, action=4, num_workers=1, normalize="mean_std")
weights, losses, batches = np.zeros((64 * 64 * 3, 4 * 8)), [], iter(loader)
for _ in range(3):
    batch = next(batches)
    images = batch["frames"][:, 0].reshape(16, -1) / 255.0 - 0.5
    wanted, real = batch["action"].reshape(16, -1), batch["action_mask"].reshape(16, -1)
    wrong = np.where(real, images @ weights - wanted, 0)
    losses.append(float((wrong**2).mean()))
    weights -= 1e-3 * images.T @ wrong / 16
batches.close()
assert np.isfinite(losses).all(), losses
print(len(losses), "steps")
"""
        assert run(python, "-c", code, cwd=tmp_path) == "3 steps\n"


def test_an_unknown_subcommand_is_one_error(python: Path, beside: Path) -> None:
    told = run(python.parent / "pairstream", "replya", cwd=beside, code=2)
    assert told.startswith("error: no command 'replya'; ")
    assert "replay" in told


def test_a_file_that_hides_the_package_is_named(python: Path, tmp_path: Path) -> None:
    (tmp_path / "stream.py").write_text("")
    told = run(python, "-c", "import pairstream", cwd=tmp_path, code=1)
    assert f"finds {tmp_path / 'stream.py'}, which hides" in told.splitlines()[-1]
