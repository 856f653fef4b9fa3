//! Parts of the work, and joining them: on the reference, byte for byte.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{ATTENTION, Folder, MAMBA3, MLA, Outcome, command, outcome, reference, run};
use crate::schema::Schema;

/// Writes part `index` of `count`.
fn part(folder: &Folder, words: &str, index: usize, count: usize, ending: &str) -> Outcome {
    let out = folder.at(&format!("part.{index}{ending}"));
    reference(&format!("{words} -i {} -o {out} --shard {index}/{count}", folder.at("in")))
}

fn parts(folder: &Folder, words: &str, count: usize, ending: &str) -> Vec<String> {
    let path = |index| {
        part(folder, words, index, count, ending).succeeded();
        folder.at(&format!("part.{index}{ending}"))
    };
    (0..count).map(path).collect()
}

fn merge(paths: &[String], out: &str) -> Outcome {
    run(["merge", "-o", out].into_iter().chain(paths.iter().map(String::as_str)))
}

/// The files of a folder, or the one file.
fn contents(path: &str) -> Vec<(String, Vec<u8>)> {
    let Ok(items) = fs::read_dir(path) else {
        return vec![(String::new(), fs::read(path).unwrap())];
    };
    let file = |item: std::io::Result<fs::DirEntry>| {
        let item = item.unwrap();
        (item.file_name().into_string().unwrap(), fs::read(item.path()).unwrap())
    };
    let mut files = items.map(file).collect::<Vec<_>>();
    files.sort();
    files
}

/// In every count of parts, merged into a folder and into an archive.
fn check(folder: &Folder, words: &str, counts: &[usize]) {
    for (ending, parts_ending) in [("", ".npz"), (".npz", "")] {
        let whole = folder.at(&format!("whole{ending}"));
        let _ = fs::remove_dir_all(&whole);
        reference(&format!("{words} -i {} -o {whole}", folder.at("in"))).succeeded();
        for &count in counts {
            let mut paths = parts(folder, words, count, parts_ending);
            paths.reverse();
            let merged = folder.at(&format!("merged{ending}"));
            let said = merge(&paths, &merged).succeeded();
            assert!(said.stderr.is_empty(), "{said:?}");
            assert!(contents(&merged) == contents(&whole), "{words}: {count} parts{ending}");
            for path in paths.iter().chain([&merged]) {
                let _ = fs::remove_dir_all(path);
                let _ = fs::remove_file(path);
            }
        }
    }
}

#[test]
fn merged_parts_are_the_files_of_one_run() {
    let long = "--rows 300 --inner-size 3 --bc-rows 1 --state-size 3 --heads 2 --rope-angles 1";
    for (command, sizes) in [
        ("mamba3-preprocess", MAMBA3),
        ("mamba3-preprocess-backward", long),
        ("paged-attention", ATTENTION),
        ("paged-attention", MLA),
        ("paged-append", "--key-dim 3 --pages 9 --queries 5"),
        ("paged-append", "--mla --key-dim 3 --pages 9 --queries 5"),
        ("paged-attention-backward", ATTENTION),
        ("paged-attention-backward", MLA),
        ("history-backward", ATTENTION),
        ("history-backward", MLA),
    ] {
        for (dtype, counts) in [("f32", &[1, 2, 3, 7][..]), ("f16", &[2, 7]), ("bf16", &[3, 7])] {
            let folder = Folder::sample(command, &format!("{sizes} --dtype {dtype}"));
            check(&folder, &format!("{command} --dtype {dtype}"), counts);
        }
    }
}

#[test]
fn options_hold_for_parts() {
    let folder = Folder::attention();
    for flags in ["--save-statistics --gradients k", "--no-causal --gradients q,v", "--gradients v"]
    {
        check(&folder, &format!("paged-attention-backward {flags}"), &[2, 5]);
    }
    // Old gradients, of which there is one for each kind of unit.
    reference(&format!("paged-attention-backward -i {0} -o {0}", folder.at("in"))).succeeded();
    check(&folder, "paged-attention-backward --accumulate", &[3]);
    let folder = Folder::mamba3();
    reference(&format!("mamba3-preprocess-backward -i {0} -o {0}", folder.at("in"))).succeeded();
    check(&folder, "mamba3-preprocess-backward --accumulate --dt-max inf", &[1, 2]);
}

/// Big-endian arrays and 16-bit words come back as such.
#[test]
fn spellings_are_kept() {
    let folder = Folder::sample("history-backward", &format!("{ATTENTION} --dtype bf16"));
    for name in folder.names("in") {
        let bytes = folder.read(&format!("in/{name}"));
        let words = String::from_utf8_lossy(&bytes[..80]).contains("|V2");
        if words {
            let at = bytes.windows(5).position(|w| w == b"'|V2'").unwrap();
            let mut bytes = bytes;
            bytes[at..at + 5].copy_from_slice(b"'<u2'");
            folder.write(&format!("in/{name}"), &bytes);
        }
    }
    check(&folder, "history-backward --dtype bf16", &[3]);
    assert!(folder.names("").contains(&"whole".into()));
    assert!(folder.head("whole/k_gradient.npy").contains("'<u2'"));
}

#[test]
fn more_parts_than_units_are_empty() {
    let folder = Folder::mamba3();
    let words = "mamba3-preprocess-backward";
    let paths = parts(&folder, words, 3, "");
    let empty = paths.iter().enumerate().filter(|(index, _)| {
        folder.head(&format!("part.{index}/projected_gradient.npy")).contains("(0, 36)")
    });
    assert_eq!(empty.count(), 2);
    reference(&format!("{words} -i {} -o {}", folder.at("in"), folder.at("whole"))).succeeded();
    merge(&paths, &folder.at("merged")).succeeded();
    assert!(contents(&folder.at("merged")) == contents(&folder.at("whole")));
}

#[test]
fn shards_are_counted_from_zero() {
    let folder = Folder::attention();
    let words = format!("history-backward -i {} -o {}", folder.at("in"), folder.at("out"));
    for (shard, part) in [
        ("4/4", "0/4 to 3/4"),
        ("0/0", "N from 1"),
        ("1", "`1`"),
        ("one/4", "`one/4`"),
        ("0/2000000", "N from 1 to 1048576"),
    ] {
        let failed = reference(&format!("{words} --shard {shard}"));
        failed.failed(2, &["--shard", part]);
        assert_eq!(folder.names(""), ["in"]);
    }
    let failed = reference(&format!("{words} --shard 4/4"));
    failed.failed(2, &["shards are counted from 0"]);
    for other in ["devices", "kernels", "check"] {
        run([other, "--shard", "0/2"]).failed(2, &["--shard"]);
    }
}

#[test]
fn manifests_and_reports_are_as_described() {
    let schema = Schema::read();
    let folder = Folder::mamba3();
    let words = "mamba3-preprocess-backward --json";
    let said = part(&folder, words, 1, 2, "").succeeded().json();
    let manifest: Value = serde_json::from_slice(&folder.read("part.1/shard.json")).unwrap();
    assert_eq!(said["shard"], manifest);
    schema.holds("shard", &manifest);
    schema.holds("shard of a part", &manifest["shard"]);
    assert_eq!(manifest["shard"], json!({ "index": 1, "count": 2 }));
    schema.holds_each("devices of a part", &manifest["devices"]);
    schema.holds_each("outputs of a part", &manifest["outputs"]);
    for input in manifest["inputs"].as_object().unwrap().values() {
        schema.holds("inputs of a part", input);
    }
    let outputs = manifest["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 3);
    schema.holds("placed", &outputs[0]["placed"]);
    schema.holds("summed", &outputs[2]["summed"]);
    assert_eq!(outputs[2]["array"], "dt_bias_chunks");
    assert_eq!(said["outputs"]["dt_bias_chunks"]["dtype"], "f64");
    part(&folder, words, 0, 2, "").succeeded();
    let paths = [folder.at("part.0"), folder.at("part.1"), "--json".into()];
    let merged = merge(&paths, &folder.at("merged")).succeeded().json();
    assert_eq!(merged["command"], "merge");
    assert!(merged["device"].is_null() && merged["error"].is_null());
    assert_eq!(merged["outputs"].as_object().unwrap().len(), 3);
    let plan =
        part(&folder, &format!("{words} --plan"), 0, 2, "").succeeded().json()["plan"].clone();
    schema.holds("plan", &plan);
    assert_eq!((&plan["sizes"]["shard"], &plan["sizes"]["shards"]), (&json!(0), &json!(2)));
}

/// Two parts of a history backward, made whole again after each change.
fn two_parts() -> (Folder, [String; 2]) {
    let folder = Folder::attention();
    parts(&folder, "history-backward", 2, "");
    let paths = ["part.0", "part.1"].map(|name| folder.at(name));
    (folder, paths)
}

fn refused(folder: &Folder, paths: &[String], words: &[&str]) {
    let out = folder.at("merged");
    merge(paths, &out).failed(2, words);
    assert!(!folder.names("").contains(&"merged".into()), "{words:?}");
}

#[test]
fn parts_leave_the_inputs_of_the_others() {
    let folder = Folder::attention();
    let (input, out) = (folder.at("in"), folder.at("out"));
    fs::create_dir(&out).unwrap();
    fs::copy(folder.at("in/k.npy"), folder.at("out/k.npy")).unwrap();
    let before = folder.names("in");
    for words in [format!("-o {input}"), format!("--in k={out}/k.npy -o {out}/../out")] {
        let call = format!("history-backward -i {input} --shard 0/2 {words}");
        reference(&call).failed(2, &["--output", "another folder", "for a part"]);
    }
    assert_eq!((folder.names("in"), folder.names("out")), (before, vec!["k.npy".to_owned()]));
}

#[test]
fn parts_that_are_missing_or_there_twice_are_refused() {
    let (folder, [first, second]) = two_parts();
    refused(&folder, std::slice::from_ref(&first), &["all 2 shards", "missing 1/2"]);
    let twice = [first.clone(), second.clone(), first.clone()];
    refused(&folder, &twice, &["part.0", "each shard once", "0/2"]);
    refused(&folder, &[first.clone(), folder.at("in")], &["no shard.json", "in)"]);
    refused(&folder, &[first.clone(), folder.at("nowhere")], &["nowhere"]);
    run(["merge", "-o", &folder.at("merged")]).failed(2, &["PART"]);
    run(["merge", &first, &second]).failed(2, &["--output"]);
    for out in [&first, &folder.at("in/../part.0")] {
        let failed = run(["merge", &first, &second, "-o", out]);
        failed.failed(2, &["--output", "another place"]);
    }
    run(["merge", &first, &second, "-o", &folder.at("m"), "--validate"]).failed(2, &["--validate"]);
}

#[test]
fn parts_of_other_calls_are_refused() {
    let (folder, [first, second]) = two_parts();
    let again = |words: &str, index, count| {
        let _ = fs::remove_dir_all(folder.at("part.1"));
        part(&folder, words, index, count, "").succeeded();
        fs::rename(folder.at(&format!("part.{index}")), folder.at("part.x")).unwrap();
        fs::rename(folder.at("part.x"), &second).unwrap();
    };
    let both = [first.clone(), second.clone()];
    for (words, index, count, said) in [
        ("history-backward --scale 0.25", 1, 2, &["scale 0.5, found 0.25"][..]),
        ("history-backward --no-causal", 1, 2, &["causal true, found false"]),
        (
            "history-backward --gradients k",
            1,
            2,
            &["the outputs k_gradient, v_gradient, found k_g"],
        ),
        ("paged-attention-backward", 1, 2, &["the command history-backward, found paged"]),
        ("history-backward", 2, 3, &["N = 2, found N = 3"]),
    ] {
        again(words, index, count);
        refused(&folder, &both, &[said, &["part.1", "part.0"]].concat());
    }
    // Settings that change no bit may differ.
    again("history-backward --cache-history --compact-history", 1, 2);
    merge(&both, &folder.at("merged")).succeeded();
    fs::remove_dir_all(folder.at("merged")).unwrap();
    let q = folder.read("in/q.npy");
    let mut other = q.clone();
    *other.last_mut().unwrap() ^= 1;
    folder.write("in/q.npy", &other);
    again("history-backward", 1, 2);
    refused(&folder, &both, &["the same elements of the input `q`"]);
    folder.write("in/q.npy", &q);
    let saved = folder.at("in");
    reference(&format!("paged-attention -i {saved} -o {saved}")).succeeded();
    again("history-backward", 1, 2);
    refused(&folder, &both, &["no input `output`"]);
}

#[test]
fn parts_that_were_changed_are_refused() {
    let (folder, paths) = two_parts();
    let file = "part.1/k_gradient.npy";
    let whole = folder.read(file);
    folder.write(file, &whole[..whole.len() - 4]);
    refused(&folder, &paths, &["k_gradient", "promises", "part.1"]);
    let mut other = whole.clone();
    *other.last_mut().unwrap() ^= 1;
    folder.write(file, &other);
    refused(&folder, &paths, &["k_gradient", "sha256"]);
    folder.write(file, &folder.read("part.1/v_gradient.npy"));
    refused(&folder, &paths, &["k_gradient", "expected [", "found shape"]);
    folder.remove(file);
    refused(&folder, &paths, &["part.1", "`k_gradient` is missing"]);
    folder.write(file, &whole);
    let text = String::from_utf8(folder.read("part.1/shard.json")).unwrap();
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    for (from, to, said) in [
        (version.as_str(), "\"version\": \"0.0.9\"", &["expected version", "0.0.9"][..]),
        ("\"index\": 1", "\"index\": 2", &["`shard`", "2/2"]),
        ("\"command\"", "\"order\"", &["shard.json", "command"]),
        ("{", "", &["shard.json"]),
        (
            "\"dtype\": \"f32\",\n      \"name\"",
            "\"dtype\": \"f31\",\n      \"name\"",
            &["the same layout of `k_gradient`"],
        ),
    ] {
        assert!(text.contains(from), "{text}");
        folder.write("part.1/shard.json", text.replacen(from, to, 1).as_bytes());
        refused(&folder, &paths, &[said, &["part.1"]].concat());
    }
    // Sizes that no memory holds are found to be false before any is asked for.
    let mut manifests = ["part.0/shard.json", "part.1/shard.json"].map(|name| {
        (name, serde_json::from_slice::<Value>(&folder.read("part.0/shard.json")).unwrap())
    });
    manifests[1].1 = serde_json::from_str(&text).unwrap();
    for (name, manifest) in &mut manifests {
        let output = &mut manifest["outputs"][0];
        output["shape"] = json!([1u64 << 40, 2, 2, 4]);
        output["placed"]["view"] = json!([1u64 << 40, 2, 2, 4]);
        folder.write(name, manifest.to_string().as_bytes());
    }
    refused(&folder, &paths, &["units of `k_gradient`"]);
    folder.write("part.1/shard.json", text.as_bytes());
}

#[test]
fn archives_that_were_cut_are_refused() {
    let folder = Folder::attention();
    let paths = parts(&folder, "history-backward", 2, ".npz");
    let whole = folder.read("part.1.npz");
    folder.write("part.1.npz", &whole[..whole.len() / 2]);
    refused(&folder, &paths, &["part.1.npz", "archive"]);
    folder.write("part.1.npz", b"");
    refused(&folder, &paths, &["part.1.npz"]);
    folder.write("part.1.npz", &whole);
    merge(&paths, &folder.at("merged")).succeeded();
}

/// Where a file of the results cannot be written, none is, and a part that cannot be written leaves nothing.
#[test]
fn nothing_is_left_of_what_cannot_be_written() {
    let (folder, paths) = two_parts();
    fs::create_dir_all(folder.at("merged/v_gradient.npy")).unwrap();
    merge(&paths, &folder.at("merged")).failed(1, &["v_gradient.npy"]);
    assert_eq!(folder.names("merged"), ["v_gradient.npy"]);
    fs::create_dir_all(folder.at("part.7/shard.json")).unwrap();
    part(&folder, "history-backward", 7, 8, "").failed(1, &["shard.json"]);
    assert_eq!(folder.names("part.7"), ["shard.json"]);
}

/// The environment says the same as the flag, and commands for one device say that they are.
#[test]
fn all_devices_are_for_commands_that_compute() {
    let mut check = command();
    check.args(["check"]).env("BACKSLANG_DEVICE", "all");
    outcome(&mut check).failed(2, &["one Vulkan device", "`all`"]);
    run(["check", "--device", "ALL"]).failed(2, &["`all`"]);
}
