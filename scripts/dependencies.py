"""Lists the program's crates as cargo resolves them for Linux: how each is used, its licence and its checksum.

scripts/licenses and scripts/sbom import this module. It must not fetch or check anything, and it needs only Python's
standard library.
"""

import hashlib
import json
import pathlib
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"
# Embedded in the binary beside the crates: the font of the dashboard.
VENDORED = [
    {
        "name": "@fontsource-variable/inter",
        "version": "5.3.0",
        "license": "OFL-1.1",
        "repository": "https://github.com/rsms/inter",
        "file": "dashboard/static/vendor/inter-5.3.0.woff2",
        "text": "dashboard/static/vendor/inter-LICENSE",
    }
]


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(run.stdout)


def checksums():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}


def reached(nodes, start, kinds, first_kinds=None):
    """Returns the ids of the packages that `start` needs, directly or indirectly, through edges of these kinds."""
    seen, waiting = set(), [(start, first_kinds or kinds)]
    while waiting:
        identity, allowed = waiting.pop()
        for edge in nodes[identity]["deps"]:
            used = any(kind["kind"] in allowed for kind in edge["dep_kinds"])
            if used and edge["pkg"] not in seen:
                seen.add(edge["pkg"])
                waiting.append((edge["pkg"], kinds))
    return seen


def read():
    """Returns (root package, packages by id, edges by id). `use` in a package is `program`, `build` or `test`."""
    resolved = metadata()
    nodes = {node["id"]: node for node in resolved["resolve"]["nodes"]}
    root = resolved["resolve"]["root"]
    # A procedural macro runs in the compiler: crates that only a macro needs are not in the program.
    macros = {
        package["id"] for package in resolved["packages"] if any("proc-macro" in target["kind"] for target in package["targets"])
    }
    linked = {identity: dict(node) for identity, node in nodes.items()}
    for identity in macros:
        linked[identity]["deps"] = []
    program = reached(linked, root, {None}) - macros
    build = reached(nodes, root, {None, "build"})
    sums = checksums()
    # The crates of this repository are parts of the product, not dependencies.
    own = set(resolved["workspace_members"]) - {root}
    packages = {}
    for package in resolved["packages"]:
        if package["id"] in own:
            continue
        use = "program" if package["id"] in program else "build" if package["id"] in build else "test"
        package["use"] = use
        package["checksum"] = sums.get((package["name"], package["version"]))
        packages[package["id"]] = package
    edges = {identity: sorted(without(own, nodes, node)) for identity, node in nodes.items() if identity not in own}
    return packages.pop(root), packages, edges


def without(own, nodes, node):
    """Returns the ids of the packages that `node` depends on. Replaces our own crates by what those depend on."""
    found = set()
    for edge in node["deps"]:
        found |= without(own, nodes, nodes[edge["pkg"]]) if edge["pkg"] in own else {edge["pkg"]}
    return found


def in_order(packages):
    return sorted(packages.values(), key=lambda package: (package["name"], package["version"]))


def sha256(path):
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()
