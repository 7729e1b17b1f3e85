"""What all pictures share. Needs matplotlib, loaded only here: `pip install tvm_ext[plot]`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from tvm_ext.errors import ArtifactError, InstallError

SUFFIXES = (".svg", ".png")


def require_matplotlib() -> None:
    """Raises InstallError if there is none."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise InstallError(
            f"picture: needs matplotlib, which cannot be imported ({error}); "
            "pip install tvm_ext[plot]"
        ) from error


def save_figure(figure: Any, path: Path, what: str) -> None:
    """Writes a figure whole or not at all; the suffix of `path` decides the format, and equal
    figures give equal files. Raises ArtifactError, which calls the picture `what`."""
    import matplotlib

    # Neither a date nor random names inside.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    try:
        with (
            tempfile.TemporaryDirectory(dir=path.parent, prefix=".tvm_ext-") as folder,
            matplotlib.rc_context({"svg.hashsalt": "tvm_ext"}),
        ):
            draft = Path(folder) / path.name
            figure.savefig(draft, metadata=metadata)
            os.replace(draft, path)
    except OSError as error:
        raise ArtifactError(f"{what} {path}: {error.strerror or error}; nothing written") from error
