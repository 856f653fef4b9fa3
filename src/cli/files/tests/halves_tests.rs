//! Element types: which spellings are read as what, and what is said of the others.

use backslang::Dtype;

use super::{Folder, dictionary, npy};
use crate::cli::files::descr::Descr;
use crate::cli::files::{Entry, Wanted};

/// Which of the spellings each wish takes, and as what. No other type is ever read, and float16 never as bfloat16.
#[test]
fn halves_are_read_as_what_is_asked_for() {
    use Dtype::{Bf16, F16, F32};
    let spellings = ["<f4", ">f4", "<f2", ">f2", "|V2", "<V2", ">V2", "<u2", ">u2", "bfloat16"];
    let others = ["<f8", "<i2", "|V4", "<u4", "|u1", "<f16", "|b1", "bfloat8"];
    let of = |descr: &str| match &descr[1..] {
        "f4" => F32,
        "f2" => F16,
        _ => Bf16,
    };
    let wishes = [F32, F16, Bf16].into_iter().flat_map(|dtype| {
        [Wanted::Flag(dtype), Wanted::Like(dtype, "q"), Wanted::Always(dtype)]
            .map(|wanted| (wanted, vec![dtype]))
    });
    for (wanted, taken) in wishes.chain([(Wanted::Any, vec![F32, F16])]) {
        for descr in spellings.into_iter().chain(others) {
            let found = wanted.read_as(&Descr::parse(descr)).ok();
            let expected = Some(of(descr)).filter(|dtype| taken.contains(dtype));
            let expected = expected.filter(|_| spellings.contains(&descr));
            assert_eq!(found, expected, "{wanted:?} {descr}");
        }
    }
}

#[test]
fn what_was_wished_for_is_told() {
    let refused =
        |wanted: Wanted, descr: &str| wanted.read_as(&Descr::parse(descr)).unwrap_err().to_string();
    for (message, parts) in [
        (
            refused(Wanted::Flag(Dtype::Bf16), "<f2"),
            ["bfloat16, as --dtype bf16 says", ".astype(ml_dtypes.bfloat16)"],
        ),
        (refused(Wanted::Flag(Dtype::F32), "|V2"), ["float32, as --dtype f32 says", "'|V2'"]),
        (
            refused(Wanted::Like(Dtype::F16, "q"), "<f4"),
            ["float16, which `q` is", "'<f4' (float32); convert it with `.astype('float16')`"],
        ),
        (refused(Wanted::Always(Dtype::F32), "<f2"), ["expected float32, found", "'<f2'"]),
        (refused(Wanted::Flag(Dtype::F16), "<f8"), ["float16", ".astype('float16')"]),
    ] {
        assert!(parts.iter().all(|part| message.contains(part)), "{message:?} lacks {parts:?}");
    }
}

#[test]
fn halves_of_every_spelling_give_the_same_bits() {
    let folder = Folder::new();
    let bits = [0x0000u16, 0x8001, 0x03ff, 0x7c00, 0x7e01, 0xfbff];
    let little: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let big: Vec<u8> = bits.iter().flat_map(|bits| bits.to_be_bytes()).collect();
    for (dtype, descrs) in [
        (Dtype::F16, ["<f2", ">f2", "=f2", "f2", "|f2", "<f2"]),
        (Dtype::Bf16, ["|V2", "<V2", ">V2", "<u2", ">u2", "bfloat16"]),
    ] {
        for descr in descrs {
            let data = if descr.starts_with('>') { &big } else { &little };
            for (order, shape) in [("False", "(2, 3)"), ("True", "(6,)")] {
                let file = npy(1, &dictionary(descr, order, shape), data);
                let entry = Entry::File(folder.file("x.npy", &file));
                let (tensor, _) = entry.floats(Wanted::Flag(dtype)).unwrap();
                assert_eq!(tensor.dtype(), dtype);
                assert_eq!(bytemuck::cast_slice::<_, u16>(tensor.bytes()), bits, "{descr}");
            }
            for bytes in [11, 13] {
                let file = npy(1, &dictionary(descr, "False", "(6,)"), &vec![0; bytes]);
                let entry = Entry::File(folder.file("x.npy", &file));
                let message = entry.floats(Wanted::Flag(dtype)).unwrap_err().to_string();
                assert!(message.contains("promises 12 bytes"), "{message}");
            }
        }
    }
}
