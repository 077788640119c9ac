"""Token sequences of pi0-FAST: prompt, state and action tokens, as openpi's ``FASTTokenizer`` makes them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stream.adapters.action_tokens import FastTokens, MalformedTokens
from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.base.extras import imports_of

_log = logging.getLogger("stream")

SPECIAL_TOKENS = 128
"""Last tokens of PaliGemma, which action tokens leave out."""
STATE_BINS = np.linspace(-1, 1, 257)[:-1]
"""Lower edges of the 256 bins of a normalised state; values below -1 are in bin -1."""
ACTION_MARK, END_MARK = "Action: ", "|"


class FastTokenizer:
    """Tokenizer of ``openpi.sample("pi0_fast", tokenizer=...)``, and the way back on a robot.

    Args:
        paligemma: PaliGemma's SentencePiece model, ``paligemma_tokenizer.model``.
        fast: Folder of a FAST tokenizer, of ``examples/fit_fast.py`` or ``physical-intelligence/fast``.
        max_len: Tokens of a sequence, L, as ``max_token_len`` of ``Pi0FASTConfig``. Longer sequences are cut, which a
            warning reports once in each process.

    Raises:
        ArgumentError: A file is not what it should be.
        ModuleNotFoundError: The extra ``tokens`` is not installed.
    """

    def __init__(self, paligemma: str | Path, fast: str | Path, *, max_len: int = 250) -> None:
        with imports_of("tokens", by="stream.adapters.pi0_fast"):
            from sentencepiece import SentencePieceProcessor
        self.max_len = check_whole_number("max_len", max_len, least=1)
        self.fast = FastTokens(fast)
        try:
            self._text: Any = SentencePieceProcessor(model_proto=Path(paligemma).read_bytes())
        except OSError as error:
            raise ArgumentError(
                f"{paligemma}: {error.strerror}; expected PaliGemma's SentencePiece model, "
                "gs://big_vision/paligemma_tokenizer.model"
            ) from None
        except RuntimeError:
            raise ArgumentError(f"{paligemma}: not a SentencePiece model, such as paligemma_tokenizer.model") from None
        self._action_mark: list[int] = self._text.encode(ACTION_MARK)
        self._end_mark: list[int] = self._text.encode(END_MARK)
        self._largest_id: int = self._text.vocab_size() - 1 - SPECIAL_TOKENS
        # Otherwise an action token could be the mark that ends the chunk.
        num_free = self._largest_id - max(*self._action_mark, *self._end_mark)
        if num_free < self.fast.vocab_size:
            raise ArgumentError(
                f"{paligemma}: room for {max(num_free, 0)} action tokens, and {fast} has {self.fast.vocab_size}; "
                "expected PaliGemma's model, or a FAST tokenizer with a smaller vocabulary"
            )

    def tokenize(
        self, prompt: str, state: np.ndarray, actions: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the sequence of a sample.

        Args:
            prompt: Instruction.
            state: Normalised state without padding, float [D].
            actions: Normalised chunk without padding, float [H, D]; None for a policy that is to predict it.

        Returns:
            Tokens int32 [L], 0 after the end; and bool [L], int32 [L], bool [L]: the tokens of the sequence, those that
            attend only to earlier ones, and those of the loss.
        """
        task = prompt.lower().strip().replace("_", " ")
        bins = " ".join(map(str, np.digitize(state, STATE_BINS) - 1))
        prefix: list[int] = self._text.encode(f"Task: {task}, State: {bins};\n", add_bos=True)
        suffix: list[int] = []
        if actions is not None:
            ids = [self._largest_id - token for token in self.fast.encode(actions)]
            suffix = [*self._action_mark, *ids, *self._end_mark, self._text.eos_id()]
        sequence = [*prefix, *suffix]
        if len(sequence) > self.max_len:
            _warn_of_cuts(self.max_len)
        tokens = np.zeros(self.max_len, np.int32)
        tokens[: len(sequence)] = sequence[: self.max_len]
        positions = np.arange(self.max_len)
        is_token = positions < len(sequence)
        is_suffix = is_token & (positions >= len(prefix))
        return tokens, is_token, is_suffix.astype(np.int32), is_suffix

    def extract_actions(self, tokens: np.ndarray | Sequence[int], action_horizon: int, action_dim: int) -> np.ndarray:
        """Return the normalised chunk that a policy predicted, float32 [H, D].

        openpi decodes the tokens to text and encodes the text again; here the tokens themselves count.

        Args:
            tokens: Predicted tokens, or a complete sequence, int [n].
            action_horizon, action_dim: H and D, those of training.

        Raises:
            MalformedTokens: The tokens are not those of a chunk, for which openpi returns zeros.
        """
        predicted = [int(token) for token in tokens]
        start = _find(self._action_mark, predicted, 0)
        end = -1 if start < 0 else _find(self._end_mark, predicted, start + len(self._action_mark))
        if end < 0:
            mark = ACTION_MARK if start < 0 else END_MARK
            raise MalformedTokens(f"no {mark!r} in {len(predicted)} tokens; the policy predicted no complete chunk")
        ids = predicted[start + len(self._action_mark) : end]
        return self.fast.decode([self._largest_id - number for number in ids], steps=action_horizon, dims=action_dim)


def _find(part: list[int], tokens: list[int], start: int) -> int:
    """Return the first position of some tokens in others, from a position on, or -1."""
    width = len(part)
    return next((at for at in range(start, len(tokens) - width + 1) if tokens[at : at + width] == part), -1)


@functools.cache
def _warn_of_cuts(max_len: int) -> None:
    """Warn once, however many sequences are cut."""
    _log.warning(
        "pi0-FAST: a sequence has more than max_len=%d tokens and is cut, so that its chunk cannot be decoded; raise "
        "max_len and the model's max_token_len",
        max_len,
    )
