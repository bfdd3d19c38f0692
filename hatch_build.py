"""Builds the compiled parts (``SOURCES``) into a wheel where there is a compiler.

Without one the wheel is of Python alone, and works. The environment variable ``KPSPLIT_COMPILED`` chooses: 0
does not try, 1 makes a failure an error.
"""

from __future__ import annotations

import os
import shutil
from contextlib import chdir
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from zlib import crc32

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension

SOURCES = [Path("kpsplit/producer/_fast.c"), Path("kpsplit/kafka/_messages.c")]


class CompiledPart(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into the wheel, or beside the source for an editable installation."""
        wanted = os.environ.get("KPSPLIT_COMPILED", "")
        if self.target_name != "wheel" or wanted == "0":
            return
        self._scratch = mkdtemp()
        try:
            for folder, built in compiled(Path(self.root), self._scratch):
                if version == "editable":
                    new = shutil.copy(built, Path(self.root) / folder / f"{built.name}.new")
                    os.replace(new, Path(self.root) / folder / built.name)  # a process may run the one before
                else:
                    build_data["force_include"][str(built)] = str(folder / built.name)
                    build_data["pure_python"], build_data["infer_tag"] = False, True
        except Exception as error:  # whatever it is: the package works without
            if wanted == "1":
                raise
            self.app.display_warning(
                f"producing and reading are in Python: they cannot be compiled here ({error})"
            )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Tidy up."""
        shutil.rmtree(getattr(self, "_scratch", ""), ignore_errors=True)


def compiled(root: Path, scratch: str) -> list[tuple[Path, Path]]:
    """Compile, and return each file with its folder; raises what the compiler or setuptools does."""
    with chdir(root):
        parts = [
            Extension(
                ".".join(source.with_suffix("").parts),
                [str(source)],
                define_macros=[("SOURCE", f"{crc32(source.read_bytes())}u")],
            )
            for source in SOURCES
        ]
        command: Any = Distribution({"name": "kpsplit", "ext_modules": parts}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = f"{scratch}/lib", f"{scratch}/temp"
        command.ensure_finalized()
        command.run()
        found = []
        for source in SOURCES:
            (built,) = (Path(scratch) / "lib" / source.parent).glob(f"{source.stem}.*")
            found.append((source.parent, built))
        return found
