"""Policy of a conversion for its input: episodes that are converted, and the list of all that is left out."""

from __future__ import annotations

from collections import Counter

from convert.errors import DamagedEpisode, ShardError
from convert.index.derived import vector_inputs
from convert.jobs import ShardJob
from convert.journal.status import QuarantineEntry
from convert.plan import DatasetPlan
from convert.shard.counts import DAMAGE
from convert.shard.pairs import first_steps
from convert.source.episode import Episode, episode_id
from stream.format.episode_list import OPENPI


class EpisodeCheck:
    """Checks whether an episode is converted, as the plan of its dataset says."""

    def __init__(self, plan: DatasetPlan) -> None:
        self._plan = plan
        vectors = plan.vectors.values()
        vector_paths = {part.path for vector in vectors for part in vector_inputs(vector)}
        self._vector_names = [
            feature.name for feature in plan.features if feature.level == "step" and feature.name in vector_paths
        ]
        self._last_offset = plan.offsets[-1]

    def is_chosen(self, episode: Episode | None, source_file: str, position: int) -> bool:
        """Return whether the list of episodes has an episode; an unreadable one is known by its position only."""
        if self._plan.episode_list is None:
            return True
        episode_names = [episode_id(source_file, position)]
        if episode and all(name in episode.episode for name in OPENPI):
            texts = [episode.episode[name].values for name in OPENPI]
            episode_names.append("--".join(str(text[0]) for text in texts if text is not None and len(text)))
        return self._plan.episode_list.chooses(episode_names)

    def examine(self, episode: Episode | DamagedEpisode) -> tuple[Episode | None, str, str]:
        """Return an episode, None if it is damaged; its status; and the reason if the status is not "ok"."""
        if isinstance(episode, DamagedEpisode):
            return None, episode.reason, str(episode)
        missing_names = [name for name in self._vector_names if episode.steps[name].values is None]
        if missing_names and episode.num_steps:
            return None, "missing_feature", f"no {', '.join(missing_names)}, a part of action or state"
        if first_steps(episode.num_steps, self._last_offset):
            return episode, "ok", ""
        pair_note = "" if self._plan.layout == "frames" else f", a pair takes {self._plan.offset + 1}"
        return episode, "too_short" if episode.num_steps else "empty", f"{episode.num_steps} steps{pair_note}"


class LeftOut:
    """All that is left out of one shard; ``source_file`` is that of the episode that is being converted."""

    def __init__(self, job: ShardJob, *, fails: bool) -> None:
        """Start with nothing; with ``fails``, damage raises an error instead."""
        self._job = job
        self._fails = fails
        self.counts: Counter[str] = Counter()
        self.quarantine: list[QuarantineEntry] = []
        self.source_file = ""

    def add(self, reason: str, position: int, detail: str, *, step: int | None = None) -> None:
        """List a part of an episode; raises ShardError if it is damaged, and damage has to fail."""
        if reason in DAMAGE and self._fails:
            shard = self._job.shard
            source_path = shard.path if self.source_file == shard.name else self.source_file
            context = f"{source_path}: episode {position}{'' if step is None else f' step {step}'}"
            remedy = "run with --on-error quarantine to leave it out"
            raise ShardError(f"{self._job.dataset} {context}: {reason}: {detail}; {remedy}")
        self.counts[reason] += 1
        location = {"shard": self._job.stem, "source_file": self.source_file, "episode": position, "step": step}
        detail = detail.encode("utf-8", "backslashreplace").decode()
        self.quarantine.append(QuarantineEntry.model_validate({**location, "reason": reason, "detail": detail}))
