"""Fetch and unpack Debian packages without installing them.

apt runs with lists, caches and sources of its own in a scratch folder, so the
system is neither changed nor locked and root is not needed; apt still checks
the archive's signatures. The sources come from the machine's own.
"""
import glob
import os
import re
import subprocess
import sys

CONFIG = """\
Dir::State "{0}/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "{0}/cache";
Dir::Etc::sourcelist "{0}/apt.sources";
Dir::Etc::sourceparts "-";
Debug::NoLocking "1";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Retries "3";
Acquire::Languages "none";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""

# By os-release ID: how to install the loader, lavapipe and the validation layer.
PACKAGES = {
    "fedora": "dnf install vulkan-loader mesa-vulkan-drivers vulkan-validation-layers",
    "rhel": "dnf install vulkan-loader mesa-vulkan-drivers vulkan-validation-layers",
    "arch": "pacman -S vulkan-icd-loader vulkan-swrast vulkan-validation-layers",
    "suse": "zypper install libvulkan1 libvulkan_lvp vulkan-validationlayers",
    "debian": "apt-get install libvulkan1 mesa-vulkan-drivers vulkan-validationlayers",
    "ubuntu": "apt-get install libvulkan1 mesa-vulkan-drivers vulkan-validationlayers",
}


class DebError(Exception):
    pass


def release():
    """/etc/os-release as a dictionary."""
    try:
        with open("/etc/os-release", encoding="utf-8") as file:
            return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', file.read(), re.M))
    except OSError:
        return {}


def _deb822(text):
    for block in re.split(r"\n\s*\n", re.sub(r"^#.*\n?", "", text, flags=re.M)):
        # A field's value runs on over indented lines (keys can be given inline).
        yield {k.lower(): v.strip() for k, v in re.findall(r"^([\w-]+):((?:.*)(?:\n[ \t].*)*)", block, re.M)}


def _one_line(text):
    line = r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#\n]*)"
    for options, uri, suite, components in re.findall(line, text, re.M):
        entry = {"types": "deb", "uris": uri, "suites": suite, "components": components}
        given = dict(o.split("=", 1) for o in options.split() if "=" in o)
        entry.update({k: v.replace(",", " ") for k, v in given.items() if k in ("signed-by", "trusted")})
        yield entry


def _machine_sources(codename):
    """The machine's entries for its own release: not third parties' suites."""
    entries = []
    for path in ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]:
        reader = {".list": _one_line, ".sources": _deb822}.get(os.path.splitext(path)[1])
        if reader and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                entries += reader(file.read())
    kept = []
    for names in ({codename}, {"stable", "testing", "unstable", "sid"}):
        for entry in entries:
            suites = [s for s in entry.get("suites", "").split() if re.split("[-/]", s)[0] in names]
            official = "main" in entry.get("components", "").split() and "cdrom:" not in entry.get("uris", "")
            if suites and official and "deb" in entry.get("types", "").split() and entry.get("enabled") != "no":
                kept.append({**entry, "types": "deb", "suites": " ".join(suites)})
        if kept:
            break
    return kept


class Apt:
    def __init__(self, scratch):
        self.scratch = scratch
        self.codename = release().get("VERSION_CODENAME", "")
        self.sources = _machine_sources(self.codename)
        self.updated = None  # whether the lists read last have backports; None: not read
        if not self.sources:
            raise DebError("no apt source for this release in /etc/apt")
        for folder in ("state/lists/partial", "cache/archives/partial"):
            os.makedirs(f"{scratch}/{folder}", exist_ok=True)
        with open(f"{scratch}/apt.conf", "w", encoding="utf-8") as file:
            file.write(CONFIG.format(scratch))

    def _run(self, *command, cwd=None):
        command = [command[0], "-c", f"{self.scratch}/apt.conf", *command[1:]]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"})
        if done.returncode:
            raise DebError(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def _update(self, backports):
        if self.updated is not None and self.updated >= backports:
            return
        entries = list(self.sources)
        if backports:
            # The archive proper is the one that has the release's updates.
            base = next((e for e in entries if f"{self.codename}-updates" in e["suites"].split()), entries[0])
            entries.append({**base, "suites": f"{self.codename}-backports"})
        with open(f"{self.scratch}/apt.sources", "w", encoding="utf-8") as file:
            for entry in entries:
                file.write("".join(f"{k.title()}: {v}\n" for k, v in entry.items()) + "\n")
        print("  reading the package lists", file=sys.stderr)
        self._run("apt-get", "update")
        self.updated = backports

    def _candidate(self, package, *options):
        found = re.search(r"Candidate: (?:\d+:)?(\d\S*)", self._run("apt-cache", *options, "policy", package))
        return found.group(1) if found else None

    def download(self, package):
        """One package alone; the path of its .deb."""
        self._update(backports=False)
        folder = f"{self.scratch}/{package}"
        os.makedirs(folder, exist_ok=True)
        self._run("apt-get", "download", package, cwd=folder)
        return glob.glob(f"{glob.escape(folder)}/*.deb")[0]

    def download_with_dependencies(self, package, minimum):
        """The package, at least of this version, and what it needs that the machine lacks."""
        self._update(backports=False)
        target = []
        if not newer(self._candidate(package), minimum):
            self._update(backports=True)
            target = ["-t", f"{self.codename}-backports"]
            candidate = self._candidate(package, *target)
            if not newer(candidate, minimum):
                wanted = ".".join(map(str, minimum))
                raise DebError(f"this release has {package} {candidate}, but {wanted} or newer is needed")
        # --reinstall: fetch it even if the system has this very version.
        self._run("apt-get", "install", "-y", "--download-only", "--no-install-recommends", "--reinstall",
                  *target, package)
        return glob.glob(f"{glob.escape(self.scratch)}/cache/archives/*.deb")


def newer(version, minimum):
    """Whether a version such as 25.0.7-2~bpo12+1 is at least the minimum, a tuple."""
    return version is not None and tuple(map(int, re.findall(r"\d+", version)))[: len(minimum)] >= minimum


def unpack(debs, folder):
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
    return folder


def advice():
    """What to do where there is no apt to fetch packages with."""
    system = release()
    for name in [system.get("ID", ""), *system.get("ID_LIKE", "").split()]:
        if name in PACKAGES:
            return f"install what is missing with the system's packages: {PACKAGES[name]}"
    return ("install what is missing of the Vulkan loader, Mesa's lavapipe driver and the Khronos validation layer "
            "with the system's package manager")
