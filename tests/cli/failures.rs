//! Everything that can be wrong with flags and inputs: exit code 2, one line that names it, nothing written.

use crate::harness::{Folder, npy, reference};

struct Case {
    folder: Folder,
    command: &'static str,
}

impl Case {
    fn attention() -> Self {
        Self { folder: Folder::attention(), command: "paged-attention-backward" }
    }

    fn mla() -> Self {
        Self { folder: Folder::mla(), command: "paged-attention-backward" }
    }

    fn mamba3() -> Self {
        Self { folder: Folder::mamba3(), command: "mamba3-preprocess-backward" }
    }

    fn array(self, name: &str, descr: &str, shape: &[usize], data: &[u8]) -> Self {
        self.folder.write(&format!("in/{name}.npy"), &npy(descr, false, shape, data));
        self
    }

    fn zeros(self, name: &str, shape: &[usize]) -> Self {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        self.array(name, "<f4", shape, &bytes)
    }

    fn integers(self, name: &str, shape: &[usize], values: &[i32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(name, "<i4", shape, &bytes)
    }

    fn without(self, name: &str) -> Self {
        self.folder.remove(&format!("in/{name}.npy"));
        self
    }

    fn refused(self, flags: &str, parts: &[&str]) {
        let (input, out) = (self.folder.at("in"), self.folder.at("out"));
        let words = format!("{} -i {input} -o {out} {flags}", self.command);
        reference(words.trim_end()).failed(2, parts);
        assert_eq!(self.folder.names(""), ["in"]);
    }
}

#[test]
fn missing_arrays_are_named() {
    for name in
        ["q", "k", "v", "output_gradient", "block_table", "sequence_lengths", "sequence_ids"]
    {
        Case::attention().without(name).refused("", &[&format!("`{name}` is missing")]);
    }
    Case::attention().without("positions").refused("", &["`positions` is missing"]);
    for name in ["projected", "dt_bias", "angle_gradient"] {
        Case::mamba3().without(name).refused("", &[&format!("`{name}` is missing")]);
    }
    let folder = Folder::new();
    reference(&format!("history-backward -o {}", folder.at("out")))
        .failed(2, &["`q` is missing", "--input"]);
}

#[test]
fn without_a_name_alike_the_arrays_found_are_listed() {
    Case::attention().without("q").refused(
        "",
        &["`q` is missing; the inputs hold block_table, causal, k, output_gradient, ", ", v"],
    );
    let mut case = Case::attention().without("q");
    for index in 0..12 {
        case = case.zeros(&format!("extra_{index}"), &[]);
    }
    case.refused("", &["the inputs hold block_table, ", " and 5 more"]);
}

#[test]
fn slips_of_names_are_pointed_out() {
    Case::attention()
        .without("output_gradient")
        .zeros("output_grad", &[6, 4, 3])
        .refused("", &["`output_gradient` is missing", "`output_grad`"]);
    Case::mamba3().without("dt_bias").zeros("dt-bias", &[4]).refused("", &["`dt-bias`"]);
}

#[test]
fn latent_history_has_its_own_arrays() {
    Case::mla().zeros("k", &[9, 2, 1, 4]).refused("", &["`latent`", "`k`"]);
    Case::mla().zeros("v", &[9, 2, 1, 4]).refused("", &["`latent`", "`v`"]);
    for name in ["q_position", "k_position"] {
        Case::mla().without(name).refused("", &[&format!("`{name}` is missing")]);
    }
    Case::mla().without("scale").refused("", &["`scale`", "--scale"]);
    Case::mla().zeros("latent", &[9, 2, 2, 4]).refused("", &["`latent`", "[9, 2, 2, 4]"]);
}

#[test]
fn shapes_that_disagree_are_named() {
    Case::attention()
        .zeros("v", &[9, 3, 2, 3])
        .refused("", &["`v`", "[9, 3, 2, 3]", "[9, 2, 2, 3]"]);
    Case::attention().zeros("q", &[6, 3, 4]).refused("", &["`q`", "divisible", "2 kv_heads"]);
    Case::attention()
        .zeros("q", &[24, 4])
        .refused("", &["`q`", "[queries, heads, key_dim]", "[24, 4]"]);
    Case::attention().zeros("statistics", &[6, 4, 4]).refused("", &["`statistics`", "2 or 3"]);
    Case::attention().zeros("output", &[6, 4, 4]).refused("", &["`output`"]);
    Case::mamba3().zeros("projected", &[6, 35]).refused("", &["`projected`", "36", "35"]);
    Case::mamba3().zeros("z_gradient", &[3, 5]).refused("", &["`z_gradient`"]);
    Case::attention()
        .integers("sequence_lengths", &[1], &[2])
        .refused("", &["`block_table`", "sequence_lengths"]);
    Case::attention().integers("positions", &[5], &[0; 5]).refused("", &["`positions`", "5"]);
    Case::attention()
        .integers("sequence_ids", &[6, 1], &[0; 6])
        .refused("", &["`sequence_ids`", "[6, 1]"]);
}

#[test]
fn indices_out_of_range_are_named_with_their_place() {
    let table = [-1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let width = 5;
    Case::attention()
        .integers("block_table", &[2, width], &table)
        .integers("sequence_lengths", &[2], &[4, 4])
        .refused("", &["`block_table`", "= -1", "9"]);
    Case::attention()
        .integers("block_table", &[2, width], &[0, 0, 0, 0, 0, 0, 9, 0, 0, 0])
        .integers("sequence_lengths", &[2], &[4, 4])
        .refused("", &["`block_table`", "= 9", "1, 1"]);
    Case::attention()
        .integers("sequence_lengths", &[2], &[4, 1000])
        .refused("", &["`sequence_lengths`", "1000"]);
    Case::attention().integers("sequence_lengths", &[2], &[-4, 1]).refused("", &["-4"]);
    Case::attention()
        .integers("sequence_ids", &[6], &[0, 0, 0, 0, 0, 2])
        .refused("", &["`sequence_ids`", "= 2", "5"]);
    Case::attention()
        .integers("positions", &[6], &[0, -7, 0, 0, 0, 0])
        .refused("", &["`positions`", "-7"]);
}

#[test]
fn element_types_are_named() {
    Case::attention()
        .array("q", "<f8", &[6, 4, 4], &[0; 768])
        .refused("", &["`q`", "float64", ".astype('float32')"]);
    Case::attention()
        .array("k", "<f2", &[9, 2, 2, 4], &[0; 288])
        .refused("", &["`k`", "float16", "float32"]);
    Case::attention().array("v", "|V2", &[9, 2, 2, 3], &[0; 216]).refused("", &["`v`", "bfloat16"]);
    Case::attention()
        .array("positions", "<f4", &[6], &[0; 24])
        .refused("", &["`positions`", "integer", "float32"]);
    Case::attention().array("scale", "<c8", &[], &[0; 8]).refused("", &["`scale`", "real number"]);
    Case::attention().zeros("scale", &[1]).refused("", &["`scale`", "0-d", "[1]"]);
}

/// What NumPy saves that is not an array of numbers of the right kind.
#[test]
fn other_things_that_numpy_saves_are_named() {
    let q = |descr: &str, size: usize, parts: &[&str]| {
        let parts = [&["`q`", "float32"], parts].concat();
        Case::attention().array("q", descr, &[6, 4, 4], &vec![0; 96 * size]).refused("", &parts);
    };
    let convert = ".astype('float32')";
    q("<i8", 8, &["(int64)", convert]);
    q("|b1", 1, &["(bool)", convert]);
    q("|O", 3, &["(Python objects)", convert]);
    q("<f16", 16, &["(longdouble)", convert]);
    q("<c8", 8, &["(complex)"]);
    q("<U1", 4, &["(text)"]);
    q("|S1", 1, &["(text)"]);
    q("<M8[s]", 8, &["(dates or times)"]);
    Case::attention()
        .array("positions", "<f8", &[6], &[0; 48])
        .refused("", &["`positions`", "(float64)", ".astype('int32')"]);
    Case::attention().array("scale", "<U3", &[], &[0; 12]).refused("", &["real number", "text"]);
    let structured = |text: &str| {
        let text = format!("{{'descr': {text}, 'fortran_order': False, 'shape': (6, 4, 4), }}\n");
        let head = [b"\x93NUMPY\x01\x00".as_slice(), &(text.len() as u16).to_le_bytes()].concat();
        let case = Case::attention();
        case.folder.write("in/q.npy", &[&head, text.as_bytes(), &[0; 384]].concat());
        case.refused("", &["`q`", "float32", "(structured)"]);
    };
    structured("[('a', '<f4')]");
    structured("[('a]', '<f4', (2,)), ('b', [('c', '|u1')])]");
    for pickle in [b"\x80\x04\x95\x97\x01\0\0\0".as_slice(), b"cnumpy.core.multiarray\n"] {
        let case = Case::attention();
        case.folder.write("in/q.npy", pickle);
        case.refused("", &["`q`", "Python pickle", "numpy.save"]);
    }
}

#[test]
fn arrays_that_savez_numbered_want_names() {
    let case = Case::attention().without("q").zeros("arr_0", &[6, 4, 4]);
    case.refused("", &["`q` is missing", "arr_0", "numpy.savez(path, q=…)"]);
}

#[test]
fn files_that_lie_are_refused() {
    Case::attention().array("q", "<f4", &[6, 4, 4], &[0; 383]).refused("", &["`q`", "384", "383"]);
    Case::attention().array("q", "<f4", &[6, 4, 4], &[0; 385]).refused("", &["`q`", "384", "385"]);
    let huge = usize::MAX / 8;
    Case::attention().array("q", "<f4", &[huge, 4, 4], &[0; 4]).refused("", &["`q`", "too large"]);
    Case::attention()
        .array("q", "<f4", &[1 << 40, 4, 4], &[0; 4])
        .refused("", &["`q`", "promises"]);
    let case = Case::attention();
    case.folder.write("in/q.npy", b"hello");
    case.refused("", &["`q`", "not a valid .npy"]);
    let case = Case::attention();
    case.folder.write("in/q.npy", b"PK\x03\x04\0\0\0\0");
    case.refused("", &["`q`", ".npz archive", "--input"]);
}

#[test]
fn folders_are_no_arrays() {
    let folder = |name: &str| {
        let case = Case::attention().without(name);
        std::fs::create_dir(case.folder.at(&format!("in/{name}.npy"))).unwrap();
        case
    };
    for name in ["q", "sequence_ids", "causal"] {
        let path = format!("{name}.npy): expected a .npy file, found a folder");
        folder(name).refused("", &[&format!("array `{name}` ("), &path]);
    }
    let case = Case::attention();
    let single = format!("--in q={}", case.folder.at("in"));
    case.refused(&single, &["array `q` (", "in): expected a .npy file, found a folder"]);
}

#[test]
fn parameters_out_of_range_are_named() {
    for scale in ["0", "-1", "nan", "inf", "1e-60"] {
        Case::attention().refused(&format!("--scale {scale}"), &["`scale`", "finite"]);
    }
    Case::attention().zeros("scale", &[]).refused("", &["`scale`", "found 0"]);
    Case::attention().array("causal", "|u1", &[], &[2]).refused("", &["`causal`", "0 or 1", "2"]);
    Case::attention().refused("--query-block-rows 0", &["--query-block-rows", "0"]);
    Case::mamba3().refused("--epsilon 0", &["`epsilon`", "> 0"]);
    Case::mamba3().refused("--dt-min 1", &["dt_min and dt_max", "dt_min = 1", "dt_max = 0.1"]);
    Case::mamba3().refused("--a-floor -1", &["`a_floor`", "-1"]);
    Case::mamba3().refused("--a-floor x", &["--a-floor", "'x'", "expected a number"]);
    Case::attention().refused("--scale 1e60", &["--scale", "1e60", "float32"]);
}

#[test]
fn gradients_must_exist_here() {
    let refused = |case: Case, list: &str, parts: &[&str]| {
        case.refused(&format!("--gradients {list}"), parts);
    };
    refused(Case::attention(), "latent", &["`gradients`", "q, k, v", "latent"]);
    refused(Case::attention(), "q,k_position", &["q, k, v", "k_position"]);
    refused(Case::mla(), "k", &["q_position", "latent", "k_position"]);
    refused(Case::attention(), "z", &["gradients", "`all` or", "z"]);
    refused(Case::attention(), ",", &["empty list"]);
    refused(Case::attention(), "q,k_gradient", &["k_gradient", "did you mean `k`?"]);
    refused(Case::mla(), "q-positions", &["did you mean `q_position`?"]);
    let history = |case: Case| Case { command: "history-backward", ..case };
    refused(history(Case::attention()), "q", &["k, v", "found q"]);
    refused(history(Case::mla()), "q_position", &["latent, k_position", "q_position"]);
    history(Case::attention()).refused("--save-statistics", &["--save-statistics"]);
}

#[test]
fn flags_that_are_not_there_are_refused() {
    for flag in ["--shards 0/2", "--nonsense"] {
        Case::attention().refused(flag, &[flag.split(' ').next().unwrap(), "--help"]);
    }
    Case::attention().refused("--algorithm tiled", &["--algorithm", "tiled", "ordered"]);
    for array in ["q", "=q.npy", "q="] {
        Case::attention().refused(&format!("--in {array}"), &["NAME=FILE.npy", array]);
    }
    Case::attention().refused("--compact-histroy", &["'--compact-history'"]);
    Case::attention().refused("--algorithm orderd", &["'ordered'"]);
    Case::attention().refused("--in q=/nowhere.npy", &["`q`", "/nowhere.npy"]);
    Case::attention().refused("-i /nowhere", &["--input", "/nowhere"]);
    let case = Case::attention();
    let single = format!("-i {}", case.folder.at("in/q.npy"));
    case.refused(&single, &["--input", "q.npy", "--in NAME=FILE.npy"]);
    Case::attention().refused("-i Cargo.toml", &["--input", "Cargo.toml", "archive"]);
    let folder = Folder::attention();
    reference(&format!("history-backward -i {}", folder.at("in"))).failed(2, &["--output"]);
}
