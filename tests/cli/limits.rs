//! What the system gives to the command, taken away.

use std::process::Command;

use crate::exit_codes::expect;
use crate::harness::{Folder, command, command_with_libraries, npy, outcome, run, unwritable};

/// A standard output that takes nothing is a failure, but for a pipe whose reader has left.
#[test]
fn standard_output() {
    let folder = Folder::mamba3();
    let built = env!("CARGO_BIN_EXE_backslang");
    let run = format!(
        "--device reference mamba3-preprocess-backward -i {} -o {}",
        folder.at("in"),
        folder.at("out")
    );
    let shell = |script: String| outcome(Command::new("bash").args(["-c", &script]));
    for words in
        ["--help", "--version --json", "kernels", "kernels --json", "completions fish", &run]
    {
        shell(format!("{built} {words} > /dev/full")).failed(1, &["standard output"]);
        let left = format!("{built} {words} | head -c 0; exit ${{PIPESTATUS[0]}}");
        let closed = format!("{built} {words} >&- <&-; a=$?; {built} {words} 2>&- | cat; exit $a");
        for script in [left, closed] {
            let done = shell(script).succeeded();
            assert!(done.stderr.is_empty(), "{words}: {done:?}");
        }
    }
    let closed = shell(format!("{built} --device reference nonsense >&- 2>&- <&-"));
    assert_eq!(closed.code, Some(2));
    assert_eq!(folder.names("out").len(), 3);
}

/// What cannot be said on standard error is lost, and all else is as it was.
#[test]
fn standard_error() {
    let folder = Folder::mamba3();
    let (input, out) = (folder.at("in"), folder.at("out"));
    let computing = format!("mamba3-preprocess-backward -i {input} -o {out} --device reference");
    for (words, code) in [
        ("--help", 0),
        ("completions fish", 0),
        ("kernels -vvv", 0),
        ("nonsense", 2),
        ("history-backward --json", 2),
        (&format!("{computing} -vvv --in other={input}/z.npy"), 0),
        (&format!("{computing} --in projected={input} --json"), 2),
    ] {
        let words: Vec<_> = words.split(' ').collect();
        let heard = run(&words);
        for (stderr, name) in unwritable() {
            let lost = outcome(command().args(&words).stderr(stderr));
            assert_eq!((lost.code, heard.code), (Some(code), Some(code)), "{words:?}: {name}");
            assert_eq!(lost.stdout.lines().count(), heard.stdout.lines().count(), "{words:?}");
        }
    }
    assert_eq!(folder.names("out").len(), 3);
}

/// A limit on the process's memory stands in for a machine with little.
#[test]
fn memory_of_the_host() {
    let folder = Folder::mamba3();
    let head = npy("<f4", false, &[1 << 30, 36], &[]);
    folder.write("in/projected.npy", &head);
    let file = std::fs::File::options().write(true).open(folder.at("in/projected.npy")).unwrap();
    file.set_len(head.len() as u64 + 4 * 36 * (1 << 30)).unwrap();
    let script = format!(
        "ulimit -v 2000000; exec {} --json --device reference mamba3-preprocess-backward -i {} -o {}",
        env!("CARGO_BIN_EXE_backslang"),
        folder.at("in"),
        folder.at("out"),
    );
    expect(outcome(Command::new("sh").args(["-c", &script])), "out-of-memory");
    assert_eq!(folder.names(""), ["in"]);
}

/// A library that is none stands in for a machine without a loader.
#[test]
fn no_loader() {
    let folder = Folder::new();
    folder.write("libvulkan.so.1", b"not a library");
    folder.write("libvulkan.so", b"not a library");
    for words in ["devices", "check"] {
        let mut alone = command_with_libraries(folder.path());
        expect(outcome(alone.args([words, "--json"])), "no-loader");
    }
    outcome(command_with_libraries(folder.path()).arg("kernels")).succeeded();
}
