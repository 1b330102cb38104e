"""Compile `transforms/_image_ops.c` when the package is built or installed.

Without a C compiler, the package works, but makes views several times slower.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

SOURCE = Path("src/manyviews/transforms/_image_ops.c")
# Sums may be reordered, for SIMD. -ffast-math would change how the whole process treats small numbers.
FLAGS = "-O3 -fPIC -shared -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math -freciprocal-math"


def list_compilers() -> list[list[str]]:
    """List the commands to try: all words of $CC, or else the compiler of Python and `cc`."""
    if chosen := os.environ.get("CC"):
        return [shlex.split(chosen)]
    return [*(shlex.split(name)[:1] for name in [sysconfig.get_config_var("CC")] if name), ["cc"]]


def get_platform() -> str:
    """Return this platform as installers name it, which on a Mac differs from sysconfig's name."""
    platforms = (tag.platform for tag in sys_tags())
    return next(name for name in platforms if "manylinux" not in name and "musllinux" not in name)


class CompileImageOps(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile for wheels and editable installs."""
        source = Path(self.root) / SOURCE
        library = source.with_suffix(".so")
        if sys.platform == "win32":
            return
        partial = library.with_suffix(f".{os.getpid()}")
        options = [*FLAGS.split(), "-o", str(partial), str(source), "-lm", "-lpthread"]
        failure = ""
        for compiler in list_compilers():
            try:
                done = subprocess.run([*compiler, *options], check=False, capture_output=True, text=True)
                failure = (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
            except OSError as error:
                failure = str(error)
            if not failure:
                break
        if failure:
            partial.unlink(missing_ok=True)
            library.unlink(missing_ok=True)
            self.app.display_warning(f"views will be made several times slower: cannot compile {SOURCE}: {failure}")
            return
        partial.replace(library)  # at once, because another process may load it now
        build_data["artifacts"].append(f"/{SOURCE.with_suffix('.so').as_posix()}")
        if version != "editable":
            # The library does not depend on the version of Python.
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{get_platform()}"
