"""The provider, by the name that states have for it: this path and this name never change."""

from gpubed.cluster import drivers
from gpubed.testbeds.resources import Provider

__all__ = ["Provider"]

Provider.own = drivers.driver
