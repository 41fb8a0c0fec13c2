"""One arm as judging sees it: certified, or refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from samebits.compare.certify import Certified, certify
from samebits.fingerprint.paths import Artifact, ArtifactError
from samebits.spec.pins import Deviation


@dataclass(frozen=True)
class Arm:
    """problem: why it is no evidence; None exactly where it is certified. deviations: of this arm from what the recipe
    in force asks for."""

    name: str
    folder: Path
    certified: Certified | None
    problem: str | None = None
    deviations: tuple[Deviation, ...] = ()

    @property
    def fingerprint(self) -> str:
        return self.certified.manifest.run_fingerprint if self.certified else ""


def load(folder: Path, name: str | None = None) -> Arm:
    """Never raises for a damaged or missing artifact. name: of an arm that may not be there."""
    try:
        certified = certify(Artifact(folder))
    except (ArtifactError, OSError) as error:
        return Arm(name or folder.name, folder, None, problem=str(error))
    return Arm(certified.manifest.plan.arm, folder, certified)
