//! Random inputs are valid, and the same for the same seed.

use crate::harness::{Folder, reference, run};

#[test]
fn every_sample_is_valid_input() {
    for (command, sizes) in [
        ("mamba3-preprocess", ""),
        ("mamba3-preprocess", "--rows 0 --state-size 0 --dtype f16"),
        ("paged-attention", ""),
        ("paged-attention", "--mla --dtype f16"),
        ("paged-attention", "--queries 0"),
        ("paged-append", ""),
        ("paged-append", "--mla --dtype bf16"),
        ("paged-append", "--queries 0 --pages 0"),
        ("paged-append", "--queries 7 --sequences 1 --pages 1 --page-size 7"),
        ("mamba3-preprocess-backward", ""),
        ("mamba3-preprocess-backward", "--rows 1 --heads 0 --rope-angles 0"),
        ("paged-attention-backward", ""),
        ("paged-attention-backward", "--mla --heads 3 --position-dim 5"),
        ("paged-attention-backward", "--heads 3"),
        ("paged-attention-backward", "--pages 1 --page-size 1"),
        ("paged-attention-backward", "--pages 0 --queries 3"),
        ("paged-attention-backward", "--sequences 40 --pages 5 --queries 7"),
        ("paged-attention-backward", "--sequences 1 --queries 300 --kv-heads 4"),
        ("history-backward", ""),
        ("history-backward", "--mla"),
        ("mamba3-preprocess-backward", "--dtype f16"),
        ("paged-attention-backward", "--dtype bf16"),
        ("history-backward", "--mla --dtype f16"),
    ] {
        let folder = Folder::sample(command, sizes);
        let dtype = if sizes.contains("bf16") { "--dtype bf16" } else { "" };
        let words = format!("{command} -i {} -o {} {dtype}", folder.at("in"), folder.at("out"));
        reference(words.trim_end()).succeeded();
        assert_eq!(
            folder.names("in").contains(&"statistics.npy".into()),
            command == "history-backward"
        );
    }
}

#[test]
fn a_seed_says_it_all() {
    let folder = Folder::new();
    let sample = |seed: u32, name: &str| {
        let path = folder.at(name);
        run(["sample", "paged-attention-backward", "--seed", &seed.to_string(), "-o", &path])
            .succeeded();
        folder.read(name)
    };
    assert_eq!(sample(1, "a.npz"), sample(1, "b.npz"));
    assert_ne!(sample(2, "c.npz"), sample(1, "a.npz"));
}

#[test]
fn pages_are_shared() {
    let folder = Folder::attention();
    let table = folder.data("in/block_table.npy");
    let (first, second) = table.split_at(table.len() / 2);
    assert_eq!(first[..4], second[..4]);
}

#[test]
fn impossible_sizes_are_refused() {
    let folder = Folder::new();
    let sample = |sizes: &str| {
        let words = format!("sample paged-attention-backward -o {} {sizes}", folder.at("in"));
        run(words.split(' '))
    };
    sample("--heads 3 --kv-heads 2").failed(2, &["`q`", "divisible", "2 kv_heads"]);
    sample("--key-dim 2000").failed(2, &["1024"]);
    sample("--page-size 0").failed(2, &["page_size"]);
    sample("--sequences 0").failed(2, &["--sequences"]);
    sample("--queries 16777216 --heads 16777216 --kv-heads 1 --key-dim 1000")
        .failed(2, &["`q`", "fits memory"]);
    sample("--queries 99999999999").failed(2, &["--queries"]);
    sample("--position-dim 4").failed(2, &["--mla"]);
    sample("--mla --value-dim 4").failed(2, &["--value-dim"]);
    sample("--mla --kv-heads 2 --heads 2").failed(2, &["one key/value head"]);
    assert!(folder.names("").is_empty());
}

/// Each size alone at the ends of its range and at odd values: refused as such, or accepted by the command.
#[test]
fn every_size_is_refused_or_accepted() {
    let attention =
        "queries heads kv-heads key-dim value-dim page-size pages sequences position-dim";
    let mamba3 = "rows inner-size bc-rows state-size heads rope-angles";
    let append = "queries kv-heads key-dim value-dim page-size pages sequences position-dim";
    for (command, sizes, latent) in [
        ("mamba3-preprocess", mamba3, ""),
        ("paged-attention", attention, ""),
        ("paged-append", append, ""),
        ("paged-append", append, "--mla"),
        ("mamba3-preprocess-backward", mamba3, ""),
        ("paged-attention-backward", attention, ""),
        ("history-backward", attention, "--mla"),
    ] {
        for size in sizes.split(' ') {
            let mut accepted = 0;
            for value in [0, 1, 3, 33] {
                let folder = Folder::new();
                let (input, out) = (folder.at("in"), folder.at("out"));
                let words = format!("sample {command} -o {input} --{size} {value} {latent}");
                let made = run(words.split_whitespace());
                if made.code == Some(2) {
                    made.failed(2, &[]);
                    assert!(folder.names("").is_empty(), "{words}");
                } else {
                    reference(&format!("{command} -i {input} -o {out}")).succeeded();
                    accepted += 1;
                }
            }
            let none = match size {
                "value-dim" => !latent.is_empty(),
                "position-dim" => latent.is_empty(),
                _ => false,
            };
            assert_eq!(accepted == 0, none, "{command} --{size}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_place_is_looked_at_before_arrays_are_made() {
    // Arrays of this size would take long, and fill the memory.
    let words = "sample mamba3-preprocess-backward --rows 10000000 -o /proc/self";
    run(words.split(' ')).failed(1, &["cannot write /proc/self/projected.npy"]);
}
