//! Writing: what is written reads back, and what fails leaves nothing behind.

use std::fs;

use backslang::{Dtype, HostTensor};
use ndarray::{ArrayD, Dimension};

use super::{Folder, names};
use crate::cli::files::descr::{ByteOrder, Descr};
use crate::cli::files::{Catalog, OutputArray, OutputValues, Spelling, Target, Wanted};

fn array(name: &str, shape: &[usize], order: ByteOrder) -> OutputArray {
    typed(name, Dtype::F32, shape, Spelling::of(order))
}

fn typed(name: &str, dtype: Dtype, shape: &[usize], spelling: Spelling) -> OutputArray {
    let values = ArrayD::from_shape_fn(shape, |index| {
        index.slice().iter().fold(-1.5, |sum, &i| 4.0 * sum + i as f64)
    });
    OutputArray::floats(name, HostTensor::from_f64(dtype, &values).unwrap(), spelling)
}

fn tensor(array: &OutputArray) -> &HostTensor {
    match &array.values {
        OutputValues::Floats(tensor) => tensor,
        _ => unreachable!("the tests write floats"),
    }
}

#[test]
fn what_is_written_reads_back() {
    let folder = Folder::new();
    let little = Spelling::LITTLE;
    let spelled = |descr| Descr::parse(descr).spelling();
    let arrays = [
        (array("a", &[2, 3, 4], ByteOrder::Little), "<f4"),
        (array("b", &[5], ByteOrder::Big), ">f4"),
        (array("c", &[], ByteOrder::Little), "<f4"),
        (array("d", &[0, 3], ByteOrder::Big), ">f4"),
        (typed("e", Dtype::F16, &[3, 3], little), "<f2"),
        (typed("f", Dtype::F16, &[7], spelled(">f2")), ">f2"),
        (typed("g", Dtype::Bf16, &[3, 1], little), "|V2"),
    ];
    let bf16 = ["|V2", "<V2", ">V2", "<u2", ">u2", "bfloat16"];
    let bf16 = bf16.map(|descr| (typed(descr, Dtype::Bf16, &[1, 5], spelled(descr)), descr));
    let arrays: Vec<_> = arrays.into_iter().chain(bf16).collect();
    for place in ["inner/folder", "inner/archive.npz"] {
        let path = folder.0.join(place);
        let (sources, descrs): (Vec<_>, Vec<_>) = arrays.iter().cloned().unzip();
        let written = Target::resolve(&path).unwrap().open([]).unwrap().write(&sources).unwrap();
        let mut catalog = Catalog::default();
        catalog.add(&path).unwrap();
        for ((array, descr), written) in sources.iter().zip(descrs).zip(written) {
            let wanted = Wanted::Flag(tensor(array).dtype());
            let (read, spelling) = catalog.get(&array.name).unwrap().floats(wanted).unwrap();
            assert_eq!((&read, spelling), (tensor(array), array.spelling), "{descr}");
            assert_eq!(spelling.descr(read.dtype()), descr);
            let dtype = tensor(array).dtype().name();
            assert_eq!((written.shape.as_slice(), written.dtype), (read.shape(), dtype));
            assert!(written.path.exists());
        }
    }
}

#[test]
fn heads_are_what_numpy_writes() {
    let folder = Folder::new();
    let target = Target::resolve(&folder.0).unwrap();
    target.open([]).unwrap().write(&[array("x", &[7], ByteOrder::Big)]).unwrap();
    let bytes = fs::read(folder.0.join("x.npy")).unwrap();
    assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
    let text = std::str::from_utf8(&bytes[10..128]).unwrap();
    assert_eq!(text.trim_end(), "{'descr': '>f4', 'fortran_order': False, 'shape': (7,), }");
    assert!(text.ends_with(" \n"));
    assert_eq!(bytes.len(), 128 + 28);
}

#[test]
fn archives_of_the_same_arrays_have_the_same_bytes() {
    let folder = Folder::new();
    let write = |name| {
        let path = folder.0.join(name);
        Target::resolve(&path)
            .unwrap()
            .open([])
            .unwrap()
            .write(&[array("x", &[9], ByteOrder::Little)])
            .unwrap();
        fs::read(path).unwrap()
    };
    assert_eq!(write("a.npz"), write("b.npz"));
}

#[test]
fn other_files_stay_and_old_results_are_replaced() {
    let folder = Folder::new();
    folder.file("keep.npy", b"kept");
    folder.file("x.npy", b"old");
    let target = Target::resolve(&folder.0).unwrap();
    target.open([]).unwrap().write(&[array("x", &[2], ByteOrder::Little)]).unwrap();
    assert_eq!(folder.names(), ["keep.npy", "x.npy"]);
    assert_eq!(fs::read(folder.0.join("keep.npy")).unwrap(), b"kept");
    assert_eq!(fs::read(folder.0.join("x.npy")).unwrap().len(), 136);
}

#[test]
fn a_set_that_cannot_be_complete_is_not_begun() {
    let folder = Folder::new();
    folder.file("x.npy", b"old x");
    fs::create_dir(folder.0.join("z.npy")).unwrap();
    let target = Target::resolve(&folder.0).unwrap();
    let arrays = ["x", "y", "z"].map(|name| array(name, &[2], ByteOrder::Little));
    let error = target.open([]).unwrap().write(&arrays).unwrap_err();
    assert!(error.path.ends_with("z.npy"), "{error}");
    assert_eq!(folder.names(), ["x.npy", "z.npy"]);
    assert_eq!(fs::read(folder.0.join("x.npy")).unwrap(), b"old x");
}

#[test]
fn a_failed_rename_restores_what_was_there() {
    use crate::cli::files::staged::Staged;
    let folder = Folder::new();
    let (x, y, z) = (folder.file("x", b"old x"), folder.0.join("y"), folder.0.join("z"));
    let mut staged = Staged::in_folder(&folder.0).unwrap();
    for path in [&x, &y, &z] {
        staged.add(path, |mut file| std::io::Write::write_all(&mut file, b"new")).unwrap();
    }
    // In the way since the check, and not empty: the third rename fails.
    fs::create_dir_all(z.join("inside")).unwrap();
    let error = staged.commit().unwrap_err();
    assert_eq!(error.path, z);
    assert_eq!(folder.names(), ["x", "z"]);
    assert_eq!(fs::read(&x).unwrap(), b"old x");
    assert_eq!(names(&z), ["inside"]);
}

#[test]
fn folders_made_for_a_failed_set_go_again() {
    use crate::cli::files::staged::Staged;
    let folder = Folder::new();
    let inner = folder.0.join("a/b");
    let mut staged = Staged::in_folder(&inner).unwrap();
    let full = |_: &fs::File| Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
    assert!(staged.add(&inner.join("x.npy"), full).is_err());
    drop(staged);
    assert!(folder.names().is_empty());
}

#[test]
fn a_file_is_no_folder() {
    let folder = Folder::new();
    let path = folder.file("x.bin", b"");
    assert!(Target::resolve(&path).unwrap_err().to_string().contains("x.bin"));
    assert!(Target::resolve(&folder.0.join("y.npy")).is_err());
    assert_eq!(
        Target::resolve(&folder.0.join("y.npz")).unwrap(),
        Target::Archive(folder.0.join("y.npz"))
    );
    fs::create_dir(folder.0.join("z.npz")).unwrap();
    assert_eq!(
        Target::resolve(&folder.0.join("z.npz")).unwrap(),
        Target::Folder(folder.0.join("z.npz"))
    );
}
