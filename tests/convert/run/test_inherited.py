"""Converted datasets keep how they are stored, or the command is refused."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

from convert.errors import UsageError
from convert.run.inherited import _codecs


def stored(codec: str = "jpeg", *, gop: int = 8, crf: int = 18, layout: str = "frames") -> Any:
    """A manifest of a dataset with one camera."""
    parameters: dict[str, Any] = {"cameras": ["image"]}
    if codec != "jpeg":
        parameters["codec"] = {"image": codec}
    if codec in ("h264", "av1"):
        parameters |= {"gop": {"image": gop}, "crf": {"image": crf}}
    return SimpleNamespace(layout=layout, parameters=parameters)


def found(*manifests: Any, **given: Any) -> dict[str, Any]:
    return _codecs(
        manifests, argparse.Namespace(**{"codec": None, "gop": None, "crf": None, "image_size": None, **given})
    )


def test_what_is_stored_stays() -> None:
    assert found(stored(), stored()) == {"codec": "jpeg"}
    assert found(stored("h264", gop=5)) == {"codec": "jpeg,image:h264", "gop": 5}
    assert found(stored("h264", gop=5, crf=23)) == {"codec": "jpeg,image:h264", "gop": 5, "crf": 23}
    assert found(stored("h264"), codec="raw") == {}


@pytest.mark.parametrize(
    ("manifests", "given", "told"),
    [
        ((stored("h264"), stored()), {}, "camera image is h264 and jpeg; give --codec"),
        ((stored("h264", gop=5), stored("h264", gop=7)), {}, "their video has --gop 5 and 7; give one"),
        ((stored("h264", crf=20), stored("h264")), {}, "their video has --crf 18 and 20; give one"),
        (
            (stored("h264"),),
            {"crf": 40},
            "--crf 40: chunks of the same codec and --gop pass through as they are, of crf 18",
        ),
        ((stored("h264"),), {"crf": 40, "gop": 8}, "--crf 40: chunks of the same codec"),
    ],
)
def test_datasets_that_differ_or_would_pass_through_are_refused(
    manifests: tuple[Any, ...], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        found(*manifests, **given)


def test_another_gop_lets_a_crf_be_given() -> None:
    assert found(stored("h264"), crf=40, gop=4)["codec"] == "jpeg,image:h264"
