//! What is written, and what is not when something fails.

use std::fs;

use crate::harness::{Folder, reference, run};

#[test]
fn other_files_in_the_folder_stay() {
    let folder = Folder::mamba3();
    fs::create_dir_all(folder.path().join("deep/er")).unwrap();
    folder.write("deep/er/mine.npy", b"mine");
    folder.write("deep/er/dt_bias_partial.npy", b"old");
    let words =
        format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at("deep/er"));
    reference(&words).succeeded();
    let expected =
        ["dt_bias_gradient.npy", "dt_bias_partial.npy", "mine.npy", "projected_gradient.npy"];
    assert_eq!(folder.names("deep/er"), expected);
    assert_eq!(folder.read("deep/er/mine.npy"), b"mine");
    assert_eq!(folder.data("deep/er/dt_bias_partial.npy").len(), 96);
}

#[test]
fn folders_and_archives_are_made_when_missing() {
    let folder = Folder::mamba3();
    for out in ["new/folder", "other/new.npz"] {
        let words =
            format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at(out));
        reference(&words).succeeded();
    }
    assert_eq!(folder.names("new/folder").len(), 3);
    assert_eq!(folder.names("other"), ["new.npz"]);
}

#[test]
fn the_same_call_writes_the_same_bytes() {
    let folder = Folder::mamba3();
    let result = |out: &str| {
        let words =
            format!("mamba3-preprocess-backward -i {} -o {}", folder.at("in"), folder.at(out));
        reference(&words).succeeded();
        folder.read(out)
    };
    assert_eq!(result("a.npz"), result("b.npz"));
}

#[test]
fn an_input_archive_is_not_replaced() {
    let folder = Folder::mamba3();
    let archive = folder.at("in.npz");
    let sizes = crate::harness::MAMBA3;
    let words = format!("sample mamba3-preprocess-backward -o {archive} {sizes}");
    run(words.split(' ')).succeeded();
    let before = folder.read("in.npz");
    let other = folder.at("in/../in.npz");
    let words = format!("mamba3-preprocess-backward -i {} -i {archive} -o", folder.at("in"));
    reference(&format!("{words} {other}")).failed(2, &["--output", "--input", "in.npz"]);
    assert_eq!(folder.read("in.npz"), before);
    reference(&format!("{words} {}", folder.at("out.npz"))).succeeded();
}

#[test]
fn a_place_that_cannot_be_written_is_a_failure_of_the_work() {
    let folder = Folder::mamba3();
    folder.write("file", b"");
    let words = format!("mamba3-preprocess-backward -i {} -o", folder.at("in"));
    reference(&format!("{words} {}", folder.at("file/inner"))).failed(1, &["file/inner"]);
    reference(&format!("{words} {}", folder.at("file"))).failed(2, &["--output", "folder", "file"]);
    fs::create_dir_all(folder.path().join("out/projected_gradient.npy")).unwrap();
    reference(&format!("{words} {}", folder.at("out")))
        .failed(1, &["projected_gradient.npy", "folder"]);
    assert_eq!(folder.names("out"), ["projected_gradient.npy"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_place_that_cannot_be_written_is_found_before_the_device() {
    let folder = Folder::mamba3();
    for out in ["/proc/self", "/proc/self/new", "/proc/x.npz"] {
        let words = "--device no-such-device mamba3-preprocess-backward -o";
        let words = format!("{words} {out} -i {}", folder.at("in"));
        run(words.split(' ')).failed(1, &["cannot write", out]);
    }
    fs::create_dir_all(folder.path().join("taken/dt_bias_gradient.npy")).unwrap();
    let taken = folder.at("taken");
    let words = format!("--device no-such-device mamba3-preprocess-backward -o {taken}");
    run(words.split(' ').chain(["-i", &folder.at("in")]))
        .failed(1, &["dt_bias_gradient.npy", "folder"]);
    assert_eq!(folder.names("taken"), ["dt_bias_gradient.npy"]);
    fs::remove_dir_all(taken).unwrap();
    let out = folder.at("made/for/nothing");
    let words = format!("--device no-such-device mamba3-preprocess-backward -o {out}");
    run(words.split(' ').chain(["-i", &folder.at("in")])).failed(1, &["Vulkan"]);
    assert_eq!(folder.names(""), ["in"]);
}

/// A limit on the size of files stands in for a full disk.
#[cfg(unix)]
#[test]
fn a_write_that_fails_leaves_everything_as_it_was() {
    use crate::harness::outcome;
    let folder = Folder::sample("mamba3-preprocess-backward", "--rows 100");
    fs::create_dir(folder.path().join("out")).unwrap();
    folder.write("out/dt_bias_partial.npy", b"old");
    // With the signal ignored, as Python does, and as shells leave it.
    for (trap, out, left) in [
        ("trap '' XFSZ", "out", vec!["dt_bias_partial.npy"]),
        (":", "out", vec!["dt_bias_partial.npy"]),
        ("trap '' XFSZ", "fresh", vec![]),
        (":", "x.npz", vec![]),
    ] {
        let script = format!(
            "{trap}; ulimit -f 8; exec {} --device reference mamba3-preprocess-backward -i {} -o {}",
            env!("CARGO_BIN_EXE_backslang"),
            folder.at("in"),
            folder.at(out),
        );
        let mut shell = std::process::Command::new("sh");
        outcome(shell.args(["-c", &script])).failed(1, &["cannot write"]);
        assert_eq!(folder.names(out), left);
    }
    assert_eq!(folder.read("out/dt_bias_partial.npy"), b"old");
    assert_eq!(folder.names(""), ["in", "out"]);
}

/// What stands in the place of an output: links are replaced and lead to nothing that is written.
#[cfg(unix)]
#[test]
fn links_are_replaced_and_their_targets_stay() {
    use std::os::unix::fs::symlink;
    let folder = Folder::mamba3();
    let words = format!("mamba3-preprocess-backward -i {} -o", folder.at("in"));
    fs::create_dir(folder.path().join("out")).unwrap();
    folder.write("precious.npy", b"mine");
    symlink("../precious.npy", folder.path().join("out/projected_gradient.npy")).unwrap();
    symlink("../nothing", folder.path().join("out/dt_bias_partial.npy")).unwrap();
    symlink("out", folder.path().join("link")).unwrap();
    symlink("nothing.npz", folder.path().join("link.npz")).unwrap();
    reference(&format!("{words} {}", folder.at("link"))).succeeded();
    reference(&format!("{words} {}", folder.at("link.npz"))).succeeded();
    assert_eq!(folder.read("precious.npy"), b"mine");
    assert_eq!(folder.data("out/dt_bias_partial.npy").len(), 96);
    assert_eq!(folder.names(""), ["in", "link", "link.npz", "out", "precious.npy"]);
    let broken = folder.path().join("broken");
    symlink("nothing", &broken).unwrap();
    reference(&format!("{words} {}", folder.at("broken")))
        .failed(1, &["broken", "link to nothing"]);
    assert!(broken.is_symlink());
}

#[test]
fn the_ending_tells_an_archive_from_a_folder() {
    let folder = Folder::mamba3();
    let words = format!("mamba3-preprocess-backward -i {} -o", folder.at("in"));
    for out in ["a.npz/", "b.npz.d", "c.d"] {
        reference(&format!("{words} {}", folder.at(out))).succeeded();
        assert_eq!(folder.names(out).len(), 3, "{out}");
    }
    for out in ["d.npz", "e.NPZ"] {
        reference(&format!("{words} {}", folder.at(out))).succeeded();
        assert!(folder.path().join(out).is_file(), "{out}");
    }
    reference(&format!("{words} {}", folder.at("f.npy"))).failed(2, &["--output", "f.npy"]);
}

/// The folder of the inputs takes the outputs as well, and keeps the inputs.
#[test]
fn inputs_and_outputs_may_share_a_folder() {
    let folder = Folder::mamba3();
    let before = folder.names("in");
    let read = |names: &[String]| {
        names.iter().map(|name| folder.read(&format!("in/{name}"))).collect::<Vec<_>>()
    };
    let inputs = read(&before);
    let input = folder.at("in");
    reference(&format!("mamba3-preprocess-backward -i {input} -o {input}")).succeeded();
    assert_eq!(read(&before), inputs);
    assert_eq!(folder.names("in").len(), before.len() + 3);
}

/// A folder that goes away while its files are written is an error, and does not come back.
#[cfg(unix)]
#[test]
fn a_folder_may_go_away_meanwhile() {
    use crate::harness::command;
    let folder = Folder::new();
    let out = folder.path().join("out");
    let words = format!("sample mamba3-preprocess-backward --rows 20000 -o {}", folder.at("out"));
    let child = command().args(words.split(' ')).stderr(std::process::Stdio::piped()).spawn();
    while !out.exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    fs::rename(&out, folder.path().join("elsewhere")).unwrap();
    let done = child.unwrap().wait_with_output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: cannot write") && said.lines().count() == 1, "{said}");
    assert_eq!(folder.names(""), ["elsewhere"]);
}
