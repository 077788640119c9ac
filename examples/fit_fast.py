"""Fit a FAST tokenizer of actions on a mixture: chunks by its weights, normalised by quantiles as pi0-FAST does.

Take the mixture, horizon, space and reference of training. The folder is read by
stream.adapters.pi0_fast.FastTokenizer, and by openpi and LeRobot as AutoProcessor.from_pretrained(FOLDER,
trust_remote_code=True), with the code of physical-intelligence/fast:

    python examples/fit_fast.py --root build/demo/frames --mixture droid,viola --space eef_delta --out runs/fast
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from stream import StreamError, Vector, make_loader
from stream.adapters.action_tokens import FastTokens, codes_to_text, quantize
from stream.adapters.chunks import repeat_edges
from stream.base.arguments import whole_number
from stream.base.extras import imports_of

PROCESSOR = "UniversalActionProcessor"


def parse() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="build/demo/frames", help="converted root, also s3://... and others")
    parser.add_argument("--mixture", default="oxe29", help="a mixture, a dataset, or a YAML file")
    parser.add_argument("--out", type=Path, default=Path("runs/fast"), help="folder of the tokenizer")
    parser.add_argument("--chunks", type=whole_number(2), default=100_000, help="to fit on; a tenth more is measured")
    parser.add_argument("--horizon", type=whole_number(1), default=16, help="actions of a chunk, about one second")
    parser.add_argument("--space", help="of action and state, such as eef_delta or joint; by default as declared")
    parser.add_argument("--relative", action="store_true", help="chunks relative to the state, as delta joints")
    parser.add_argument("--keep-units", action="store_true", help="take datasets whose units are unknown")
    parser.add_argument("--vocab", type=whole_number(256), default=1024, help="tokens, 256 of them single bytes")
    parser.add_argument(
        "--scale", type=whole_number(1), default=10, help="of the coefficients; more is finer and longer"
    )
    parser.add_argument("--num-workers", type=whole_number(0), default=0, help="processes that read the index")
    parser.add_argument("--seed", type=int, default=0, help="of the order of chunks")
    return parser.parse_args()


def read_chunks(args: argparse.Namespace) -> np.ndarray:
    """Return normalised chunks, float32 [n, H, D]; the last action of an episode repeats."""
    shared: Any = {"space": args.space, "on_unknown_units": "keep" if args.keep_units else "error"}
    num_chunks = args.chunks + max(args.chunks // 10, 1)
    settings: dict[str, Any] = {"frames": None, "language": None, "num_workers": args.num_workers, "seed": args.seed}
    settings |= {"batch_size": 1024, "num_steps": -(-num_chunks // 1024)}
    settings["action"] = Vector(args.horizon, relative_to="state" if args.relative else None, **shared)
    settings["state"] = Vector(**shared) if args.relative else None
    method = {"method": "openpi_pi05", "per": "mixture", "tails": "repeat", "keys": ["action"]}
    loader = make_loader(args.root, args.mixture, normalize=method, **settings)
    start = time.perf_counter()
    chunks = np.concatenate([repeat_edges(batch["action"], batch["action_mask"])[0] for batch in loader])[:num_chunks]
    print(f"{len(chunks)} chunks of {chunks.shape[1]} x {chunks.shape[2]}, {rate(len(chunks), start)}")
    args.out.mkdir(parents=True, exist_ok=True)
    if loader.normalize:
        loader.normalize.save(args.out / "normalize.json")  # the tokenizer fits these statistics and no others
    return chunks


def fit(chunks: np.ndarray, args: argparse.Namespace) -> None:
    """Fit the BPE and write the folder."""
    with imports_of("tokens", by="examples/fit_fast.py"):
        from tokenizers import ByteLevelBPETokenizer, pre_tokenizers, trainers
    start = time.perf_counter()
    coefficients = quantize(chunks, scale=args.scale)
    least, largest = int(coefficients.min()), int(coefficients.max())
    # All bytes, so that a coefficient that these chunks lack can be encoded too.
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    sizes = {"vocab_size": args.vocab, "min_frequency": 2, "max_token_length": 10_000}
    bpe = ByteLevelBPETokenizer()._tokenizer  # the training of this class takes no alphabet
    trainer = trainers.BpeTrainer(**sizes, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator((codes_to_text(chunk - least) for chunk in coefficients), trainer=trainer)
    bpe.save(str(args.out / "tokenizer.json"))
    names = {"processor_class": PROCESSOR, "tokenizer_class": "PreTrainedTokenizerFast"}
    write(args.out / "tokenizer_config.json", {**names, "clean_up_tokenization_spaces": False})
    code = f"physical-intelligence/fast--processing_action_tokenizer.{PROCESSOR}"
    config = {"scale": args.scale, "min_token": least, "vocab_size": args.vocab, "processor_class": PROCESSOR}
    config |= {"time_horizon": chunks.shape[1], "action_dim": chunks.shape[2], "auto_map": {"AutoProcessor": code}}
    write(args.out / "processor_config.json", config)
    print(f"{bpe.get_vocab_size()} tokens fit coefficients of {least} to {largest}, {rate(len(chunks), start)}")


def measure(chunks: np.ndarray, folder: Path) -> None:
    """Print tokens and errors of chunks that the tokenizer was not fitted to."""
    fast, start = FastTokens(folder), time.perf_counter()
    tokens = [fast.encode(chunk) for chunk in chunks]
    speed, counts = rate(len(chunks), start), [len(ids) for ids in tokens]
    errors = np.abs([fast.decode(ids) - chunk for ids, chunk in zip(tokens, chunks, strict=True)])
    mean = np.mean(counts)
    print(f"{mean:.1f} tokens a chunk, at most {max(counts)}, {chunks[0].size / mean:.1f} values a token, {speed}")
    print(f"error of a round trip {errors.mean():.4f}, at most {errors.max():.4f}; written to {folder}")


def rate(count: int, start: float) -> str:
    """Return how many a second it has been since a time."""
    return f"{count / (time.perf_counter() - start):,.0f} a second"


def write(path: Path, content: object) -> None:
    """Write a file of JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    try:
        args = parse()
        chunks = read_chunks(args)
        fit(chunks[: args.chunks], args)
        measure(chunks[args.chunks :], args.out)
    except (StreamError, OSError, ModuleNotFoundError) as error:
        sys.exit(f"error: {error}")
