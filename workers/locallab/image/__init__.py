"""The probe guest: a small Linux from the distribution's own packages, all in RAM, that answers within seconds."""

from workers.locallab.image.build import ProbeImage, build, current, default_cache

__all__ = ["ProbeImage", "build", "current", "default_cache"]
