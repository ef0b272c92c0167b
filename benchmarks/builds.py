"""`python -m benchmarks.builds OUT NAME=FOLDER ...`: several builds of the kernels in one folder, to race them.

A change of a kernel is measured against the kernel as it was in the same process, in turns. Each FOLDER is what
`python -m kernels.compile --out FOLDER` writes; its kernels are called KERNEL@NAME in OUT. Then

    JAX_CLC_CUBINS=OUT python -m benchmarks.sweep --kernel 'KERNEL@*' --candidates 60 --raster 8/1 --peers --out FILE

checks and times all of them beside jnp.dot.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SEPARATOR = "@"


def merge(out: Path, builds: Sequence[tuple[str, Path]], patterns: Sequence[str] = ()) -> list[str]:
    """Writes a manifest and images of the kernels of all builds; returns their names.

    `patterns`: only kernels whose names, without the build's, match one of them. Raises ValueError where no kernel is
    left, for two builds of one name, for different formats, and for a build in `out` itself.
    """
    names = [name for name, _ in builds]
    if len(set(names)) < len(names):
        raise ValueError(f"every build needs a name of its own: {', '.join(names)}")
    if any(folder.resolve() == out.resolve() for _, folder in builds):
        raise ValueError(f"{out} is one of the builds: it would be overwritten")
    out.mkdir(parents=True, exist_ok=True)
    merged: dict[str, Any] = {}
    kernels = []
    for name, folder in builds:
        content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        facts = {key: value for key, value in content.items() if key != "kernels"}
        merged = merged or facts
        if facts["format"] != merged["format"]:
            raise ValueError(f"{folder} has manifest format {facts['format']}, others {merged['format']}")
        for entry in content["kernels"]:
            if patterns and not any(fnmatch.fnmatch(entry["name"], pattern) for pattern in patterns):
                continue
            kernel = f"{entry['name']}{SEPARATOR}{name}"
            files = {key: f"{kernel}{''.join(Path(entry[key]).suffixes)}" for key in ("image", "ptx")}
            for key, file in files.items():
                shutil.copyfile(folder / entry[key], out / file)
            kernels.append({**entry, "name": kernel, **files})
    if not kernels:
        raise ValueError(f"no kernel of {', '.join(str(folder) for _, folder in builds)} matches {patterns}")
    (out / "manifest.json").write_text(json.dumps({**merged, "kernels": kernels}, indent=1) + "\n", encoding="utf-8")
    return [entry["name"] for entry in kernels]


def build(text: str) -> tuple[str, Path]:
    """`NAME=FOLDER` as a pair; a name of letters, digits and underscores, which file names and patterns take."""
    name, _, folder = text.partition("=")
    if not name.replace("_", "").isalnum() or not (Path(folder) / "manifest.json").is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER, where FOLDER has a manifest.json")
    return name, Path(folder)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("builds", type=build, nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--kernel", action="append", default=[], metavar="PATTERN", help="only such; repeatable")
    args = parser.parse_args(argv)
    try:
        names = merge(args.out, args.builds, args.kernel)
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
