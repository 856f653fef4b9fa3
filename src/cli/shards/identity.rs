//! What the results of a call depend on, told apart from that of other calls.

use std::collections::BTreeMap;

use backslang::HostTensor;
use backslang::kernels::attention::Schedule;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Options and inputs of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The options that the results depend on, as text.
    pub(crate) options: BTreeMap<String, String>,
    /// The arrays read.
    pub(crate) inputs: BTreeMap<String, Array>,
}

/// An array that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: String,
    /// Of the elements in C order.
    pub(crate) sha256: String,
}

impl Identity {
    /// Adds arrays of floats.
    pub(crate) fn arrays<'a>(
        mut self,
        arrays: impl IntoIterator<Item = (&'static str, &'a HostTensor)>,
    ) -> Self {
        for (name, tensor) in arrays {
            let sha256 = sha256([tensor.bytes()]);
            let (shape, dtype) = (tensor.shape().to_vec(), tensor.dtype().name().into());
            self.inputs.insert(name.into(), Array { shape, dtype, sha256 });
        }
        self
    }

    /// Adds the index arrays, by value whatever their type.
    pub(crate) fn schedule(mut self, schedule: &Schedule) -> Self {
        let Schedule { block_table, table_width, sequence_lengths, sequence_ids, positions } =
            schedule;
        let table = vec![sequence_lengths.len(), *table_width];
        for (name, shape, values) in [
            ("block_table", table, Some(block_table)),
            ("sequence_lengths", vec![sequence_lengths.len()], Some(sequence_lengths)),
            ("sequence_ids", vec![sequence_ids.len()], Some(sequence_ids)),
            ("positions", vec![sequence_ids.len()], positions.as_ref()),
        ] {
            let Some(values) = values else { continue };
            let sha256 = sha256(values.iter().map(|value| value.to_le_bytes()));
            self.inputs.insert(name.into(), Array { shape, dtype: "integer".into(), sha256 });
        }
        self
    }

    /// Adds options.
    pub(crate) fn options<T: ToString>(
        mut self,
        options: impl IntoIterator<Item = (&'static str, T)>,
    ) -> Self {
        let options = options.into_iter();
        self.options.extend(options.map(|(name, value)| (name.into(), value.to_string())));
        self
    }
}

/// The hash in hexadecimal digits.
pub(super) fn sha256<T: AsRef<[u8]>>(pieces: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    pieces.into_iter().for_each(|piece| hash.update(piece));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
