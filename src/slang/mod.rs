//! Kernels of the user's own: a Slang file is compiled at run time, and its parameters are bound by their names.
//!
//! Behind the feature `slang`, which is off by default: it links the Slang compiler. The file is written as the kernels
//! of this crate are (`docs/user-kernels.md` of the sources):
//!
//! - Push constants are the fields of one `[[vk::push_constant]]` struct: `uint`, `int` or `float`. A `uint` field
//!   `NAME_index` stands for the tensor `NAME`: it gets the tensor's index in the heap.
//! - The heap is `RWByteAddressBuffer storage_buffers[]` at binding 0 of set 0, declared by the file or by the module
//!   `storage`; there are no other bindings.
//! - `[vk::constant_id(n)]` constants are set by name as well, and otherwise have the value that the file gives them.
//! - `first_group_x`, `first_group_y` and the constant `lanes` (the subgroup size) are filled in by the runtime.
//! - An entry point is a function with `[shader("compute")]`. Its other attributes are told, and `kernel_name` is the
//!   name that timings and errors use.
//!
//! Modules are looked for beside the file, then among those of this crate's kernels, such as `storage` and `subgroup`.
//! Everything is compiled with the flags of this crate's kernels: arithmetic is done in the order in which it is written.
//!
//! ```no_run
//! # fn main() -> backslang::Result<()> {
//! use backslang::runtime::{Runtime, RuntimeOptions};
//! use backslang::slang::{Compiler, Value};
//! use backslang::{Dtype, HostTensor};
//!
//! let kernel = Compiler::new()?.load("scale.slang".as_ref())?.kernel(Some("main"))?;
//! let runtime = Runtime::new(&RuntimeOptions::default())?;
//! let x = runtime.upload("x", &HostTensor::from_f32(&[100], vec![1.0; 100])?)?;
//! let y = runtime.tensor("y", Dtype::F32, &[100])?;
//! let mut call = kernel.call();
//! call.read("x", &x)?.write("y", &y)?;
//! call.set("count", Value::U32(100))?.set("factor", Value::F32(2.5))?;
//! let mut recorder = runtime.recorder()?;
//! // SAFETY: the kernel accesses `count` elements of x and of y, and they have as many.
//! unsafe { call.record(&mut recorder, [100usize.div_ceil(64), 1]) }?;
//! recorder.submit()?.wait()?;
//! let scaled = runtime.download(&y)?;
//! # Ok(())
//! # }
//! ```

#[path = "../cli/alike.rs"]
mod alike;
mod call;
mod compiler;
mod interface;
mod kernel;
mod library;
mod module;
mod scan;

pub use call::{Call, Value};
pub use compiler::Compiler;
pub use interface::{Attribute, Constant, Field};
pub use kernel::UserKernel;
pub use module::Module;
