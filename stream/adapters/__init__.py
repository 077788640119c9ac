"""Batches of public trainers, one module a trainer: ``from stream.adapters import openpi``.

Each module has a ``loader`` that takes a root, a mixture and the arguments of ``stream.make_loader``, and returns a
``stream.Loader`` whose batches have the trainer's keys, types, image sizes, chunk tails, masks and normalisation. The
adapter is the last transform of the loader, so workers, ranks, states and ``batch_at`` work as with any loader.
Batches are numpy arrays; ``stream.torch.to_device`` makes tensors of them.
"""
