"""The project's URLs. They are those of the repository that builds a release, and of no other.

``SLUICE_REPOSITORY_URL`` names it; without it the package has none.
"""

import os

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    """Fills ``project.urls``."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling, for each wheel and sdist."""
        repository = os.environ.get("SLUICE_REPOSITORY_URL", "").rstrip("/")
        metadata["urls"] = (
            {
                "Source": repository,
                "Documentation": f"{repository}/tree/main/docs",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
            if repository
            else {}
        )
