"""Are an sdist and a wheel complete? `check_dist.py SDIST WHEEL`, in the checkout they were made from.

What they must hold is told by git: each tracked file of the package's folders, and nothing that was built elsewhere.
"""

import subprocess
import sys
import sysconfig
import tarfile
import zipfile

FOLDERS = {"pyedge": "pyedge", "tools": "pyedge/tools", "web": "pyedge/web"}  # in the checkout, in the wheel
MADE = ("PKG-INFO", "setup.cfg", "pyedge.egg-info")  # by setuptools, into the sdist


def report(what: str, found: set[str], wanted: set[str]) -> bool:
    for problem, names in (("is not in it", wanted - found), ("does not belong there", found - wanted)):
        for name in sorted(names):
            print(f"{what}: {name} {problem}")
    return found == wanted


def main(sdist: str, wheel: str) -> bool:
    tracked = set(subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines())
    with tarfile.open(sdist) as archive:
        members = [m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()]
    source = {name for name in members if name.split("/")[0] not in MADE}
    good = report("sdist", source, {name for name in tracked if not name.startswith(".")})

    with zipfile.ZipFile(wheel) as archive:
        package = {name for name in archive.namelist() if ".dist-info/" not in name}
        licensed = any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
    wanted = {f"pyedge/_core{sysconfig.get_config_var('EXT_SUFFIX')}"}
    for name in tracked:
        folder, _, rest = name.partition("/")
        if rest and folder in FOLDERS:
            wanted.add(f"{FOLDERS[folder]}/{rest}")
    good &= report("wheel", package, wanted)
    if not licensed:
        print("wheel: LICENSE is not in it")
    print(f"sdist: {len(source)} files; wheel: {len(package)} files")
    return good and licensed


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))
