//! Index arrays of any integer type: narrowed where the value fits, refused with it where it does not.

use crate::harness::{Folder, npy, reference};

/// NumPy's spelling of an integer type and the bytes of a value in it, if it fits.
fn encoded(descr: &str, value: i128) -> Option<Vec<u8>> {
    let mut bytes = match &descr[1..] {
        "i1" => i8::try_from(value).ok()?.to_le_bytes().to_vec(),
        "i2" => i16::try_from(value).ok()?.to_le_bytes().to_vec(),
        "i4" => i32::try_from(value).ok()?.to_le_bytes().to_vec(),
        "i8" => i64::try_from(value).ok()?.to_le_bytes().to_vec(),
        "u1" => u8::try_from(value).ok()?.to_le_bytes().to_vec(),
        "u2" => u16::try_from(value).ok()?.to_le_bytes().to_vec(),
        "u4" => u32::try_from(value).ok()?.to_le_bytes().to_vec(),
        _ => u64::try_from(value).ok()?.to_le_bytes().to_vec(),
    };
    if descr.starts_with('>') {
        bytes.reverse();
    }
    Some(bytes)
}

const TYPES: [&str; 14] = [
    "|i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "|u1", "<u2", ">u2", "<u4", ">u4", "<u8",
    ">u8",
];

/// The index arrays of [`Folder::attention`], with their shapes and a legal value for all elements.
const ARRAYS: [(&str, &[usize], i128); 4] = [
    ("block_table", &[2, 5], 8),
    ("sequence_lengths", &[2], 10),
    ("sequence_ids", &[6], 1),
    ("positions", &[6], 9),
];

fn write(folder: &Folder, name: &str, descr: &str, values: impl Iterator<Item = i128>) {
    let shape = ARRAYS.iter().find(|(array, ..)| *array == name).unwrap().1;
    let data = values.map(|value| encoded(descr, value).unwrap()).collect::<Vec<_>>().concat();
    folder.write(&format!("in/{name}.npy"), &npy(descr, false, shape, &data));
}

fn legal(folder: &Folder, descr: &str) {
    for (name, shape, value) in ARRAYS {
        let count = shape.iter().product();
        write(folder, name, descr, std::iter::repeat_n(value, count));
    }
}

#[test]
fn every_integer_type_means_the_same() {
    let folder = Folder::attention();
    let words = format!("history-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    legal(&folder, "<i4");
    reference(&words).succeeded();
    let expected = folder.read("out/k_gradient.npy");
    for descr in TYPES {
        legal(&folder, descr);
        reference(&words).succeeded();
        assert_eq!(folder.read("out/k_gradient.npy"), expected, "{descr}");
    }
}

/// Cut to 32 bits, the large ones would be legal; none is.
#[test]
fn values_that_do_not_fit_are_named() {
    let folder = Folder::attention();
    let words = format!("history-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    for (name, shape, good) in ARRAYS {
        let count = shape.iter().product::<usize>();
        let table_limit = [("block_table", 9), ("sequence_lengths", 11), ("sequence_ids", 2)];
        let limit = table_limit.iter().find(|(array, _)| *array == name).map(|(_, limit)| *limit);
        let values =
            [-1, -128, (1 << 32) + good, -(1 << 32) + good, u64::MAX.into(), i64::MIN.into()];
        for value in values.into_iter().chain(limit).chain(limit.map(|_| u32::MAX.into())) {
            let takes = |descr: &&str| encoded(descr, value).is_some();
            for descr in TYPES.into_iter().filter(takes) {
                legal(&folder, "<i4");
                // The last element of those that are used.
                let at = count - 1;
                write(&folder, name, descr, (0..count).map(|i| if i == at { value } else { good }));
                reference(&words).failed(2, &[&format!("`{name}`"), &format!("= {value}:")]);
            }
        }
    }
    assert_eq!(folder.names(""), ["in"]);
}

#[test]
fn what_is_no_integer_is_refused() {
    let folder = Folder::attention();
    let words = format!("history-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    for (name, shape, _) in ARRAYS {
        for (descr, size) in
            [("<f2", 2), ("<f4", 4), (">f8", 8), ("|b1", 1), ("<c8", 8), ("|V4", 4), ("<U1", 4)]
        {
            legal(&folder, "<i4");
            let data = vec![0; size * shape.iter().product::<usize>()];
            folder.write(&format!("in/{name}.npy"), &npy(descr, false, shape, &data));
            reference(&words).failed(2, &[&format!("`{name}`"), "integer", descr]);
        }
    }
}
