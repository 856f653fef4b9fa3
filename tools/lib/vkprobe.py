#!/usr/bin/env python3
"""List what the Vulkan loader sees: devices, drivers and layers.

Needs only libvulkan.so.1 and ctypes. Run it in the environment to be examined,
e.g. VK_DRIVER_FILES=/path/to/icd.json tools/lib/vkprobe.py
"""
import argparse
import ctypes
import json
import sys
from ctypes import byref, c_char, c_char_p, c_uint8, c_uint32, c_void_p

TYPES = ["other", "integrated", "discrete", "virtual", "cpu"]


class LayerProperties(ctypes.Structure):
    _fields_ = [("name", c_char * 256), ("spec", c_uint32), ("impl", c_uint32), ("description", c_char * 256)]


class ExtensionProperties(ctypes.Structure):
    _fields_ = [("name", c_char * 256), ("spec", c_uint32)]


class ApplicationInfo(ctypes.Structure):
    _fields_ = [("type", c_uint32), ("next", c_void_p), ("app", c_char_p), ("app_version", c_uint32),
                ("engine", c_char_p), ("engine_version", c_uint32), ("api", c_uint32)]


class InstanceCreateInfo(ctypes.Structure):
    _fields_ = [("type", c_uint32), ("next", c_void_p), ("flags", c_uint32), ("app", ctypes.POINTER(ApplicationInfo)),
                ("layer_count", c_uint32), ("layers", ctypes.POINTER(c_char_p)),
                ("ext_count", c_uint32), ("exts", c_void_p)]


class DriverProperties(ctypes.Structure):
    _fields_ = [("type", c_uint32), ("next", c_void_p), ("id", c_uint32), ("name", c_char * 256),
                ("info", c_char * 256), ("conformance", c_uint8 * 4)]


class Properties2(ctypes.Structure):
    # VkPhysicalDeviceProperties: its head by name, its limits (not needed) as room.
    _fields_ = [("type", c_uint32), ("next", c_void_p), ("api", c_uint32), ("driver", c_uint32),
                ("vendor", c_uint32), ("device", c_uint32), ("kind", c_uint32), ("name", c_char * 256),
                ("rest", c_uint8 * 4096)]


class Vulkan12Features(ctypes.Structure):
    _fields_ = [("type", c_uint32), ("next", c_void_p), ("flags", c_uint32 * 47)]
    DESCRIPTOR_INDEXING = 9


class Features2(ctypes.Structure):
    _fields_ = [("type", c_uint32), ("next", c_void_p), ("rest", c_uint32 * 256)]


def version(number):
    return f"{number >> 22 & 0x7F}.{number >> 12 & 0x3FF}.{number & 0xFFF}"


def check(result, call):
    if result < 0:
        sys.exit(f"{call} failed: VkResult {result}")


def listed(call, kind, *first):
    """The two-call idiom: ask for the count, then for the items."""
    count = c_uint32()
    check(call(*first, byref(count), None), call.__name__)
    items = (kind * count.value)()
    check(call(*first, byref(count), items), call.__name__)
    return list(items)[: count.value]


def extension_names(lib, layer):
    found = listed(lib.vkEnumerateInstanceExtensionProperties, ExtensionProperties, layer)
    return {e.name.decode(): e.spec for e in found}


def layers(lib):
    return [{"name": layer.name.decode(), "version": version(layer.spec), "description": layer.description.decode(),
             "extensions": extension_names(lib, layer.name)}
            for layer in listed(lib.vkEnumerateInstanceLayerProperties, LayerProperties)]


def describe(lib, device):
    driver = DriverProperties(type=1000196000)
    props = Properties2(type=1000059001, next=ctypes.addressof(driver))
    lib.vkGetPhysicalDeviceProperties2(device, byref(props))
    indexing = False
    # The 1.2 feature structure is unknown to a 1.1 device, which leaves it zero.
    if props.api >= (1 << 22 | 2 << 12):
        features12 = Vulkan12Features(type=51)
        features = Features2(type=1000059000, next=ctypes.addressof(features12))
        lib.vkGetPhysicalDeviceFeatures2(device, byref(features))
        indexing = bool(features12.flags[Vulkan12Features.DESCRIPTOR_INDEXING])
    return {"name": props.name.decode(errors="replace"), "api": version(props.api),
            "type": TYPES[props.kind] if props.kind < len(TYPES) else "other",
            "driver": f"{driver.name.decode()} {driver.info.decode()}".strip(), "descriptor_indexing": indexing}


def probe(enable_layer=None):
    lib = ctypes.CDLL("libvulkan.so.1")
    for name in ("vkGetPhysicalDeviceProperties2", "vkGetPhysicalDeviceFeatures2"):
        getattr(lib, name).argtypes = [c_void_p, c_void_p]
        getattr(lib, name).restype = None
    lib.vkEnumeratePhysicalDevices.argtypes = [c_void_p, c_void_p, c_void_p]
    loader = c_uint32()
    check(lib.vkEnumerateInstanceVersion(byref(loader)), "vkEnumerateInstanceVersion")
    report = {"loader": version(loader.value), "layers": layers(lib), "devices": []}
    app = ApplicationInfo(type=0, api=1 << 22 | 2 << 12)
    names = (c_char_p * 1)((enable_layer or "").encode())
    info = InstanceCreateInfo(type=1, app=ctypes.pointer(app), layers=names, layer_count=1 if enable_layer else 0)
    instance = c_void_p()
    result = lib.vkCreateInstance(byref(info), None, byref(instance))
    if result == -9:  # VK_ERROR_INCOMPATIBLE_DRIVER: a loader without any driver
        return report
    check(result, "vkCreateInstance")
    found = listed(lib.vkEnumeratePhysicalDevices, c_void_p, instance)
    report["devices"] = [describe(lib, device) for device in found]
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--enable-layer", metavar="NAME",
                        help="create the instance with this layer, to see that it loads")
    parser.add_argument("--layer-library", metavar="FILE",
                        help="print what a layer's library says of itself, as JSON")
    args = parser.parse_args()
    try:
        if args.layer_library:
            print(json.dumps(layers(ctypes.CDLL(args.layer_library))))
            return
        report = probe(args.enable_layer)
    except OSError as error:
        sys.exit(f"cannot load: {error}")
    if args.json:
        print(json.dumps(report))
        return
    print(f"loader  {report['loader']}")
    for device in report["devices"]:
        indexing = "" if device["descriptor_indexing"] else ", no descriptor indexing"
        print(f"device  {device['name']} ({device['type']}), Vulkan {device['api']}, {device['driver']}{indexing}")
    for layer in report["layers"]:
        print(f"layer   {layer['name']} {layer['version']}")


if __name__ == "__main__":
    main()
