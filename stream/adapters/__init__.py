"""Batches of public trainers, one module for each trainer: ``from stream.adapters import openpi``.

Each module has a ``sample``, which returns the arguments of ``stream.make_loader`` for the batches of the trainer, with
its keys, types, image sizes, chunk tails, masks and normalisation::

    loader = stream.make_loader(root, "droid", batch_size=256, **openpi.sample("pi05_droid"))

The conversion is the last transform, after the normalisation. So workers, ranks, states and ``batch_at`` work as with
any loader. Batches are numpy arrays; ``stream.torch.to_device`` makes tensors of them.
"""
