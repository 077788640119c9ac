from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.registry.registry import load_registry
from stream.base.errors import ArgumentError
from stream.format.catalog import Catalog
from stream.format.mixture_file import SizePower
from stream.loader.open_mixture import open_mixture
from stream.loader.sample_spec import SampleSpec
from stream.order.mixture import Member, packaged_mixtures, resolve_mixture

PACKAGED = packaged_mixtures()


def members_of(mixture: Any, split: str, catalog: Catalog) -> list[Member]:
    return list(resolve_mixture(mixture, split, catalog).members)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Return a root with two datasets; their manifests are not read."""
    for name in ("bridge", "kuka"):
        (tmp_path / name / "0.1.0").mkdir(parents=True)
        (tmp_path / name / "0.1.0" / "dataset.json").touch()
    return Catalog(tmp_path)


def write(folder: Path, text: str, *, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("role", ["train", "val"])
@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_mixture_is_read_as_convert_reads_it(catalog: Catalog, name: str, role: str) -> None:
    assert sorted(load_registry().mixtures) == PACKAGED
    file = load_registry().mixtures[name]
    expected = {key: entry for key, entry in file.members.items() if entry.weight != 0}
    members = members_of(name, role, catalog)
    assert [member.dataset for member in members] == list(expected)
    for mine, entry in zip(members, expected.values(), strict=True):
        assert (mine.split, mine.weights, mine.offset) == (entry.splits[role], (entry.weight,), entry.offset)


def test_names_of_datasets_are_a_mixture_of_equal_weights(catalog: Catalog) -> None:
    assert members_of("bridge", "train[:5]", catalog) == [Member("bridge", "train[:5]", (1.0,))]
    members = [Member("bridge", "train[:5]", (1.0,)), Member("kuka:0.1.0", "train[:5]", (1.0,))]
    assert members_of("bridge, kuka:0.1.0", "train[:5]", catalog) == members


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("bridge,brigde", "no dataset 'brigde'; did you mean 'bridge'"),
        ("bridge,", "no dataset ''; names there: bridge, kuka$"),
        ("bridge,kuka,bridge", "names bridge twice; give a mapping of names to weights"),
        ("bridge,oxe29", "'oxe29' is a mixture; only names of datasets can be listed"),
    ],
)
def test_a_list_of_names_with_a_fault_is_refused(catalog: Catalog, names: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        resolve_mixture(names, "train", catalog)


def test_a_dataset_of_two_versions_is_refused(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match="dataset bridge is in the mixture more than once; give it one weight"):
        open_mixture(oxe_root, "bridge,bridge:0.1.0", split="train", spec=SampleSpec())


@pytest.mark.parametrize("mixture", ["oxe29", "bridge:0.1.0", "rt1", "bridge,kuka", {"bridge": 1}])
@pytest.mark.parametrize("levels", [0, 1, 2])
def test_a_root_of_tfds_datasets_says_that_it_is_not_converted(tmp_path: Path, mixture: Any, levels: int) -> None:
    source = tmp_path / "tfds"
    for name in ("bridge", "kuka"):
        (source / name / "0.1.0").mkdir(parents=True)
        (source / name / "0.1.0" / "dataset_info.json").write_text("{}")
    root = [source, source / "bridge", source / "bridge" / "0.1.0"][levels]
    message = rf"0\.1\.0: is a TFDS dataset that is not converted; convert it with .*convert\.run .*--source {source} "
    with pytest.raises(ArgumentError, match=message):
        open_mixture(root, mixture, split="train", spec=SampleSpec())


def test_a_tfds_dataset_among_converted_ones_is_named(tmp_path: Path, oxe_root: Path) -> None:
    (tmp_path / "kuka").symlink_to(oxe_root / "kuka")
    (tmp_path / "bridge" / "0.1.0").mkdir(parents=True)
    (tmp_path / "bridge" / "0.1.0" / "dataset_info.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"bridge/0\.1\.0: is a TFDS dataset that is not converted"):
        open_mixture(tmp_path, "bridge,kuka", split="train", spec=SampleSpec())
    with pytest.raises(ArgumentError, match="no dataset 'rt1'"):
        open_mixture(tmp_path, "kuka,rt1", split="train", spec=SampleSpec())


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (2, 2),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        ("size", 400),
        ({"size_power": 0.5}, 20),
        ({"size_power": 0.5, "factor": 1.5}, 30),
        (SizePower(size_power=0), 1),
    ],
)
def test_a_weight_is_a_number_or_rests_on_the_size(catalog: Catalog, weight: Any, expected: float) -> None:
    (member,) = members_of({"bridge": weight}, "train", catalog)
    assert member.relative_weights(400) == (expected,)


def test_weights_by_size_mix_by_size(oxe_root: Path) -> None:
    weights = {"bridge": "size", "rt1": {"size_power": 1, "factor": 2}, "kuka": 20}
    data = open_mixture(oxe_root, weights, split="train", spec=SampleSpec())
    assert data.sizes == {"bridge": 20, "rt1": 28, "kuka": 20}
    assert data.relative_weights == [(20,), (56,), (20,)]
    assert data.weights_at(0) == pytest.approx({"bridge": 20 / 96, "rt1": 56 / 96, "kuka": 20 / 96}, abs=1e-6)


@pytest.mark.parametrize(
    "weight", [-1, -1e-9, float("nan"), float("inf"), "2", "", "Size", b"1", True, False, None, [1], 10**400, 1e300]
)
def test_a_weight_of_another_kind_is_refused(catalog: Catalog, weight: Any) -> None:
    message = r"mixture .*: members\.kuka\.weight: found .*expected a finite number >= 0"
    with pytest.raises(ArgumentError, match=message):
        resolve_mixture({"bridge": 1, "kuka": weight}, "train", catalog)


def test_a_size_power_with_a_fault_and_an_unknown_key_are_refused(catalog: Catalog) -> None:
    message = r"members\.bridge\.weight: found .*size_power.*; expected a finite number .*size_power: p, factor: f"
    for fault in ({"faktor": 2}, {"size_power": -1}, {"size_power": np.nan}, {"factor": 0}, {"factor": np.inf}):
        with pytest.raises(ArgumentError, match=message):
            resolve_mixture({"bridge": {"size_power": 1, **fault}}, "train", catalog)
    with pytest.raises(ArgumentError, match=r"members\.bridge: unknown key 'wieght'; did you mean 'weight'"):
        resolve_mixture({"bridge": {"wieght": 1}}, "train", catalog)


def test_weight_zero_leaves_out_even_what_is_not_there(oxe_root: Path) -> None:
    data = open_mixture(oxe_root, {"bridge": 1, "nowhere": 0, "kuka": 0.0}, split="train", spec=SampleSpec())
    assert data.names == ("bridge",)


def test_a_mixture_of_nothing_is_refused(catalog: Catalog) -> None:
    with pytest.raises(ArgumentError, match="no member has a weight above 0"):
        resolve_mixture({"bridge": 0, "kuka": 0.0}, "train", catalog)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("oxe92", "no mixture or dataset 'oxe92'; did you mean .*'oxe29'"),
        ("brigde", "no mixture or dataset 'brigde'; did you mean .*'bridge'"),
        ("", "no mixture or dataset ''; names there: bridge"),
    ],
)
def test_an_unknown_name_lists_the_closest(catalog: Catalog, name: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        resolve_mixture(name, "train", catalog)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_root_that_is_one_of_its_datasets_is_said(oxe_root: Path, levels: int) -> None:
    (version,) = (oxe_root / "bridge").iterdir()
    inside = Catalog([version.parent, version][levels - 1])
    message = f"{inside.root}: is the folder of one dataset; give the root that holds all of them"
    with pytest.raises(ArgumentError, match=message):
        resolve_mixture("bridge", "train", inside)


def test_a_root_without_a_conversion_says_so_in_place_of_the_names_of_its_folders(tmp_path: Path) -> None:
    (tmp_path / "pictures" / "day").mkdir(parents=True)
    above = Catalog(tmp_path)
    message = f"{above.root}: holds no complete conversion; expected <dataset>/<version>/dataset.json below the root"
    with pytest.raises(ArgumentError, match=message):
        resolve_mixture("bridge", "train", above)


@pytest.mark.parametrize("mixture", [None, 5, ["bridge", 5], [(3, "bridge")], b"bridge"])
def test_a_mixture_of_another_type_is_refused(catalog: Catalog, mixture: Any) -> None:
    message = r"mixture.*expected a name, a list of dataset names, a mapping .*, a YAML file, or a schedule"
    with pytest.raises(ArgumentError, match=message):
        resolve_mixture(mixture, "train", catalog)


@pytest.mark.parametrize("mixture", ["oxe29", "bridge", {"bridge": 1}])
def test_a_split_of_another_type_is_refused(catalog: Catalog, mixture: Any) -> None:
    splits: list[Any] = [None, 5, ["train"]]
    for split in splits:
        with pytest.raises(ArgumentError, match=r"split=.*expected a text"):
            resolve_mixture(mixture, split, catalog)


@pytest.mark.parametrize("role", ["test", "train[:50%]", ""])
def test_an_unknown_role_is_refused_with_the_roles_there_are(catalog: Catalog, role: str) -> None:
    with pytest.raises(ArgumentError, match=r"oxe29: members\.\w+: split=.* is none of its roles \(train, val\)"):
        resolve_mixture("oxe29", role, catalog)


def test_a_yaml_file_gives_members_weights_roles_and_offsets(catalog: Catalog, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        members:
          bridge: {weight: 2, offset: 5}
          kuka: {weight: size, splits: {train: 'train[5:]', debug: 'train[:5]'}}
          rt1: {weight: 0}
          droid: {weight: {size_power: 0.5}, offset: 0.6s}
        """.replace("\n        ", "\n"),
    )
    train = [
        Member("bridge", "train[:90%]", (2.0,), 5),
        Member("kuka", "train[5:]", ("size",)),
        Member("droid", "train[:90%]", (SizePower(size_power=0.5),), "0.6s"),
    ]
    assert members_of(path, "train", catalog) == train
    assert members_of(str(path), "train", catalog) == train
    with pytest.raises(ArgumentError, match=r"members\.bridge: split='debug' is none of its roles"):
        resolve_mixture(path, "debug", catalog)


def test_a_weight_alone_is_a_member_of_a_yaml_file(catalog: Catalog, tmp_path: Path) -> None:
    path = write(tmp_path, "description: Two.\nmembers: {bridge: 1, kuka: size, rt1: 0}\n")
    members = [Member("bridge", "train[90%:]", (1.0,)), Member("kuka", "train[90%:]", ("size",))]
    assert members_of(path, "val", catalog) == members
    assert [selected.member.weight for selected in load_registry().resolve(str(path))][:2] == [1, "size"]


def test_a_file_of_one_mixture_among_datasets_is_that_mixture_and_of_two_is_refused(
    catalog: Catalog, tmp_path: Path
) -> None:
    text = "datasets: {}\nmixtures:\n  mine: {members: {bridge: {weight: 1}}}\n"
    assert [member.dataset for member in members_of(write(tmp_path, text), "train", catalog)] == ["bridge"]
    with pytest.raises(ArgumentError, match=r"mine\.yaml: has 2 mixtures, expected one"):
        resolve_mixture(write(tmp_path, f"{text}  b: {{members: {{kuka: {{weight: 1}}}}}}\n"), "train", catalog)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Input should be a valid dictionary or instance of MixtureFile"),
        ("members: [bridge]", r"members: Input should be a valid dictionary"),
        ("members: {}", r"members: Dictionary should have at least 1 item"),
        ("members: {bridge: [1]}", r"members\.bridge\.weight: found \[1\]"),
        ("members: {bridge: two}", r"members\.bridge\.weight: found 'two'; expected a finite number"),
        ("members: {bridge: {weight: .nan}}", r"members\.bridge\.weight: found '\.nan'"),
        ("members: {bridge: {weight: }}", r"members\.bridge\.weight: found None"),
        ("members: {bridge: {weight: 2024-01-01}}", r"members\.bridge\.weight: found '2024-01-01'"),
        ("members: {bridge: {weight: 1, wieght: 2}}", r"members\.bridge: unknown key 'wieght'"),
        ("members: {bridge: {weight: 1, splits: train}}", r"members\.bridge\.splits"),
        ("members: {bridge: {weight: 1, splits: {train: 'train['}}}", r"members\.bridge\.splits\.train"),
        ("members: {bridge: {weight: 1}", "not a YAML file"),
        ("a: 1\n--- \nb: 2", "not a YAML file"),
        ("!!python/object/apply:os.system [true]", "valid dictionary|could not determine a constructor"),
        ("members: !!bool maybe", "members: Input should be a valid dictionary"),
        ("members: {bridge: 1, bridge: 2}", "not a YAML file .the mapping of line 1 has the key 'bridge' twice"),
        ("members: \x00", "not a YAML file"),
        ("[" * 3_000, "not a YAML file"),
        (f"members: {{bridge: {{weight: {'9' * 5000}}}}}", r"members\.bridge\.weight"),
        (f"members: {{bridge: {{weight: 0x{'f' * 500}}}}}", r"members\.bridge\.weight"),
    ],
)
def test_a_yaml_file_with_a_fault_is_refused(catalog: Catalog, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=rf"mine\.yaml.*{message}"):
        resolve_mixture(write(tmp_path, text), "train", catalog)


@pytest.mark.parametrize("location", ["weight", "splits", "merge"])
def test_a_yaml_bomb_is_refused_unexpanded(catalog: Catalog, tmp_path: Path, location: str) -> None:
    levels = range(1, 12)
    if location == "merge":
        lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in levels]
        member = "{<<: *a11}"
    else:
        lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in levels]
        member = "{weight: *a11}" if location == "weight" else "{weight: 1, splits: *a11}"
    path = write(tmp_path, "\n".join([*lines, f"members: {{bridge: {member}}}"]))
    # Expanded, it has 9^11 nodes: neither time nor memory would do.
    with pytest.raises(ArgumentError, match=r"aliases \(\*\) are not allowed"):
        resolve_mixture(path, "train", catalog)


def test_a_file_that_cannot_be_read_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\xfa")
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(10**12)
    for name, message in (
        ("nowhere.yaml", "cannot be read .No such file"),
        ("folder.yaml", "cannot be read .Is a directory"),
        ("binary.yml", "not a YAML file"),
        ("large.yaml", r"not a YAML file \(larger than 1,000,000 bytes"),
    ):
        with pytest.raises(ArgumentError, match=f"{name}: {message}"):
            resolve_mixture(str(tmp_path / name), "train", catalog)
