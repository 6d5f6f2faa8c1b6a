"""Build hook: compiles the hot path with mypyc when a wheel is built and a C compiler is there.

The modules are ordinary typed Python and run unchanged without it; `POISE_PURE=1` leaves them so. Editable installs are
never compiled, so what developers edit is what runs. See docs/decisions/0004-compiled-hot-path.md.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds compiled modules beside their sources to a standard wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, or say why not and build a pure wheel."""
        if version == "editable" or os.environ.get("POISE_PURE") == "1":
            return
        self._workspace = tempfile.TemporaryDirectory(prefix="poise-compile-")
        source = Path(self._workspace.name) / "src"
        shutil.copytree(Path(self.root) / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        found = {str(path.relative_to(source)) for pattern in self.config["modules"] for path in source.glob(pattern)}
        modules = sorted(found - set(self.config["pure"]))
        settings = source / "mypy.ini"
        settings.write_text("[mypy]\nignore_missing_imports = True\nfollow_untyped_imports = True\n")
        command = [sys.executable, "-m", "mypyc", *modules]
        run = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            reason = "\n".join((run.stdout + run.stderr).strip().splitlines()[-5:])
            self.app.display_warning(f"the hot path was not compiled and will be slower: {reason}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for library in source.rglob("*.so"):
            if "build" not in library.relative_to(source).parts:
                build_data["force_include"][str(library)] = str(library.relative_to(source))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy that was compiled."""
        if hasattr(self, "_workspace"):
            self._workspace.cleanup()
