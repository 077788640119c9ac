"""Train with the Trainer of transformers: one mix-in, and the dataset as its train_dataset.

torchrun --nproc-per-node 2 examples/trainers/transformers_trainer.py --root build/demo/oxe
torchrun --nproc-per-node 4 examples/trainers/transformers_trainer.py --root build/demo/oxe --resume
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from policy import Policy, parse  # type: ignore[import-not-found]
from transformers import Trainer, TrainingArguments

from stream.torch import StreamDataset, StreamTrainerMixin


class PolicyTrainer(StreamTrainerMixin, Trainer):
    """Trainer of batches that are ready."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and save a checkpoint every some steps."""
    args = parse(__doc__ or "", arguments, accumulate=1)
    sample = {"action": 4, "normalize": "mean_std", "num_workers": 1}
    dataset = StreamDataset(args.root, args.mixture, batch_size=args.batch_size, **sample)
    training_arguments = TrainingArguments(
        output_dir=str(args.out),
        max_steps=args.steps,
        save_steps=args.every,
        gradient_accumulation_steps=args.accumulate,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
    )
    trainer = PolicyTrainer(Policy(dataset.loader), training_arguments, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=args.resume)


if __name__ == "__main__":
    main()
