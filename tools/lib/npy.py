"""Read NumPy's .npy files with nothing but the standard library."""
import array
import ast
import struct
import sys
from dataclasses import dataclass

CODES = {"f2": "e", "f4": "f", "f8": "d", "i4": "i", "i8": "q", "u4": "I", "u8": "Q", "i1": "b", "u1": "B", "b1": "B"}


def elements(code, data):
    if code == "e":  # which arrays do not have
        return array.array("f", (value for value, in struct.iter_unpack("<e", data)))
    values = array.array(code)
    values.frombytes(data)
    return values


@dataclass
class Array:
    shape: tuple
    dtype: str
    values: array.array


def read(path):
    with open(path, "rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise ValueError(f"{path}: not a .npy file")
        major = file.read(2)[0]
        length, = struct.unpack("<H", file.read(2)) if major == 1 else struct.unpack("<I", file.read(4))
        header = ast.literal_eval(file.read(length).decode("utf-8"))
        dtype = header["descr"]
        if header["fortran_order"] or dtype[0] not in "<|" or dtype[1:] not in CODES or sys.byteorder != "little":
            raise ValueError(f"{path}: {dtype} in this order is not supported")
        values = elements(CODES[dtype[1:]], file.read())
    count = 1
    for extent in header["shape"]:
        count *= extent
    if len(values) != count:
        raise ValueError(f"{path}: {len(values)} values, but the shape {header['shape']} has {count}")
    return Array(header["shape"], dtype, values)
