"""FAST's action tokens: chunks as DCT coefficients, which a byte-level BPE compresses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stream.base.errors import ArgumentError, StreamError
from stream.base.extras import imports_of

LARGEST_COEFFICIENT = 25_000
"""Largest magnitude of a coefficient. Twice as much is below the code points of surrogates, which UTF-8 cannot hold."""


class MalformedTokens(StreamError, ValueError):
    """Tokens that are not those of a chunk, as a policy may predict them; the message says what they are instead."""


class FastTokens:
    """A FAST tokenizer of a folder, as ``examples/fit_fast.py`` or FAST's own processor writes it.

    Chunks are normalised, without padding: float [H, D], about -1 to 1. H and D of decoding must be those of encoding.

    Args:
        folder: Folder with ``tokenizer.json`` and ``processor_config.json``. A file in it is also accepted.

    Attributes:
        scale: Factor of the coefficients before they are rounded.
        min_token: Least coefficient; lower ones are clipped.
        steps, dims: H and D of the fit, or None if the folder does not hold them.
        vocab_size: Count of tokens.

    Raises:
        ArgumentError: The folder is not one of a FAST tokenizer.
        ModuleNotFoundError: The extra ``tokens`` is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        with imports_of("tokens", by="stream.adapters.action_tokens"):
            import scipy.fft  # noqa: F401
            from tokenizers import Tokenizer
        folder = Path(folder)
        folder = folder.parent if folder.is_file() else folder
        config = _read_config(folder / "processor_config.json")
        self.scale: float = config.get("scale", 10)
        self.min_token: int = config.get("min_token", 0)
        self.steps: int | None = config.get("time_horizon")
        self.dims: int | None = config.get("action_dim")
        # Since version 5, transformers saves the tokenizer of a processor in a folder of its name.
        paths = [folder / "tokenizer.json", folder / "bpe_tokenizer" / "tokenizer.json"]
        path = next(filter(Path.is_file, paths), paths[0])
        try:
            self._bpe: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise ArgumentError(f"{path}: not a tokenizer of the library tokenizers ({error!s:.100})") from None
        self.vocab_size: int = self._bpe.get_vocab_size()

    def encode(self, chunk: np.ndarray) -> list[int]:
        """Return the tokens of a chunk, float [H, D].

        Raises:
            ArgumentError: The chunk is not normalised: values are not finite, or a coefficient is too large.
        """
        return list(self._bpe.encode(codes_to_text(quantize(chunk, scale=self.scale) - self.min_token)).ids)

    def decode(self, tokens: Sequence[int], *, steps: int | None = None, dims: int | None = None) -> np.ndarray:
        """Return the chunk of tokens, float32 [H, D].

        Args:
            tokens: Tokens, as ``encode`` returns them.
            steps, dims: H and D of the chunk; by default those of the folder.

        Raises:
            ArgumentError: Neither the call nor the folder has H and D.
            MalformedTokens: The tokens are not those of H x D coefficients.
        """
        steps, dims = steps or self.steps, dims or self.dims
        if not steps or not dims:
            raise ArgumentError(f"steps={steps}, dims={dims}; expected those of the encoded chunk: its folder has none")
        numbers = [int(token) for token in tokens]
        if outside := [number for number in numbers if not 0 <= number < self.vocab_size]:
            raise MalformedTokens(f"token {outside[0]} of {len(numbers)}; expected 0 to {self.vocab_size - 1}")
        text = self._bpe.decode(numbers, skip_special_tokens=False)
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        # The decoder writes U+FFFD for bytes that are no character; FAST's own code takes it for a coefficient.
        num_invalid = int((codes > 2 * LARGEST_COEFFICIENT).sum())
        if len(codes) != steps * dims or num_invalid:
            invalid = f", of which {num_invalid} are invalid" if num_invalid else ""
            raise MalformedTokens(f"{len(codes)} coefficients{invalid}; expected {steps} steps x {dims} dimensions")
        from scipy.fft import idct

        coefficients = codes.astype(np.int64).reshape(steps, dims) + self.min_token
        return np.asarray(idct(coefficients / self.scale, axis=0, norm="ortho"), np.float32)


def quantize(chunks: np.ndarray, *, scale: float) -> np.ndarray:
    """Return the scaled DCT coefficients over time of chunks [..., H, D], rounded half to even, int64 [..., H, D].

    Raises:
        ArgumentError: The chunks are not normalised: values are not finite, or a coefficient is too large.

    >>> quantize(np.array([[-1, 0.5], [-0.5, 0.5], [0.25, 0.5], [1, 0.5]]), scale=10).ravel().tolist()
    [-1, 10, -15, 0, 1, 0, -1, 0]
    """
    from scipy.fft import dct

    coefficients = np.around(dct(chunks, axis=-2, norm="ortho") * scale)
    if not (np.abs(coefficients) <= LARGEST_COEFFICIENT).all():
        raise ArgumentError(
            f"a chunk has values from {np.min(chunks):.4g} to {np.max(chunks):.4g}; FAST takes normalised values, "
            "about -1 to 1: take the statistics of this representation, and leave out dimensions that hardly vary"
        )
    return np.asarray(coefficients, np.int64)


def codes_to_text(codes: np.ndarray) -> str:
    """Return coefficients above the least one, of all dimensions of a frequency after the other, as a character each.

    Negative codes, below the least coefficient of the fit, become 0.

    >>> codes_to_text(np.array([[65, -3], [66, 67]]))
    'A\\x00BC'
    """
    return np.maximum(codes, 0).astype("<u4").tobytes().decode("utf-32-le")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ArgumentError(
            f"{path}: no such file; expected a folder of a FAST tokenizer, of examples/fit_fast.py or of "
            "`hf download physical-intelligence/fast --local-dir DIR`"
        ) from None
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path}: cannot be read as JSON ({error!s:.100})") from None
    kinds: dict[str, Any] = {
        "scale": (int, float),
        "min_token": int,
        "time_horizon": (int, type(None)),
        "action_dim": (int, type(None)),
    }
    for name, kind in kinds.items():
        if not isinstance(config, dict) or (name in config and not isinstance(config[name], kind)):
            value = config.get(name) if isinstance(config, dict) else config
            raise ArgumentError(f"{path}: {name} is {value!r:.100}; expected the configuration of a FAST processor")
    return config
