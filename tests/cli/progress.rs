//! The spinner: on terminals only, within their width, and gone at every end.

use std::process::{Command, Stdio};

use crate::harness::{Folder, command};
use crate::terminal::{ERASE, shown, terminal};

const SAMPLE: &str = "sample mamba3-preprocess-backward --rows 6000 -o";

fn words(words: &str) -> Command {
    let mut command = command();
    command.args(words.split(' ')).env("TERM", "xterm");
    command
}

#[test]
fn a_spinner_names_the_steps_and_goes() {
    let folder = Folder::new();
    for columns in [200, 80, 20, 6] {
        let (text, code) =
            shown(columns, &mut words(&format!("{SAMPLE} {}", folder.at("in"))), false);
        assert_eq!(code, Some(0), "{text:?}");
        assert!(text.contains(ERASE) && text.ends_with(ERASE), "{text:?}");
        let widest = text.split(ERASE).map(|frame| frame.chars().count()).max().unwrap();
        assert!(widest <= usize::from(columns), "{columns}: {text:?}");
        let steps = ["making random arrays", "writing "];
        assert!(columns < 80 || steps.iter().all(|step| text.contains(step)), "{text:?}");
    }
    let run = format!("--device reference mamba3-preprocess-backward -i {}", folder.at("in"));
    let (text, _) = shown(80, &mut words(&format!("{run} -o {}", folder.at("out"))), false);
    for step in ["reading projected", "computing", "writing "] {
        assert!(text.contains(step), "{text:?}");
    }
    // An error stands alone on its line.
    folder.write("in/z_gradient.npy", b"");
    let (text, code) = shown(80, &mut words(&format!("{run} -o {}", folder.at("out"))), false);
    assert_eq!(code, Some(2));
    let (spinner, error) = text.rsplit_once(ERASE).unwrap();
    assert!(
        spinner.contains("reading") && error.starts_with("error: array `z_gradient`"),
        "{text:?}"
    );
}

#[test]
fn an_interrupt_takes_it_back() {
    if crate::interrupts::is_ignored(rustix::process::Signal::INT) {
        return;
    }
    let folder = Folder::new();
    let sample = "sample mamba3-preprocess-backward --rows 60000 -o";
    let mut sample = words(&format!("{sample} {}", folder.at("in")));
    let (text, code) = shown(80, &mut sample, true);
    assert_eq!(code, Some(130), "{text:?}");
    assert!(text.contains("making random arrays") && text.ends_with(ERASE), "{text:?}");
    assert!(folder.names("").is_empty());
}

#[test]
fn nothing_is_shown_to_others() {
    let folder = Folder::new();
    for flag in ["-q", "--json", "-v"] {
        let words = &mut words(&format!("{SAMPLE} {} {flag}", folder.at("in")));
        let (text, code) = shown(80, words, false);
        assert_eq!((text.as_str(), code), ("", Some(0)), "{flag}");
    }
    let plain = &mut words(&format!("{SAMPLE} {}", folder.at("in")));
    assert_eq!(shown(80, plain.env("TERM", "dumb"), false).0.matches('\x1b').count(), 0);
    // A pipe as the standard error, a terminal as the standard output.
    let (_reader, writer) = terminal(80);
    let mut piped = words(&format!("{SAMPLE} {}", folder.at("in")));
    let output = piped.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output();
    assert!(output.unwrap().stderr.is_empty());
}
