"""README, CONTRIBUTING and docs: their Python runs, their commands have the options given, no link leads nowhere."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from stream import make_loader
from tests.fixtures.command import REPOSITORY, run
from tests.stream.conftest import frames_root, oxe_root

__all__ = ["frames_root", "oxe_root"]

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(page.relative_to(REPOSITORY)) for page in (REPOSITORY / "docs").glob("*.md")),
)
MOST_LINES = {"README.md": 200, "CONTRIBUTING.md": 120}
_TURNS = 3


def _blocks(page: str, kind: str) -> list[str]:
    """Return the fenced blocks of a kind, "" for those that name none, without the indentation of their fence."""
    text = (REPOSITORY / page).read_text()
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, of, block in found if of == kind]


def _python() -> list[str]:
    """Return the blocks of Python of all pages."""
    return [code for page in PAGES for code in _blocks(page, "python")]


def _run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block with these names, every loop of it for some turns, and return the names that it has then."""
    tree = ast.parse(code)
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For):
            loop.iter = ast.Call(ast.Name("_some", ast.Load()), [loop.iter], [])
    names = {**names, "_some": lambda batches: itertools.islice(batches, _TURNS)}
    exec(compile(ast.fix_missing_locations(tree), "documentation", "exec"), names)
    return names


def _block(root: Path, mark: str, **changes: str) -> str:
    """Return the one block of Python that has a mark in it, on the tests' data; each change has to be one."""
    (code,) = [code for code in _python() if mark in code]
    code = code.replace("build/demo/oxe", str(root))
    for old, new in changes.items():
        assert old in code, f"{old!r} is not in {code}"
        code = code.replace(old, new)
    return code


@pytest.fixture
def halves(tmp_path: Path) -> str:
    """The mixture oxe29 with the second half of each dataset for validation: of four episodes a tenth is none."""
    path = tmp_path / "halves.yaml"
    path.write_text((REPOSITORY / "configs/mixtures/oxe29.yaml").read_text().replace("90%", "50%"))
    return f'"{path}"'


@pytest.fixture
def closing() -> Iterator[dict[str, Any]]:
    """Names of a block that was run, whose loaders' workers end afterwards."""
    names: dict[str, Any] = {}
    yield names
    for value in names.values():
        if hasattr(value, "close") and hasattr(value, "get_state"):
            value.close()


def test_every_block_of_python_is_run_below() -> None:
    marks = {"batch_at(51_234)", "action_names", "pa.memory_map", "ArrayRecordReader", "PairDataModule"}
    marks |= {"batches = to_device(", "stream.jax", 'split="val"', "iterator.get_state()", "PairSource", "Brighten"}
    marks |= {
        "tables = make_loader",
        "loader.save",
        "load_loader(",
        "frames_mask/wrist",
        "curriculum",
        "left_out =",
        "both.yaml",
        "my_lab_planar_arm",
        "denormalize",
        "unknown_units=",
        "openpi.loader(",
        "openvla.examples(",
    }
    blocks = _python()
    assert len(blocks) == len(marks)
    for mark in marks:
        assert sum(mark in code for code in blocks) == 1, mark


def test_the_first_lines(oxe_root: Path) -> None:
    names = _run(_block(oxe_root, "batch_at(51_234)"), {})
    assert names["batch"]["frames"].shape[:2] == (64, 2)
    assert [len(names["refs"]), names["batch"]["sample"][0]] == [64, 51_234 * 64]


def test_a_policy(oxe_root: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    seen: list[Any] = []
    code = _block(oxe_root, "tables = make_loader", **{'"cuda"': '"cpu"'})
    _run(code, {"train_step": lambda model, *given: seen.append(given), "model": None})
    for images, actions, real in seen:
        assert (images.shape[0], images.ndim, images.shape[-1]) == (64, 4, 3)
        assert actions.shape == real.shape == (64, 16, 13)
        assert not actions[~real].any()
    assert len(seen) == _TURNS


def test_the_dimensions_of_an_action(oxe_root: Path) -> None:
    code = _block(oxe_root, "action_names")
    names = _run(code, {"make_loader": make_loader})
    shown = [ast.literal_eval(line.split("# ")[1]) for line in code.splitlines() if "# (" in line]
    assert sum(shown, ()) == names["loader"].action_names["bridge"]
    assert [len(names["loader"].action_names[name]) for name in ("bridge", "rt1")] == [8, 13]


def test_one_action_space(oxe_root: Path) -> None:
    names = _run(_block(oxe_root, "unknown_units="), {"make_loader": make_loader})
    loader = names["loader"]
    assert loader.batch_at(0)["action"].shape[2] == 7
    assert "tidybot" not in loader.dataset_names and len(loader.dataset_names) > 15


def test_normalising_there_and_back(oxe_root: Path, tmp_path: Path) -> None:
    loader = make_loader(oxe_root, "bridge", batch_size=4)
    code = _block(oxe_root, "denormalize", **{"run/normalize.json": str(tmp_path / "normalize.json")})
    names = _run(code, {"loader": loader, "predicted": np.zeros((2, 8), np.float32)})
    assert names["action"].shape == (2, 8)
    assert names["action"].any()


def test_a_schedule(oxe_root: Path) -> None:
    code = _block(oxe_root, "curriculum")
    loader = _run(code, {})["loader"]
    assert [str(loader.weights_at(120_000))] == [
        line.split("# ")[1] for line in code.splitlines() if "weights_at" in line
    ]


def test_counts_of_what_was_left_out(oxe_root: Path) -> None:
    names = _run(_block(oxe_root, "left_out ="), {"make_loader": make_loader})
    assert names["left_out"] == {"filters": 4}


def test_mixture_files_of_the_page(oxe_root: Path, tmp_path: Path) -> None:
    members, schedule = _blocks("docs/mixtures.md", "yaml")
    (tmp_path / "soup.yaml").write_text(members.replace("contains, drawer", "contains, e"))
    loader = make_loader(oxe_root, tmp_path / "soup.yaml", batch_size=4)
    assert loader.dataset_names == ("bridge_early", "bridge_drawers", "kuka", "rt1")
    assert loader.stats()["left_out"]["kuka"]["episodes"] > 0
    (tmp_path / "schedule.yaml").write_text(schedule)
    loader = make_loader(oxe_root, tmp_path / "schedule.yaml", batch_size=4)
    assert loader.weights_at(10**6)["rt1"] == 1


def test_a_mixture_file(oxe_root: Path, tmp_path: Path) -> None:
    from convert.registry.registry import load_registry

    (text,) = _blocks("README.md", "yaml")
    (tmp_path / "soup.yaml").write_text(text)
    loader = make_loader(oxe_root, tmp_path / "soup.yaml", split="train", batch_size=4)
    assert {name: round(share, 3) for name, share in loader.weights.items()} == {"bridge": 0.667, "rt1": 0.333}
    chosen = load_registry().resolve(str(tmp_path / "soup.yaml"))
    assert {selected.spec.name: selected.offset for selected in chosen} == {"bridge": 5, "rt1": 3}


@pytest.mark.parametrize("file", sorted((REPOSITORY / "configs/mixtures").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_mixture_has_as_many_datasets_as_the_readme_says(file: Path) -> None:
    (count,) = re.findall(rf"^\| `{file.stem}` \|\D*(\d+)", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert int(count) == len(yaml.safe_load(file.read_text())["members"])


def test_from_a_step_to_its_episode(oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = {"run/loader.json": str(tmp_path / "run/loader.json")}
    _run(_block(oxe_root, "loader.save", **change), {"loader": make_loader(oxe_root, "bridge", batch_size=8)})
    names = _run(_block(oxe_root, "load_loader(", **change), {})
    assert capsys.readouterr().out.startswith("bridge bridge-train.tfrecord-")
    assert len(names["episode"].frames) == len(names["episode"].frame_steps) > 1


def test_tables_and_records(oxe_root: Path) -> None:
    names = _run(_block(oxe_root, "pa.memory_map"), {})
    assert {"episode", "step", "language", "action/world_vector"} < set(names["steps"].schema.names)
    names = _run(_block(oxe_root, "ArrayRecordReader"), names)
    assert names["first"][:3] == names["last"][:3] == b"\xff\xd8\xff"


def test_a_torch_loop(oxe_root: Path, closing: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    seen: list[Any] = []
    code = _block(oxe_root, "batches = to_device(", **{'"cuda"': '"cpu"'})
    closing |= _run(code, {"train_step": lambda model, batch: seen.append(batch["frames"]), "model": None})
    assert [type(frames) for frames in seen] == [torch.Tensor] * _TURNS
    assert closing["batches"].get_state()["step"] == _TURNS


@pytest.mark.filterwarnings("ignore")
def test_lightning(oxe_root: Path, halves: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from tests.stream.frameworks.test_lightning import _Model

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    given = {
        "Trainer": functools.partial(pl.Trainer, **quiet, default_root_dir=tmp_path),
        "ModelCheckpoint": pl.callbacks.ModelCheckpoint,
    }
    shorter = {"batch_size=64": "batch_size=16", "val_steps=20": "val_steps=2", "100_000": "4", "1000": "2"}
    code = _block(oxe_root, "PairDataModule", **shorter, **{'"oxe29"': halves, "runs/one": str(tmp_path)})
    (later,) = re.findall(r"# later: (.*)", code)
    model = _Model()
    _run(code, {**given, "model": model})
    assert len(model.trained) == 4
    resumed = _Model()
    code = code.replace("max_steps=4", "max_steps=6").replace("trainer.fit(model, datamodule=data)  #", f"{later}  #")
    _run(code, {**given, "model": resumed})
    # Its own numbers are of batches of 4.
    assert [step // 4 for step in resumed.trained] == [4, 5]


def test_a_jax_loop(oxe_root: Path, closing: dict[str, Any]) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from jax.sharding import NamedSharding, PartitionSpec

    seen: list[Any] = []

    def train_step(state: int, frames: Any, action: Any) -> tuple[int, float]:
        seen.append((frames, action))
        return state + 1, 0.0

    given = {"NamedSharding": NamedSharding, "PartitionSpec": PartitionSpec, "train_step": train_step, "state": 0}
    closing |= _run(_block(oxe_root, "stream.jax"), {**given, "mesh": jax.make_mesh((1,), ("data",))})
    assert closing["state"] == len(seen) == _TURNS
    assert all(isinstance(array, jax.Array) for pair in seen for array in pair)


def test_windows(frames_root: Path) -> None:
    code = _block(frames_root, "frames_mask/wrist", **{"build/demo/frames": str(frames_root)})
    batch = _run(code, {})["batch"]
    assert [batch[f"frames/{camera}"].shape for camera in ("primary", "wrist")] == [(64, 3, 64, 64, 3)] * 2
    assert batch["frame_step"].shape == batch["frames_mask/wrist"].shape == (64, 3)
    assert 0 < batch["frames_mask/wrist"].sum() < batch["frames_mask/primary"].sum()


def test_a_mixture_of_oxe_and_lerobot_with_a_root_each(
    frames_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from convert.run.command import main as convert
    from tests.fixtures.datasets.lerobot_dataset import DATA

    given = ["--datasets", "lerobot:demo/v3_av1", "--source", str(DATA), "--output", str(tmp_path / "data/mix")]
    assert convert([*given, "--layout", "frames", "--image-size", "64", "--num-workers", "1"]) == 0
    (tmp_path / "data/oxe").symlink_to(frames_root)
    (text,) = [text for text in _blocks("docs/lerobot.md", "yaml") if "both.yaml" in text]
    (tmp_path / "both.yaml").write_text(text.replace("lerobot_aloha_static_coffee", "demo_v3_av1"))
    monkeypatch.chdir(tmp_path)
    names = _run(_block(frames_root, "both.yaml"), {})
    loader, batch = names["loader"], names["batch"]
    assert loader.dataset_names == ("bridge", "coffee")
    assert {name: round(share, 3) for name, share in loader.weights.items()} == {"bridge": 0.333, "coffee": 0.667}
    assert loader.action_names["coffee"] == ("x", "y", "gripper")
    assert batch["frames"].shape == (64, 1, 64, 64, 3)
    # Bridge has 8 numbers, this LeRobot dataset 3.
    sizes = np.array([8, 3])[batch["dataset"]]
    assert (batch["action_mask"][:, 0].sum(axis=1) == sizes).all()
    assert set(batch["dataset"].tolist()) == {0, 1}


def test_a_mixture_of_oxe_and_lerobot_in_one_action_space(
    frames_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from convert.reindex import main as reindex
    from convert.run.command import main as convert
    from tests.fixtures.datasets.lerobot_dataset import DATA

    given = ["--datasets", "lerobot:demo/v3_av1", "--source", str(DATA), "--output", str(tmp_path / "data/mix")]
    assert convert([*given, "--layout", "frames", "--image-size", "64", "--num-workers", "1"]) == 0
    (text,) = [text for text in _blocks("docs/lerobot.md", "yaml") if "my_lab_planar_arm" in text]
    (tmp_path / "mine.yaml").write_text(text.replace("my_lab_planar_arm", "demo_v3_av1"))
    (tmp_path / "data/oxe").symlink_to(frames_root)
    monkeypatch.chdir(tmp_path)
    assert reindex(["data/mix", "--config", "mine.yaml"]) == 0
    code = _block(frames_root, '"planar"', my_lab_planar_arm="demo_v3_av1")
    names = _run(code, {"make_loader": make_loader})
    loader, batch = names["loader"], names["batch"]
    assert batch["action"].shape == (64, 16, 7)
    is_planar = batch["dataset"] == loader.dataset_names.index("planar")
    assert 0 < is_planar.sum() < 64
    for row in np.flatnonzero(is_planar).tolist():
        steps = loader.episode("planar", int(batch["episode"][row])).table
        stored, t = np.stack(steps["action"].to_numpy()), int(batch["step"][row])
        moved = np.diff(stored[:, :2], axis=0, prepend=np.nan)
        wanted = np.hstack([moved, np.zeros((len(stored), 4)), stored[:, 2:].clip(0, 1)])[t : t + 16]
        # The first step has no target before it.
        real = np.isfinite(moved[t : t + 16]).all(axis=1)
        assert batch["action_mask"][row, : len(wanted)].all(axis=1).tolist() == real.tolist()
        np.testing.assert_allclose(batch["action"][row, : len(wanted)][real], wanted[real], atol=1e-6)
        assert not batch["action_mask"][row, len(wanted) :].any()


def test_batches_of_trainers(frames_root: Path, tmp_path: Path) -> None:
    root = {"build/demo/frames": str(frames_root)}
    names = _run(_block(frames_root, "openpi.loader(", **root), {})
    assert names["batch"]["image"]["base_0_rgb"].shape == (32, 224, 224, 3)
    assert names["batch"]["actions"].shape == (32, 50, 32)
    pytest.importorskip("torch", reason="torch is not installed")
    names = _run(_block(frames_root, "openvla.examples(", **root, **{"run/": f"{tmp_path}/"}), {})
    assert len(names["rows"]) == 16 and (tmp_path / "dataset_statistics.json").is_file()
    assert names["tensors"]["observation.images.wrist"].shape == (8, 2, 3, 64, 64)
    assert set(names["stats"]) >= {"action", "observation.state"}


def test_validation(oxe_root: Path, halves: str) -> None:
    code = _block(oxe_root, 'split="val"', **{"step % 1000 == 999": "step % 2 == 1", '"oxe29"': halves})
    names = _run(code, {"make_loader": make_loader, "root": oxe_root})
    assert names["step"] == _TURNS - 1
    assert names["held_out"]["sample"][0] == (_TURNS - 1) * 64


def test_resuming(oxe_root: Path, closing: dict[str, Any]) -> None:
    with_loader = {"loader": make_loader(oxe_root, "bridge", batch_size=8, num_workers=1)}
    closing |= _run(_block(oxe_root, "iterator.get_state()"), with_loader)
    assert closing["iterator"].step == closing["state"]["step"] == 0


def test_a_loop_of_grain(oxe_root: Path) -> None:
    names = _run(_block(oxe_root, "PairSource", **{"worker_count=2": "worker_count=0"}), {})
    assert names["batch"]["frames"].shape[:2] == (8, 2)
    assert isinstance(names["state"], bytes)


def test_an_augmentation(oxe_root: Path) -> None:
    loader = _run(_block(oxe_root, "Brighten"), {})["loader"]
    plain = make_loader(oxe_root, "oxe29", batch_size=64).batch_at(0)["frames"]
    assert loader.batch_at(0)["frames"].dtype == plain.dtype
    assert (loader.batch_at(0)["frames"] != plain).any()


def test_the_dataset_of_ones_own(tmp_path: Path) -> None:
    from convert.registry.registry import load_registry

    (text,) = _blocks("docs/adding-a-dataset.md", "yaml")
    (tmp_path / "my.yaml").write_text(text)
    dataset = load_registry(config=[tmp_path / "my.yaml"]).dataset("my_robot")
    assert dataset.cameras.keys() == yaml.safe_load(text)["datasets"]["my_robot"]["cameras"].keys()


_COMMAND = re.compile(r"(?:python -m ([\w.]+)|examples/(\w+)\.py)((?:(?!python -m )[^|#])*)")


def _commands() -> list[Any]:
    """Return each command of the pages: its module, and the options that it is given."""
    found = []
    for page in PAGES:
        text = (REPOSITORY / page).read_text()
        blocks = "".join([*_blocks(page, ""), *_blocks(page, "bash")]).replace("\\\n", " ")
        for line in [*blocks.splitlines(), *re.findall(r"`(python -m [^`]+)`", text)]:
            for module, example, rest in _COMMAND.findall(line):
                options = tuple(re.findall(r"(?<![\w-])--[a-z][\w-]*", rest))
                if options and "pytest" not in module and "apache_beam" not in module:
                    name = module or f"examples.{example}"
                    found.append(pytest.param(name, options, id=f"{page}: {name} {' '.join(options)}"))
    return found


@functools.cache
def _options(module: str) -> set[str]:
    """Return the options of a command, by its --help."""
    if module.startswith("examples."):
        program = [sys.executable, module.replace(".", "/") + ".py", "--help"]
        shown = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    else:
        done = run("--help", module=module)
        assert done.code == 0, done.err
        shown = done.out
    return set(re.findall(r"--[a-z][\w-]*", shown)) | {"--help"}


@functools.cache
def _beam_options() -> set[str]:
    """Return those of Beam, which convert.run hands on."""
    from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

    parser = _BeamArgumentParser(add_help=False, conflict_handler="resolve")
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    return {name for action in parser._actions for name in action.option_strings}


@pytest.mark.long
@pytest.mark.parametrize(("module", "options"), _commands())
def test_commands_have_the_options_that_they_are_given(module: str, options: tuple[str, ...]) -> None:
    missing = set(options) - _options(module)
    if module == "convert.run":
        missing -= _beam_options()
    assert not missing


def test_there_are_commands() -> None:
    modules = {parameters.values[0] for parameters in _commands()}
    assert {
        "convert.run",
        "convert.sample",
        "stream.replay",
        "stream.fetch",
        "bench.loader",
        "examples.train_jax",
    } < modules


def test_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = (REPOSITORY / page).read_text()
        named = re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, page


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages() -> None:
    for page in PAGES:
        here = REPOSITORY / page
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", here.read_text()):
            if "://" not in target:
                there = here.parent / target if target else here
                assert there.exists(), f"{page}: {target}"
                assert not anchor or anchor in _anchors(there), f"{page}: {target}#{anchor}"


def test_every_page_is_in_the_site() -> None:
    site = (REPOSITORY / "mkdocs.yml").read_text()
    assert [page for page in PAGES if f" {page}\n" not in site] == []


@pytest.mark.parametrize("page", MOST_LINES)
def test_the_first_pages_stay_short(page: str) -> None:
    assert len((REPOSITORY / page).read_text().splitlines()) <= MOST_LINES[page]
