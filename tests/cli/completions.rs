//! Scripts that complete the command's words.

use crate::harness::run;

#[test]
fn every_shell_has_a_script_that_knows_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let said = run(["completions", shell]).succeeded();
        assert!(said.stderr.is_empty(), "{said:?}");
        for part in ["paged-attention-backward", "compact-history", "history-backward", "validate"]
        {
            assert!(said.stdout.contains(part), "{shell}: {part}");
        }
        let json = run(["completions", shell, "--json"]).succeeded().json();
        assert_eq!(json["completions"], said.stdout.as_str());
        assert_eq!(json["command"], "completions");
    }
    run(["completions", "tcsh"])
        .failed(2, &["tcsh", "bash", "zsh", "fish", "powershell", "elvish"]);
    run(["completions"]).failed(2, &["<SHELL>"]);
}

/// Completes the last of `words` as bash does; nothing where there is no bash.
#[cfg(unix)]
fn completed(words: &str) -> Option<Vec<String>> {
    let script = run(["completions", "bash"]).succeeded().stdout;
    let last = words.split(' ').count() - 1;
    let call =
        r#"_backslang backslang "${COMP_WORDS[COMP_CWORD]}"; printf '%s\n' "${COMPREPLY[@]}""#;
    let whole = format!("{script}\nCOMP_WORDS=({words} ''); COMP_CWORD={last}\n{call}\n");
    let output = std::process::Command::new("bash").args(["--norc", "-c", &whole]).output().ok()?;
    let lines = String::from_utf8(output.stdout).unwrap();
    Some(lines.lines().map(str::to_owned).collect())
}

#[cfg(unix)]
#[test]
fn bash_completes_words() {
    let Some(commands) = completed("backslang paged-attention-b") else { return };
    assert_eq!(commands, ["paged-attention-backward"]);
    assert!(completed("backslang mamba3").unwrap().contains(&"mamba3-preprocess".into()));
    assert_eq!(
        completed("backslang mamba3-preprocess --in").unwrap(),
        ["--input", "--in", "--inner-size"]
    );
    assert_eq!(completed("backslang history-backward --comp").unwrap(), ["--compact-history"]);
    assert_eq!(completed("backslang check his").unwrap(), ["history-backward"]);
    assert_eq!(completed("backslang sample history-backward --see").unwrap(), ["--seed"]);
    assert_eq!(completed("backslang completions f").unwrap(), ["fish"]);
}

/// What fish offers for the last word; nothing where there is no fish.
#[cfg(unix)]
fn offered(words: &str) -> Option<Vec<String>> {
    let script = run(["completions", "fish"]).succeeded().stdout;
    let whole = format!("{script}\ncomplete -C '{words}'\n");
    let output = std::process::Command::new("fish").args(["--no-config", "-c", &whole]).output();
    let lines = String::from_utf8(output.ok()?.stdout).unwrap();
    Some(lines.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect())
}

#[cfg(unix)]
#[test]
fn fish_completes_words() {
    let Some(commands) = offered("backslang paged-attention-b") else { return };
    assert_eq!(commands, ["paged-attention-backward"]);
    assert_eq!(offered("backslang history-backward --comp").unwrap(), ["--compact-history"]);
    assert_eq!(offered("backslang check his").unwrap(), ["history-backward"]);
    assert_eq!(offered("backslang sample history-backward --see").unwrap(), ["--seed"]);
    assert_eq!(offered("backslang completions f").unwrap(), ["fish"]);
}
