from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stream import Loader, Vector, make_loader
from stream.base.errors import ArgumentError
from stream.loader.open_mixture import open_mixture
from stream.loader.sample_spec import SampleSpec
from stream.statistics.load import load_normalize
from stream.statistics.normalize import Normalize
from tests.stream.crafted_root import CraftedRoot

WEIGHTS = {"bridge": 1, "kuka": 1, "taco_play": 1, "rt1": 1, "language_table": 1}


def load(root: Path, **options: Any) -> Loader:
    options = {"batch_size": 48, "num_workers": {"threads": 1}, **options}
    return make_loader(root, WEIGHTS, **options)


@pytest.mark.parametrize("reduce", [None, "first", "mean"])
@pytest.mark.parametrize("method", ["mean_std", "q01_q99"])
def test_each_row_is_normalised_by_the_statistics_of_its_dataset(oxe_root: Path, method: Any, reduce: Any) -> None:
    loader = load(oxe_root, action=Vector(reduce=reduce))
    transform = Normalize(loader, method=method)
    batch = loader.batch_at(0)
    before = {key: batch[key].copy() for key in ("action", "state")}
    result = transform.map(batch)
    assert set(batch["dataset"]) == set(range(len(WEIGHTS)))
    for key in ("action", "state"):
        assert result[key].dtype == np.float32
        assert np.array_equal(batch[key], before[key])
        assert (result[key][~batch[f"{key}_mask"]] == 0).all()
        for row, number in enumerate(batch["dataset"].tolist()):
            name, vector = loader.dataset_names[number], getattr(loader.data.spec, f"{key}s")[number]
            alone = transform.normalize(batch[key][row][..., : vector.size], key, dataset=name)
            expected = np.where(batch[f"{key}_mask"][row][..., : vector.size], alone, 0)
            np.testing.assert_array_equal(result[key][row][..., : vector.size], expected)
            kept = [kind == "flag" for kind in vector.kinds]
            np.testing.assert_array_equal(expected[..., kept], batch[key][row][..., : vector.size][..., kept])
    for key in batch:
        assert key in ("action", "state") or result[key] is batch[key]


def test_only_the_keys_that_were_asked_for_are_normalised(oxe_root: Path) -> None:
    loader = load(oxe_root, action=Vector(reduce="sum"))
    batch = loader.batch_at(0)
    result = Normalize(loader, keys=["state"]).map(batch)
    assert result["action"] is batch["action"]
    assert not np.array_equal(result["state"], batch["state"])


class Doubled(Normalize):
    def map(self, element: Any) -> Any:
        return {**super().map(element), "doubled": True}


def test_a_transform_made_of_it_stays_itself(oxe_root: Path) -> None:
    plain = load(oxe_root)
    assert load(oxe_root, transforms=[Doubled(plain)]).batch_at(0)["doubled"]


def test_statistics_of_training_serve_another_split(oxe_root: Path) -> None:
    train, test = (Normalize(make_loader(oxe_root, "bridge", batch_size=4, split=split)) for split in ("train", "test"))
    assert np.array_equal(train.tables["action"].scale, test.tables["action"].scale)


WRONG: list[tuple[str, Any]] = [
    ("keys", 5),
    ("keys", ["x"]),
    ("over", "all"),
    ("method", []),
    ("leave", 5),
    ("split", []),
]


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {"method": "quantiles"}, "umi; quantiles are 'q01_q99'"),
        ({}, {"method": "minmax"}, "method='minmax'; expected one of mean_std, q01_q99, min_max"),
        ({}, {"per": "robots"}, "per='robots'; expected one of dataset, robot, control, mixture"),
        ({}, {"leave": "gripper"}, "leave='gripper'; expected a list of names"),
        ({}, {"clip": -1}, "clip=-1; expected a number above 0"),
        ({}, {"split": "val"}, "dataset bridge: no statistics of action in split 'val'; splits with statistics: "),
        ({}, {"keys": ("reward",)}, r"keys=\('reward',\); expected a list of 'action', 'state' or both"),
        ({}, {"keys": "action"}, "keys='action'; expected a list"),
        *(({}, {name: value}, f"{name}=") for name, value in WRONG),
        ({"action": {"reduce": "sum"}}, {}, r"Vector\(reduce='sum'\) have no statistics"),
        ({"action": None, "state": None}, {"keys": ["state"]}, "batches have no state, as make_loader has state=None"),
    ],
)
def test_what_has_no_statistics_is_refused(
    oxe_root: Path, options: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    data = open_mixture(oxe_root, {"bridge": 1}, split="train", spec=SampleSpec(**options))
    with pytest.raises(ArgumentError, match=message):
        Normalize(data, **arguments)


FRANKA = ("fmb", "stanford_robocook_converted_externally_to_rlds")
OTHERS = ("berkeley_autolab_ur5", "roboturk", "columbia_cairlab_pusht_real")


def every_step(root: Path, names: tuple[str, ...], column: str) -> np.ndarray:
    """Return a column of ``steps`` of all train steps of some datasets, float64 [n, dims]."""
    parts = []
    for name in names:
        (path,) = (root / name).glob("*/train/steps.arrow")
        parts.append(np.stack(pa.ipc.open_file(path).read_all()[column].to_numpy(zero_copy_only=False)))
    return np.concatenate(parts).astype(np.float64)


def plain(values: np.ndarray, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what becomes 0, and what becomes 1, by numpy alone."""
    if method == "mean_std":
        return values.mean(0), values.mean(0) + values.std(0)
    low, high = (
        (np.quantile(values, 0.01, axis=0), np.quantile(values, 0.99, axis=0))
        if method == "q01_q99"
        else (values.min(0), values.max(0))
    )
    return (low + high) / 2, high


@pytest.mark.parametrize("method", ["mean_std", "q01_q99", "min_max"])
@pytest.mark.parametrize("per", ["dataset", "robot", "mixture"])
@pytest.mark.parametrize("names", [FRANKA, OTHERS], ids=["one robot", "two robots"])
def test_statistics_are_those_of_all_steps_together(
    oxe_root: Path, names: tuple[str, ...], per: Any, method: Any
) -> None:
    loader = make_loader(oxe_root, dict.fromkeys(names, 1), batch_size=32)
    normalize = Normalize(loader, method=method, per=per, leave=(), keys=("action",))
    robots = {
        name: d.manifest.spec["robot"] for name, d in zip(loader.dataset_names, loader.data.datasets, strict=True)
    }
    for member, name in enumerate(names):
        groups = {"dataset": (name,), "robot": tuple(n for n in names if robots[n] == robots[name]), "mixture": names}
        zero, unit = plain(every_step(oxe_root, groups[per], "action"), method)
        flags = np.array(loader.data.spec.actions[member].kinds) == "flag"
        varies = (np.abs(unit - zero) > 1e-6) & ~flags
        for values, expected in ((zero, 0), (unit, 1)):
            result = normalize.normalize(values.astype(np.float32), dataset=name)
            np.testing.assert_allclose(result[varies], expected, atol=2e-4)
            np.testing.assert_array_equal(result[~varies], values.astype(np.float32)[~varies])


def test_datasets_with_other_dimensions_are_not_taken_together(oxe_root: Path) -> None:
    message = r"per='mixture': action of rt1 is .*, that of bridge is x, y, .*; take one space for all"
    with pytest.raises(ArgumentError, match=message):
        Normalize(make_loader(oxe_root, "bridge,rt1", batch_size=4), per="mixture")


@pytest.mark.parametrize("method", ["mean_std", "q01_q99", "min_max"])
def test_values_are_clipped_on_demand(oxe_root: Path, method: Any) -> None:
    loader = make_loader(oxe_root, "kuka", batch_size=4)
    for clip, bound in ((None, np.inf if method == "mean_std" else 1.0), (False, np.inf), (0.5, 0.5)):
        normalize = Normalize(loader, method=method, clip=clip, leave=(), keys=("action",))
        largest = normalize.normalize(np.full(3, 1e6, np.float32), dataset="kuka").max()
        assert largest == bound if bound < np.inf else largest > 1


def test_named_dimensions_are_left_alone(oxe_root: Path) -> None:
    loader = make_loader(oxe_root, "bridge", batch_size=4)
    table = Normalize(loader, leave=("x", "ya*"), keys=("action",)).tables["action"]
    names = loader.action_names["bridge"]
    changed = {name for name, scale in zip(names, table.scale[0], strict=True) if scale != 1}
    assert {"y", "z", "roll", "pitch"} <= changed
    assert not {"x", "yaw"} & changed


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("method", ["mean_std", "q01_q99", "min_max"])
def test_denormalize_takes_normalize_back(oxe_root: Path, method: Any, kind: str) -> None:
    loader = load(oxe_root)
    normalize = Normalize(loader, method=method, clip=False)
    batch = loader.batch_at(0)
    result = normalize.map(batch)
    for key in ("action", "state"):
        values, numbers = result[key], batch["dataset"]
        if kind == "torch":
            values = pytest.importorskip("torch").from_numpy(values)
        elif kind == "jax":
            values = pytest.importorskip("jax.numpy").asarray(values)
        back = np.asarray(normalize.denormalize(values, key, dataset=numbers))
        mask = batch[f"{key}_mask"]
        np.testing.assert_allclose(back[mask], batch[key][mask], rtol=1e-4, atol=1e-4)
        repeated = np.asarray(
            normalize.normalize(normalize.denormalize(values, key, dataset=numbers), key, dataset=numbers)
        )
        np.testing.assert_allclose(repeated, result[key], rtol=1e-3, atol=1e-3)


def test_one_action_of_a_named_dataset_is_denormalised(oxe_root: Path) -> None:
    loader = load(oxe_root)
    normalize = Normalize(loader)
    member = loader.dataset_names.index("kuka")
    actions = np.random.default_rng(0).normal(size=(48, 3, loader.data.spec.action_size)).astype(np.float32)
    numbers = np.full(48, member)
    expected = normalize.denormalize(actions, dataset=numbers)
    np.testing.assert_array_equal(normalize.denormalize(actions[0, 0, :13], dataset="kuka"), expected[0, 0, :13])
    with pytest.raises(ArgumentError, match=r"dataset='nowhere'; expected one of bridge, kuka"):
        normalize.denormalize(actions, dataset="nowhere")


def test_saved_statistics_serve_the_same_data(oxe_root: Path, tmp_path: Path) -> None:
    loader = load(oxe_root)
    normalize = Normalize(loader, method="min_max", leave=("x",), clip=2.0)
    normalize.save(tmp_path / "normalize.json")
    repeated = load_normalize(tmp_path / "normalize.json", loader)
    for key in ("action", "state"):
        for part in ("scale", "centre", "low", "high"):
            np.testing.assert_array_equal(getattr(repeated.tables[key], part), getattr(normalize.tables[key], part))
    # A loader of some of the datasets, in another order.
    fewer = make_loader(oxe_root, {"rt1": 1, "bridge": 2}, batch_size=4)
    subset = load_normalize(tmp_path / "normalize.json", fewer)
    for position, name in enumerate(fewer.dataset_names):
        number, size = loader.dataset_names.index(name), len(fewer.action_names[name])
        np.testing.assert_array_equal(
            subset.tables["action"].scale[position, :size], normalize.tables["action"].scale[number, :size]
        )


def test_statistics_of_something_else_are_refused(oxe_root: Path, tmp_path: Path) -> None:
    loader = load(oxe_root)
    Normalize(loader).save(tmp_path / "normalize.json")
    with pytest.raises(ArgumentError, match=r"normalize\.json: no statistics of the action of viola; datasets there: "):
        load_normalize(tmp_path / "normalize.json", make_loader(oxe_root, "viola", batch_size=4))
    chosen = {"kuka": ["action/world_vector"]}
    with pytest.raises(
        ArgumentError, match=r"normalize\.json: the statistics belong to other data: names of the action"
    ):
        load_normalize(tmp_path / "normalize.json", load(oxe_root, action=Vector(columns=chosen)))
    saved = json.loads((tmp_path / "normalize.json").read_text())
    saved["statistics"]["state"]["kuka"]["source"]["content"]["train"] = "0" * 16
    (tmp_path / "other.json").write_text(json.dumps(saved))
    with pytest.raises(ArgumentError, match=r"content of the state of kuka are \{'train': '0000000000000000'\} in the"):
        load_normalize(tmp_path / "other.json", loader)


def test_windows_samples_and_weights_do_not_bind_statistics(oxe_root: Path, tmp_path: Path) -> None:
    Normalize(load(oxe_root)).save(tmp_path / "normalize.json")
    chosen: dict[str, Any] = {"action": 9, "select": {"where": [("step", ">", 1)]}, "samples_per_episode": 2, "seed": 5}
    second = make_loader(oxe_root, {"kuka": 1, "bridge": 3}, batch_size=8, **chosen)
    result = load_normalize(tmp_path / "normalize.json", second)
    assert result.names == ("kuka", "bridge")
    assert result.map(second.batch_at(0))["action"].shape == (8, 9, second.data.spec.action_size)


def test_a_corrected_text_of_the_registry_binds_no_statistics(oxe_root: Path, tmp_path: Path) -> None:
    root = CraftedRoot(oxe_root, tmp_path)
    loader = make_loader(tmp_path, "bridge", batch_size=4)
    Normalize(loader).save(tmp_path / "normalize.json")
    root.set("spec/description", "corrected")
    repeated = make_loader(tmp_path, "bridge", batch_size=4)
    assert repeated.data.datasets[0].manifest.checksum != loader.data.datasets[0].manifest.checksum
    load_normalize(tmp_path / "normalize.json", repeated)


def test_a_loader_with_other_numbers_of_its_datasets_takes_their_rows(oxe_root: Path) -> None:
    normalize = Normalize(load(oxe_root))
    with pytest.raises(ArgumentError, match="no statistics of the action of viola"):
        make_loader(oxe_root, "bridge,viola", batch_size=4, transforms=[normalize])
    few = make_loader(oxe_root, "rt1,bridge", batch_size=16)
    inside = make_loader(oxe_root, "rt1,bridge", batch_size=16, transforms=[normalize]).batch_at(0)
    np.testing.assert_array_equal(inside["action"], Normalize(few).map(few.batch_at(0))["action"])


def test_a_file_of_something_else_is_refused(oxe_root: Path, tmp_path: Path) -> None:
    loader = load(oxe_root)
    for content in ("", "[1]", "{}", '{"format": "stream-normalize", "version": 1}'):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(ArgumentError, match=r"other\.json: (not a|field missing)"):
            load_normalize(tmp_path / "other.json", loader)
    with pytest.raises(ArgumentError, match=r"nowhere\.json: cannot be read"):
        load_normalize(tmp_path / "nowhere.json", loader)


@pytest.mark.parametrize(
    ("format", "content", "message"),
    [
        ("openpi_pi0", {}, "none in openpi's norm_stats.json"),
        ("openpi_pi0", {"norm_stats": {}}, "not openpi's norm_stats.json: it has no actions and no state"),
        ("openpi_pi0", {"norm_stats": 5}, "none in openpi's norm_stats.json"),
        ("openpi_pi0", {"norm_stats": {"actions": {}}}, "no mean and no std, which openpi_pi0 takes"),
        ("openpi_pi05", {"norm_stats": {"actions": {"mean": [0.0] * 8}}}, "no q01 and no q99, which openpi_pi05 takes"),
        ("openpi_pi0", {"norm_stats": {"actions": 5}}, "actions of bridge: 5; expected a set of statistics"),
        ("openvla", {"bridge": {}}, "not OpenVLA's dataset_statistics.json"),
        ("openvla", {"bridge": 5}, "none in OpenVLA's dataset_statistics.json; datasets there: bridge"),
        ("openvla", {"kuka": {}}, "action of bridge: none in OpenVLA's dataset_statistics.json; datasets there: kuka"),
        ("openvla", {"bridge": {"action": {"q01": [0.0] * 8}}}, "action of bridge: no q99, which openvla takes"),
        ("octo", {"bridge": {"action": {"mean": [0.0] * 7, "std": [1.0] * 7}}}, "mean has 7 numbers, expected 8: x, y"),
        ("octo", {"bridge": {"action": {"mean": ["x"] * 8, "std": [1.0] * 8}}}, "not a set of statistics"),
    ],
)
def test_a_file_without_the_statistics_that_are_needed_is_refused(
    oxe_root: Path, tmp_path: Path, format: Any, content: Any, message: str
) -> None:
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(ArgumentError, match=message):
        load_normalize(tmp_path / "other.json", make_loader(oxe_root, "bridge", batch_size=4), format=format)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": {"reduce": "sum"}}, r"actions of Vector\(reduce='sum'\) have no statistics"),
        ({"action": None, "state": None}, "batches have no action, as make_loader has action=None"),
        ({"action": {"columns": {"bridge": [("action/rotation_delta", [0])]}}}, "names of the action of bridge"),
    ],
)
def test_a_loader_of_other_vectors_refuses_the_statistics(oxe_root: Path, arguments: Any, message: str) -> None:
    normalize = Normalize(make_loader(oxe_root, "bridge", batch_size=4))
    with pytest.raises(ArgumentError, match=message):
        make_loader(oxe_root, "bridge", batch_size=4, transforms=[normalize], **arguments)


def test_statistics_belong_to_the_columns_that_were_chosen_whatever_their_names(oxe_root: Path) -> None:
    def load_column(path: str, **more: Any) -> Loader:
        columns = {"bridge": [{"path": path, "names": ["x", "y", "z"]}]}
        return make_loader(oxe_root, "bridge", batch_size=4, action=Vector(columns=columns), **more)

    normalize = Normalize(load_column("action/world_vector"))
    load_column("action/world_vector", transforms=[normalize])
    with pytest.raises(
        ArgumentError, match=r"columns of the action of bridge are .*world_vector.* and .*rotation_delta"
    ):
        load_column("action/rotation_delta", transforms=[normalize])


def test_datasets_that_do_not_exist_and_values_of_no_vector_are_refused(oxe_root: Path) -> None:
    normalize = Normalize(load(oxe_root))
    datasets: list[Any] = [5, -1, None, [0, 9], 0.0]
    for dataset in datasets:
        with pytest.raises(ArgumentError, match="expected names or numbers below 5"):
            normalize.normalize(np.zeros((2, 3), np.float32), dataset=dataset)
    wrong_values: list[Any] = [[0.0], np.zeros(14), np.float32(0), np.zeros(3, int)]
    for values in wrong_values:
        with pytest.raises(ArgumentError, match=r"values: .*; expected an array .* of floats, of at most 13 dims"):
            normalize.normalize(values, "action", dataset="kuka")
