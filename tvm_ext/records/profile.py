"""`Profile`: what every kernel takes while the whole model runs. Kept in memory only."""

from __future__ import annotations

import msgspec

from tvm_ext.records.manifest import Manifest


class Profile(msgspec.Struct, frozen=True):
    """Times of a model's kernels, in place; medians over `runs` runs.

    Reading the clock around a call costs 1 to 3 us, which is in every figure but `latency_us`.
    """

    runs: int
    measured_us: dict[str, float]
    """Of one call, by the kernel's name."""
    calls: dict[str, int]
    """In one run, by the kernel's name."""
    other_us: float
    """A run's calls that are no kernels: memory and shapes."""
    clocked_us: float
    """A whole run with the clock read around every call."""
    latency_us: float
    """A whole run without."""
    peak_gflops: float = 0.0
    """Of all cores, read beside every run; 0 where it was not."""

    @property
    def kernels_us(self) -> float:
        """All kernels of one run."""
        return sum(us * self.calls[name] for name, us in self.measured_us.items())


def with_profile(manifest: Manifest, profile: Profile) -> Manifest:
    """The manifest with measured times in place of those it came with."""
    groups = tuple(
        msgspec.structs.replace(group, measured_us=profile.measured_us.get(group.name, 0.0))
        for group in manifest.groups
    )
    return msgspec.structs.replace(manifest, groups=groups)
