//! What no kernel may touch: its inputs, and whatever lies before and after its outputs.
#![allow(dead_code, unreachable_pub, reason = "each test binary includes it and uses its share")]

use backslang::runtime::{Recorder, Runtime, Tensor};
use backslang::{Dtype, HostTensor};

/// Tensors of a known pattern, made between others.
pub struct Fences<'a> {
    runtime: &'a Runtime,
    posts: Vec<Tensor>,
}

const PATTERN: u32 = 0xf00d_cafe;
const WORDS: usize = 64;
/// NaN as an element of any type.
const POISON: u32 = u32::MAX;

impl<'a> Fences<'a> {
    pub fn new(runtime: &'a Runtime) -> Self {
        Self { runtime, posts: Vec::new() }
    }

    /// Puts one up between the tensors made before and those made after.
    pub fn add(&mut self) {
        self.posts.push(self.runtime.tensor("fence", Dtype::U32, &[WORDS]).unwrap());
    }

    /// A tensor for results, full of NaN so that an element that is not written shows, and a post after it.
    pub fn output(
        &mut self,
        recorder: &mut Recorder<'_>,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Tensor {
        let tensor = self.runtime.tensor(name, dtype, shape).unwrap();
        recorder.fill(&tensor, POISON).unwrap();
        self.add();
        tensor
    }

    /// Writes the pattern.
    pub fn fill(&self, recorder: &mut Recorder<'_>) {
        self.posts.iter().for_each(|post| recorder.fill(post, PATTERN).unwrap());
    }

    pub fn assert_whole(&self) {
        for post in &self.posts {
            let words = self.runtime.download(post).unwrap();
            assert_eq!(
                words,
                HostTensor::from_words(vec![PATTERN; WORDS]),
                "written beside a tensor"
            );
        }
    }
}

/// Holds the words that a kernel sees behind a tensor, where there are any, and for an input its contents.
pub fn assert_untouched(runtime: &Runtime, tensor: &Tensor, contents: Option<&HostTensor>) {
    assert!(runtime.guard_holds(tensor).unwrap(), "written beyond {tensor:?}");
    if let Some(contents) = contents {
        let found = runtime.download(tensor).unwrap();
        assert!(found.bytes() == contents.bytes(), "the input {tensor:?} is not as it was");
    }
}
