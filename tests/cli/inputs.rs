//! Where arrays come from, and in which spellings.

use std::fs;

use crate::harness::{Folder, npy, reference, run, swapped};

const HISTORY: &str = "history-backward";

fn gradients(folder: &Folder, words: &str) -> Vec<u8> {
    let out = folder.at("result");
    reference(&format!("{HISTORY} {words} -o {out}")).succeeded();
    let data =
        [folder.data("result/k_gradient.npy"), folder.data("result/v_gradient.npy")].concat();
    fs::remove_dir_all(out).unwrap();
    data
}

#[test]
fn a_folder_an_archive_and_single_arrays_are_the_same() {
    let folder = Folder::attention();
    let expected = gradients(&folder, &format!("-i {}", folder.at("in")));
    let words = format!("sample paged-attention-backward -o {} --seed 5", folder.at("in.npz"));
    run(words.split(' ').chain(crate::harness::ATTENTION.split(' '))).succeeded();
    assert_eq!(gradients(&folder, &format!("-i {}", folder.at("in.npz"))), expected);
    let singles: Vec<_> = folder
        .names("in")
        .iter()
        .map(|name| {
            let array = name.strip_suffix(".npy").unwrap();
            format!("--in {array}={}", folder.at(&format!("in/{name}")))
        })
        .collect();
    assert_eq!(gradients(&folder, &singles.join(" ")), expected);
}

#[test]
fn later_inputs_win_and_single_arrays_most_of_all() {
    let folder = Folder::attention();
    let input = folder.at("in");
    let expected = gradients(&folder, &format!("-i {input}"));
    fs::create_dir(folder.path().join("other")).unwrap();
    let zeros = npy("<f4", false, &[6, 4, 3], &[0; 288]);
    folder.write("other/output_gradient.npy", &zeros);
    let other = folder.at("other");
    let overridden = gradients(&folder, &format!("-i {input} -i {other}"));
    assert!(overridden.iter().all(|&byte| byte & 0x7f == 0));
    assert_eq!(gradients(&folder, &format!("-i {other} -i {input}")), expected);
    let single = folder.at("in/output_gradient.npy");
    let words = format!("--in output_gradient={single} -i {input} -i {other}");
    assert_eq!(gradients(&folder, &words), expected);
}

#[test]
fn orders_and_endings_do_not_matter() {
    let folder = Folder::attention();
    let words = format!("-i {}", folder.at("in"));
    let expected = gradients(&folder, &words);
    // [9, 2, 2, 3] in Fortran order: the first axis varies fastest.
    let data = folder.data("in/v.npy");
    let (pages, rest) = (9, 12);
    let mut columns = Vec::new();
    for last in 0..3 {
        for head in 0..2 {
            for slot in 0..2 {
                for page in 0..pages {
                    let element = page * rest + slot * 6 + head * 3 + last;
                    columns.extend(&data[4 * element..4 * element + 4]);
                }
            }
        }
    }
    folder.write("in/v.npy", &npy("<f4", true, &[9, 2, 2, 3], &columns));
    assert_eq!(gradients(&folder, &words), expected);
    folder.write("in/v.npy", &npy("<f4", false, &[9, 2, 2, 3], &data));
    let big = swapped(&folder.data("in/q.npy"));
    folder.write("in/q.npy", &npy(">f4", false, &[6, 4, 4], &big));
    assert_eq!(gradients(&folder, &words), expected);
}

#[test]
fn a_gradient_has_the_byte_order_of_its_array() {
    let folder = Folder::attention();
    let (input, out) = (folder.at("in"), folder.at("out"));
    reference(&format!("paged-attention-backward -i {input} -o {out}")).succeeded();
    let expected = folder.data("out/k_gradient.npy");
    let big = swapped(&folder.data("in/k.npy"));
    folder.write("in/k.npy", &npy(">f4", false, &[9, 2, 2, 4], &big));
    reference(&format!("paged-attention-backward -i {input} -o {out}")).succeeded();
    assert!(folder.head("out/k_gradient.npy").contains("'>f4'"));
    assert_eq!(swapped(&folder.data("out/k_gradient.npy")), expected);
    assert!(folder.head("out/v_gradient.npy").contains("'<f4'"));
}

#[test]
fn index_arrays_may_have_any_integer_type() {
    let folder = Folder::attention();
    let words = format!("-i {}", folder.at("in"));
    let expected = gradients(&folder, &words);
    let widened = |name: &str| {
        let data = folder.data(&format!("in/{name}.npy"));
        data.as_chunks::<4>().0.iter().map(|&word| i32::from_le_bytes(word)).collect::<Vec<_>>()
    };
    let ids: Vec<u8> = widened("sequence_ids").iter().map(|&id| id as u8).collect();
    folder.write("in/sequence_ids.npy", &npy("|u1", false, &[6], &ids));
    let positions = widened("positions");
    let big: Vec<u8> = positions.iter().flat_map(|&p| i64::from(p).to_be_bytes()).collect();
    folder.write("in/positions.npy", &npy(">i8", false, &[6], &big));
    let lengths = widened("sequence_lengths");
    let short: Vec<u8> = lengths.iter().flat_map(|&length| (length as u16).to_le_bytes()).collect();
    folder.write("in/sequence_lengths.npy", &npy("<u2", false, &[2], &short));
    assert_eq!(gradients(&folder, &words), expected);
}

#[test]
fn unknown_arrays_are_ignored_and_listed_when_asked() {
    let folder = Folder::attention();
    folder.write("in/notes.npy", b"not even an array");
    folder.write("in/latent_gradient.npy", b"nor this");
    let words = format!("{HISTORY} -i {} -o {}", folder.at("in"), folder.at("out"));
    let quiet = reference(&words).succeeded();
    assert!(quiet.stderr.is_empty(), "{quiet:?}");
    let verbose = reference(&format!("-v {words}")).succeeded();
    for name in ["`notes`", "`latent_gradient`"] {
        assert!(verbose.stderr.contains(name), "{verbose:?}");
    }
    assert!(!verbose.stderr.contains("`q`"), "{verbose:?}");
    let spelled = reference(&format!("{words} --in kk={}", folder.at("in/k.npy"))).succeeded();
    assert!(spelled.stderr.contains("`kk`"), "{spelled:?}");
    let slip = format!("{words} --in statistic={}", folder.at("in/k.npy"));
    let spelled = reference(&slip).succeeded();
    assert!(spelled.stderr.contains("did you mean `statistics`?"), "{spelled:?}");
}

#[test]
fn leading_axes_stand_for_rows() {
    let folder = Folder::mamba3();
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    reference(&words).succeeded();
    let expected = folder.data("out/projected_gradient.npy");
    for name in folder.names("in") {
        let path = format!("in/{name}");
        let head = folder.head(&path);
        let axes = head.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
        let axes: Vec<usize> =
            axes.split(',').filter_map(|axis| axis.trim().parse().ok()).collect();
        if let [6, rest @ ..] = axes.as_slice() {
            let shape = [&[2, 1, 3], rest].concat();
            folder.write(&path, &npy("<f4", false, &shape, &folder.data(&path)));
        }
    }
    reference(&words).succeeded();
    assert_eq!(folder.data("out/projected_gradient.npy"), expected);
    assert!(folder.head("out/projected_gradient.npy").contains("(2, 1, 3, 36)"));
    assert!(folder.head("out/dt_bias_partial.npy").contains("(2, 1, 3, 4)"));
}

#[test]
fn an_array_may_come_through_a_pipe() {
    let folder = Folder::attention();
    let expected = gradients(&folder, &format!("-i {}", folder.at("in")));
    let script = format!(
        "{} --device reference {HISTORY} -i {input} --in q=/dev/stdin -o {out} < /dev/null | cat; \
         cat {input}/q.npy | {0} --device reference {HISTORY} -i {input} --in q=/dev/stdin -o {out}",
        env!("CARGO_BIN_EXE_backslang"),
        input = folder.at("in"),
        out = folder.at("piped"),
    );
    if cfg!(unix) {
        let status = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(status.status.success(), "{status:?}");
        let data =
            [folder.data("piped/k_gradient.npy"), folder.data("piped/v_gradient.npy")].concat();
        assert_eq!(data, expected);
    }
}
