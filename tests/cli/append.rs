//! `paged-append`: rows go to their slots, and nothing else changes.

use crate::harness::{Folder, npy, reference, run};

const SIZES: &str =
    "--queries 6 --kv-heads 2 --key-dim 4 --value-dim 3 --page-size 2 --pages 12 --sequences 2";
const MLA: &str =
    "--mla --queries 5 --key-dim 3 --position-dim 2 --page-size 3 --pages 9 --sequences 2";

fn sample(sizes: &str) -> Folder {
    Folder::sample("paged-append", sizes)
}

fn words(folder: &Folder, flags: &str) -> String {
    let words = format!("paged-append -i {} -o {} {flags}", folder.at("in"), folder.at("out"));
    words.trim_end().to_owned()
}

fn integers(folder: &Folder, name: &str) -> Vec<usize> {
    let data = folder.data(&format!("in/{name}.npy"));
    let values = data.as_chunks().0.iter().map(|&word| i32::from_le_bytes(word));
    values.map(|value| value as usize).collect()
}

fn write_integers(folder: &Folder, name: &str, shape: &[usize], values: &[i32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    folder.write(&format!("in/{name}.npy"), &npy("<i4", false, shape, &bytes));
}

/// What the cache must be, from the definition.
fn expected(folder: &Folder, new: &str, cache: &str, page_size: usize, row: usize) -> Vec<u8> {
    let mut data = folder.data(&format!("in/{cache}.npy"));
    let table = integers(folder, "block_table");
    let width = table.len() / integers(folder, "sequence_lengths").len();
    let rows = folder.data(&format!("in/{new}.npy"));
    let places = integers(folder, "sequence_ids").into_iter().zip(integers(folder, "positions"));
    for (row_bytes, (sequence, position)) in rows.chunks(row).zip(places) {
        let page = table[sequence * width + position / page_size];
        let slot = page * page_size + position % page_size;
        data[slot * row..][..row].copy_from_slice(row_bytes);
    }
    data
}

#[test]
fn rows_go_to_their_slots_as_bits() {
    for (dtype, size, spelled) in [("f32", 4, "<f4"), ("f16", 2, "<f2"), ("bf16", 2, "|V2")] {
        for (sizes, page_size, arrays) in [
            (SIZES, 2, [("new_k", "k", 8), ("new_v", "v", 6)]),
            (MLA, 3, [("new_latent", "latent", 3), ("new_k_position", "k_position", 2)]),
        ] {
            let folder = sample(&format!("{sizes} --dtype {dtype}"));
            reference(&words(&folder, &format!("--dtype {dtype}"))).succeeded();
            let mut names = arrays.map(|(_, cache, _)| format!("{cache}.npy"));
            names.sort();
            assert_eq!(folder.names("out"), names);
            for (new, cache, width) in arrays {
                let expected = expected(&folder, new, cache, page_size, width * size);
                assert_ne!(expected, folder.data(&format!("in/{cache}.npy")));
                assert_eq!(folder.data(&format!("out/{cache}.npy")), expected, "{cache}");
                assert!(folder.head(&format!("out/{cache}.npy")).contains(spelled));
            }
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let refused = |change: &dyn Fn(&Folder), parts: &[&str]| {
        let folder = sample(SIZES);
        change(&folder);
        reference(&words(&folder, "")).failed(2, parts);
        assert_eq!(folder.names(""), ["in"]);
    };
    for name in ["new_k", "new_v", "k", "v", "block_table", "positions"] {
        let path = format!("in/{name}.npy");
        refused(&|folder| folder.remove(&path), &[&format!("`{name}` is missing")]);
    }
    let half = npy("<f2", false, &[6, 2, 4], &[0; 96]);
    refused(&|folder| folder.write("in/new_k.npy", &half), &["`new_k`", "float32, which `k` is"]);
    let wide = npy("<f4", false, &[6, 2, 5], &[0; 240]);
    refused(&|folder| folder.write("in/new_k.npy", &wide), &["`new_k`", "[6, 2, 4]", "[6, 2, 5]"]);
    let latent = npy("<f4", false, &[12, 2, 1, 4], &[0; 384]);
    refused(&|folder| folder.write("in/latent.npy", &latent), &["`latent`", "beside `k`"]);
    refused(
        &|folder| {
            let mut positions: Vec<i32> =
                integers(folder, "positions").into_iter().map(|p| p as i32).collect();
            positions[1] = positions[0];
            write_integers(folder, "positions", &[6], &positions);
        },
        &["`positions`[1]", "row 0 writes to this slot"],
    );
    // The first pages are those that the sequences share.
    refused(
        &|folder| write_integers(folder, "positions", &[6], &[0, 1, 2, 0, 1, 2]),
        &["`block_table`", "logical page"],
    );
    refused(
        &|folder| write_integers(folder, "positions", &[6], &[9, 10, 99, 7, 8, 9]),
        &["`positions`", "99", "length of sequence 0"],
    );
}

#[test]
fn a_plan_is_told_and_samples_fit_their_pages() {
    let folder = sample(SIZES);
    let plan = reference(&words(&folder, "--plan --json")).succeeded().json();
    let steps = plan["plan"]["steps"].as_array().unwrap();
    assert!(
        steps.len() == 2 && steps.iter().all(|step| step["kernel"] == "paged_append"),
        "{plan}"
    );
    assert_eq!(folder.names(""), ["in"]);
    let out = folder.at("sample");
    let many = format!("sample paged-append -o {out} --queries 400");
    run(many.split(' ')).failed(2, &["--queries", "at most 32 a sequence"]);
    let mla = format!("sample paged-append -o {out} --mla --kv-heads 2");
    run(mla.split(' ')).failed(2, &["one key/value head"]);
    assert_eq!(folder.names(""), ["in"]);
}
