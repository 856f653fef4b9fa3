//! Archives as another reader sees them, and as another writer makes them: Python's, and NumPy where it is installed.

use std::process::Command;

use crate::harness::{Folder, npy, reference, swapped};

/// Reads the folder `out` and the archive `out.npz` of the working folder, then packs `in` into `in.npz`, compressed.
const SCRIPT: &str = r#"
import ast, math, os, sys, zipfile

def read(data):
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    end = 10 + int.from_bytes(data[8:10], "little")
    assert end % 64 == 0 and data[end - 1:end] == b"\n", end
    head = ast.literal_eval(data[10:end].decode("latin1"))
    assert sorted(head) == ["descr", "fortran_order", "shape"] and head["fortran_order"] is False, head
    assert head["descr"] in ("<f4", ">f4"), head
    assert len(data) - end == 4 * math.prod(head["shape"]), head
    return head

with zipfile.ZipFile("out.npz") as archive:
    assert archive.testzip() is None
    assert sorted(archive.namelist()) == sorted(os.listdir("out")), archive.namelist()
    for info in archive.infolist():
        assert info.compress_type == zipfile.ZIP_STORED, info
        data = archive.read(info)
        with open(f"out/{info.filename}", "rb") as file:
            assert file.read() == data, info
        print(info.filename[:-4], read(data)["descr"], read(data)["shape"])

names = sorted(os.listdir("in"))
with zipfile.ZipFile("in.npz", "w", zipfile.ZIP_DEFLATED) as archive:
    for name in names:
        archive.write(f"in/{name}", name)

try:
    import numpy
except ImportError:
    sys.exit()
with numpy.load("out.npz") as archive:
    for name in archive:
        assert (archive[name] == numpy.load(f"out/{name}.npy")).all()
arrays = {name[:-4]: numpy.load(f"in/{name}") for name in names}
numpy.savez("numpy.npz", **arrays)
numpy.savez_compressed("compressed.npz", **arrays)
"#;

#[test]
fn python_reads_and_writes_the_same() {
    let folder = Folder::attention();
    let big = swapped(&folder.data("in/v.npy"));
    folder.write("in/v.npy", &npy(">f4", false, &[9, 2, 2, 3], &big));
    let compute = |input: &str, out: &str| {
        let words = format!("history-backward -i {} -o {}", folder.at(input), folder.at(out));
        reference(&words).succeeded();
    };
    compute("in", "out");
    compute("in", "out.npz");
    let mut python = Command::new("python3");
    let Ok(output) = python.args(["-c", SCRIPT]).current_dir(folder.path()).output() else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.trim(), "k_gradient <f4 (9, 2, 2, 4)\nv_gradient >f4 (9, 2, 2, 3)");
    let archives = ["in.npz", "numpy.npz", "compressed.npz"];
    for archive in archives.into_iter().filter(|name| folder.path().join(name).exists()) {
        compute(archive, "again.npz");
        assert_eq!(folder.read("again.npz"), folder.read("out.npz"), "{archive}");
    }
}
