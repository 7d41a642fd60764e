"""Fills what depends on the repository that builds: the project's URLs, and links of the README.

``SLUICE_REPOSITORY_URL`` names the repository. Without it the package has no URLs, and links of the README
stay relative: they lead nowhere on a package index.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class RepositoryMetadata(MetadataHookInterface):
    """Fills ``project.urls`` and ``project.readme``."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling, for each wheel and sdist."""
        repository = os.environ.get("SLUICE_REPOSITORY_URL", "").rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if repository:
            text = re.sub(r"\]\((?!https?:|#)", f"]({repository}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
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
