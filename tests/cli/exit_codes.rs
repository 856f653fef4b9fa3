//! The exit code of every kind of failure that needs no device, as the JSON object names it.

use crate::harness::{Folder, Outcome, command, npy, outcome};
use crate::schema::Schema;

/// Runs `words` on small inputs of attention, in which `change` breaks something.
fn failure(words: &str, change: impl FnOnce(&Folder)) -> Outcome {
    let folder = Folder::attention();
    change(&folder);
    let words = words.replace("IN", &folder.at("in")).replace("OUT", &folder.at("out"));
    let done = outcome(command().args(words.split(' ')).args(["--json", "--device", "reference"]));
    assert!(!folder.path().join("out").exists(), "{words}");
    done
}

/// The failure is of this kind, and has its exit code.
pub(crate) fn expect(done: Outcome, kind: &str) {
    let code: i32 = Schema::read().kinds()[kind].parse().unwrap();
    let json = done.failed(code, &[]).json();
    assert_eq!(json["error"]["kind"], kind, "{json}");
}

#[test]
fn flags_and_inputs() {
    let good = "history-backward -i IN -o OUT";
    let write =
        |name: &'static str, bytes: Vec<u8>| move |folder: &Folder| folder.write(name, &bytes);
    let nothing = |_: &Folder| {};
    expect(failure(&format!("{good} --nonsense"), nothing), "usage");
    expect(failure("nonsense", nothing), "usage");
    expect(failure("history-backward -i IN", nothing), "usage");
    expect(failure("history-backward -i IN -o IN/q.npy", nothing), "usage");
    expect(failure(good, |folder| folder.remove("in/q.npy")), "missing-array");
    let latent = npy("<f4", false, &[9, 2, 1, 4], &[0; 288]);
    expect(failure(good, write("in/latent.npy", latent)), "array");
    let shape = npy("<f4", false, &[24, 4], &[0; 384]);
    expect(failure(good, write("in/q.npy", shape)), "shape");
    let dtype = npy("<f8", false, &[6, 4, 4], &[0; 768]);
    expect(failure(good, write("in/q.npy", dtype)), "dtype");
    expect(failure(&format!("{good} --scale 0"), nothing), "parameter");
    let index = npy("<i4", false, &[6], &[0xff; 24]);
    expect(failure(good, write("in/positions.npy", index)), "index");
    let many =
        "sample paged-attention-backward --queries 16777216 --heads 16777216 --kv-heads 1 -o OUT";
    expect(failure(many, nothing), "too-large");
    expect(failure(good, write("in/q.npy", b"no array".to_vec())), "file");
    expect(failure("history-backward -i IN/nowhere -o OUT", nothing), "file");
}

#[test]
fn outputs() {
    let folder = Folder::attention();
    folder.write("file", b"");
    let words = format!("history-backward -i {} -o {}", folder.at("in"), folder.at("file/inner"));
    let mut words: Vec<_> = words.split(' ').collect();
    words.extend(["--json", "--device", "reference"]);
    expect(outcome(command().args(words)), "output");
}

#[test]
fn no_driver() {
    let mut devices = command();
    devices.args(["devices", "--json"]);
    devices.env("VK_DRIVER_FILES", "/nowhere.json").env("VK_ICD_FILENAMES", "/nowhere.json");
    let done = outcome(&mut devices).failed(1, &["install"]);
    let kind = done.json()["error"]["kind"].as_str().unwrap().to_owned();
    assert!(["no-driver", "no-loader"].contains(&kind.as_str()), "{kind}");
}
