"""Names of a site and of the authority that its users come from."""

from dataclasses import dataclass
from typing import Literal

from . import urn

Face = Literal["emulab", "gcf"]


@dataclass(frozen=True)
class Site:
    """What the site is called; its accounts are another authority's, as at Fed4FIRE.

    Attributes:
        authority: Of the aggregate.
        accounts: Of the slice and member authority.
        images: Names of the disk images, `project:NAME`; the first is the default.
        share: Where the project's shared folder is on every real node; `{project}` in it
            is the project's name.
        face: How it answers: as Emulab, or as GENI's reference aggregate (`gcf`): a list from
            PerformOperationalAction, a number in geni_single_allocation, errors without am_code,
            its codes, machines without hardware types, slices that are not named after their
            project and that everybody may look up, links that nobody grants, nothing that
            changes a slice.
    """

    authority: str = "wall2.ilabt.example"
    accounts: str = "ilabt.example"
    images: tuple[str, ...] = ("emulab-ops:DEBIAN12-64-STD", "emulab-ops:UBUNTU20-64-STD")
    share: str = "/proj/{project}"
    face: Face = "emulab"

    @classmethod
    def gcf(cls):
        """Returns a site as GENI's reference software makes one, with sub-authorities."""
        return cls(authority="geni:gpo:gcf", accounts="geni:gpo:gcf", face="gcf")

    @property
    def is_emulab(self):
        """Whether answers are as Emulab's."""
        return self.face == "emulab"

    @property
    def is_gcf(self):
        """Whether answers are as the reference aggregate's."""
        return self.face == "gcf"

    @property
    def manager(self):
        """URN of the component manager."""
        return urn.make(self.authority, "authority", "cm")

    @property
    def image_urns(self):
        """URNs of the disk images."""
        return [urn.make(self.authority, "image", name) for name in self.images]

    def has_image(self, name):
        """Says whether an image is known, in either spelling, with or without a version."""
        known = urn.parse(name).name.replace("//", ":").split(":")
        return ":".join(known[:2]) in self.images

    def user(self, name):
        """Returns the URN of a user."""
        return urn.make(self.accounts, "user", name)

    def slice(self, project, name):
        """Returns the URN of a slice."""
        authority = self.accounts if self.is_gcf else f"{self.accounts}:{project}"
        return urn.make(authority, "slice", name)

    def project(self, name):
        """Returns the URN of a project."""
        return urn.make(self.accounts, "project", name)
