//! `backslang run`.

use std::process::Command;

use backslang::runtime::Runtime;
use half::{bf16, f16};

use crate::SCALE;
use crate::harness::{Folder, Outcome, npy, outcome, run};

/// Runs words in a folder, with the device and the validation that the environment asks for.
fn shell(folder: &Folder, line: &str) -> Outcome {
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_backslang")).parent().unwrap();
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap());
    outcome(Command::new("sh").args(["-c", line]).current_dir(folder.path()).env("PATH", path))
}

/// The first block of this language in the page.
fn block<'a>(page: &'a str, language: &str, has: &str) -> &'a str {
    let start = format!("```{language}\n");
    let blocks = page.split(start.as_str()).skip(1).filter_map(|rest| rest.split_once("\n```"));
    blocks.map(|(block, _)| block).find(|block| block.contains(has)).unwrap()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// The page's file and command, as they stand there.
pub(crate) fn worked_example(_: &Runtime) {
    let page = std::fs::read_to_string("docs/user-kernels.md").unwrap();
    let text = block(&page, "slang", "push_constant");
    assert!(text.lines().filter(|line| !line.is_empty()).count() <= 20, "as the README says");
    let folder = Folder::new();
    folder.write("rms_norm.slang", text.as_bytes());
    let value = |i: usize, j: usize| ((i * 37 + j * 11) % 29) as f32 / 7.0 - 2.0;
    let x: Vec<_> = (0..3200).map(|i| value(i / 32, i % 32)).collect();
    let weight: Vec<_> = (0..32).map(|j| value(5, j)).collect();
    folder.write("x.npy", &npy("<f4", false, &[100, 32], &bytes(&x)));
    folder.write("weight.npy", &npy("<f4", false, &[32], &bytes(&weight)));
    shell(&folder, block(&page, "sh", "backslang run rms_norm.slang")).succeeded();
    assert!(folder.head("out/y.npy").contains("(100, 32)"));
    let found = floats(&folder.data("out/y.npy"));
    for (row, y) in x.chunks(32).zip(found.chunks(32)) {
        let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 32.0;
        for ((&x, &weight), &y) in row.iter().zip(&weight).zip(y) {
            let expected = f64::from(x) * f64::from(weight) / (mean + 1e-5).sqrt();
            assert!((f64::from(y) - expected).abs() <= 1e-5 * expected.abs(), "{y} {expected}");
        }
    }
}

/// Every word of x goes to y, but for the last.
const COPY: &str = r#"
struct PushConstants { uint x_index, y_index, count; };
[[vk::push_constant]] PushConstants push;
[[vk::binding(0, 0)]] RWByteAddressBuffer storage_buffers[];
[shader("compute")] [numthreads(1, 1, 1)]
void main(uint3 group : SV_GroupID) {
    uint i = group.y * 2 + group.x;
    if (i + 1 < push.count) storage_buffers[push.y_index].Store(4 * i, storage_buffers[push.x_index].Load(4 * i));
}
"#;

/// Values keep their bits; what the kernel leaves out shows, or stays as it was.
pub(crate) fn types(runtime: &Runtime) {
    let folder = Folder::new();
    folder.write("copy.slang", COPY.as_bytes());
    let halves = |encode: fn(f32) -> u16| {
        (0..8u8).flat_map(|i| encode(f32::from(i) - 2.5).to_le_bytes()).collect::<Vec<_>>()
    };
    let f16s = halves(|v| f16::from_f32(v).to_bits());
    let bf16s = halves(|v| bf16::from_f32(v).to_bits());
    let words: Vec<u8> = [1u32, 2, u32::MAX, 4].into_iter().flat_map(u32::to_le_bytes).collect();
    let longs: Vec<u8> = [1i64, 2, -1, 4].into_iter().flat_map(i64::to_le_bytes).collect();
    for (descr, shape, data, kind, flags, stored) in [
        ("<f4", 4, &bytes(&[1.0, -2.0, 3.5, 0.0]), "f32", "", &bytes(&[1.0, -2.0, 3.5])),
        ("<f2", 8, &f16s, "f16", "", &f16s[..12].to_vec()),
        ("|V2", 8, &bf16s, "bf16", "--dtype bf16", &bf16s[..12].to_vec()),
        ("<u4", 4, &words, "u32", "", &words[..12].to_vec()),
        ("<i8", 4, &longs, "i32", "", &words[..12].to_vec()),
    ] {
        folder.write("x.npy", &npy(descr, false, &[shape], data));
        let line = format!(
            "backslang run copy.slang --in x=x.npy --set count=4 --groups count/2,2 \
             --out 'y=[{shape}]:{kind}' -o out --json {flags}"
        );
        let report = shell(&folder, &line).succeeded().json();
        assert_eq!(report["outputs"]["y"]["dtype"], kind);
        assert_eq!(report["device"], runtime.device().name.as_str());
        assert_eq!(folder.data("out/y.npy"), [stored, [0xff; 4].as_slice()].concat(), "{kind}");
    }
    folder.write("y.npy", &npy("<u4", false, &[4], &[7; 16]));
    folder.write("x.npy", &npy("<u4", false, &[4], &words));
    let line = "backslang run copy.slang --in x=x.npy --in y=y.npy --set count=4 --groups 2,2 \
                --out 'y=[4]:u32' -o out -q";
    shell(&folder, line).succeeded();
    assert_eq!(folder.data("out/y.npy"), [&words[..12], &[7; 4]].concat());
}

/// The layer sees what goes beyond an array, by the heap of `storage`.
pub(crate) fn bounds(runtime: &Runtime) {
    // Under checks in its shaders this driver crashes.
    if runtime.device().name.contains("SwiftShader") {
        return;
    }
    let folder = Folder::new();
    let text = SCALE.replace("[[vk::binding(0, 0)]] RWByteAddressBuffer storage_buffers[];", "");
    let text = text.replace("storage_buffers[push.x_index]", "push.x_index");
    let text = text.replace("storage_buffers[push.y_index]", "push.y_index");
    folder.write("scale.slang", text.as_bytes());
    folder.write("x.npy", &npy("<f4", false, &[4], &[0; 16]));
    let line = "backslang run scale.slang --in x=x.npy --set count=4 --set factor=2 \
                --out 'y=[4]:f32' -o out --validate=core,gpu";
    shell(&folder, line).succeeded();
    let beyond = shell(&folder, &line.replace("count=4", "count=5"));
    assert_eq!(beyond.code, Some(1), "{beyond:?}");
    assert!(beyond.stderr.contains("access out of bounds"), "{beyond:?}");
}

pub(crate) fn diagnostics() {
    let folder = Folder::new();
    folder.write("k.slang", SCALE.replace("push.factor", "push.facter").as_bytes());
    let said = run(["run", &folder.at("k.slang"), "-o", "out", "--json"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    let place = format!("{}:23:", folder.at("k.slang"));
    assert!(said.stderr.starts_with("error: ") && said.stderr.contains(&place), "{said:?}");
    let error = &said.json()["error"];
    assert_eq!(error["kind"], "slang");
    assert!(error["message"].as_str().unwrap().contains(&place));
}

pub(crate) fn flags() {
    let folder = Folder::new();
    folder.write("copy.slang", COPY.as_bytes());
    folder.write("x.npy", &npy("<f4", false, &[4], &[0; 16]));
    folder.write("long.npy", &npy("<i8", false, &[1], &(1i64 << 32).to_le_bytes()));
    let file = folder.at("copy.slang");
    let [x, long] = ["x.npy", "long.npy"].map(|name| format!("--in x={}", folder.at(name)));
    let (set, out) = ("--set count=4", "--out y=[4]:f32");
    for (flags, parts) in [
        (format!("{x} {out}"), ["not set", "count (uint)"]),
        (format!("{x} {out} --set count"), ["--set", "`count`"]),
        (format!("{x} {out} {set} --set cout=4"), ["`cout`", "`count`?"]),
        (format!("{x} {set}"), ["`y`", "--out"]),
        (format!("{set} {out}"), ["`x`", "--in"]),
        (format!("{x} {set} {out} --in z={file}"), ["tensor `z`", "x, y"]),
        (format!("{x} {set} {out} --out z=[4]:f32"), ["tensor `z`", "x, y"]),
        (format!("{x} {set} {out} {out}"), ["--out", "twice"]),
        (format!("{x} {set} {out} --groups n/2"), ["--groups", "`n`"]),
        (format!("{x} {set} {out} --groups 1,1,1"), ["--groups", "found 3"]),
        (format!("{x} {set} {out} --entry man"), ["`man`", "`main`?"]),
        (format!("{x} {set} {out} --device reference"), ["--device", "reference"]),
        (format!("{long} {set} {out}"), ["`x`", "4294967296"]),
        (format!("{x} {set} --in y={} --out y=[5]:f32", folder.at("x.npy")), ["`y`", "[5]"]),
    ] {
        let words = format!("run {file} -o {} {flags}", folder.at("out"));
        run(words.split_whitespace()).failed(2, &parts);
    }
    assert_eq!(folder.names(""), ["copy.slang", "long.npy", "x.npy"]);
}

pub(crate) fn plan() {
    let folder = Folder::new();
    folder.write("scale.slang", SCALE.as_bytes());
    folder.write("x.npy", &npy("<f4", false, &[4], &[0; 16]));
    let words = format!(
        "run {} --in x={} --set count=100 --set factor=0.5 --groups count/size --out y=[count]:f32 --plan",
        folder.at("scale.slang"),
        folder.at("x.npy")
    );
    let text = run(words.split(' ')).succeeded().stdout;
    assert!(text.contains("run scale: 4 x 1 workgroups, size 32, doubled false\n"), "{text}");
    let plan = run(words.split(' ').chain(["--json"])).succeeded().json()["plan"].clone();
    assert_eq!(plan["sizes"], serde_json::json!({ "count": 100, "factor": 0.5 }));
    assert_eq!(plan["steps"][0]["workgroups"], serde_json::json!([4, 1]));
    assert_eq!(plan["steps"][0]["constants"]["doubled"], false);
    assert_eq!(plan["bytes"], serde_json::json!({ "inputs": 16, "outputs": 400 }));
}
