#!/usr/bin/env python3
"""Writes the images of deploy/kubernetes/pod.yaml as one archive for `ctr images import`: images.py PROGRAM BUSYBOX OUT"""

import hashlib
import io
import json
import subprocess
import sys
import tarfile

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def layer(programs, links):
    """Returns a root file system with these programs (name to file on this machine), and these links to the last of them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("bin", "dev", "etc", "opt", "proc", "run", "sys", "tmp", "work"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for name, path in programs.items():
            content = open(path, "rb").read()
            program = tarfile.TarInfo(name)
            program.size, program.mode = len(content), 0o755
            tar.addfile(program, io.BytesIO(content))
        for name in links:
            link = tarfile.TarInfo("bin/" + name)
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return out.getvalue()


def add(tar, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def main(program, busybox, out):
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    images = {
        "docker.io/library/step-runner:0.1.0": (
            layer({"step-runner": program}, []),
            {"Entrypoint": ["/step-runner"], "Env": [PATH]},
        ),
        # The pause of a pod is this image too.
        "docker.io/library/busybox:1": (
            layer({"bin/busybox": busybox}, [name for name in applets if name != "busybox"]),
            {"Cmd": ["/bin/sleep", "2147483647"], "Env": [PATH]},
        ),
    }
    manifest = []
    with tarfile.open(out, "w") as tar:
        for number, (name, (content, settings)) in enumerate(images.items()):
            digest = "sha256:" + hashlib.sha256(content).hexdigest()
            config = {
                "architecture": "amd64",
                "os": "linux",
                "config": settings,
                "rootfs": {"type": "layers", "diff_ids": [digest]},
            }
            text = json.dumps(config).encode()
            config_name = hashlib.sha256(text).hexdigest() + ".json"
            add(tar, config_name, text)
            add(tar, f"layer-{number}.tar", content)
            manifest.append({"Config": config_name, "RepoTags": [name], "Layers": [f"layer-{number}.tar"]})
        add(tar, "manifest.json", json.dumps(manifest).encode())


main(*sys.argv[1:])
