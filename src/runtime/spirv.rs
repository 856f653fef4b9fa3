//! Changes to SPIR-V modules at load, for the device at hand.
//!
//! The compiler cannot know which promises about floating point a device makes, so the execution modes that pin
//! arithmetic down are added here. Software drivers compile at the first dispatch and unroll as far as they can, which
//! takes seconds a kernel and gains nothing: there, loops are marked "do not unroll".

use super::info::FloatControls;

const MAGIC: u32 = 0x0723_0203;
const HEADER: usize = 5;

const OP_SOURCE: u32 = 3;
const OP_ENTRY_POINT: u32 = 15;
const OP_EXECUTION_MODE: u32 = 16;
const OP_CAPABILITY: u32 = 17;
const OP_TYPE_FLOAT: u32 = 22;
const OP_FUNCTION: u32 = 54;
const OP_LOOP_MERGE: u32 = 246;

const UNKNOWN_LANGUAGE: u32 = 0;
const UNROLL: u32 = 0x1;
const DONT_UNROLL: u32 = 0x2;
/// The loop controls that carry a literal, in the order of their literals.
const LOOP_LITERALS: [u32; 6] = [0x8, 0x10, 0x20, 0x40, PEEL_COUNT, PARTIAL_COUNT];
const PEEL_COUNT: u32 = 0x80;
const PARTIAL_COUNT: u32 = 0x100;

/// A floating-point mode: its capability, itself, and the mode that excludes it.
#[derive(Clone, Copy)]
struct Mode {
    capability: u32,
    mode: u32,
    opposite: Option<u32>,
}

const DENORM_PRESERVE: Mode = Mode { capability: 4464, mode: 4459, opposite: Some(4460) };
const SIGNED_ZERO_INF_NAN_PRESERVE: Mode = Mode { capability: 4466, mode: 4461, opposite: None };
const ROUNDING_MODE_RTE: Mode = Mode { capability: 4467, mode: 4462, opposite: Some(4463) };

/// What to change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Patch {
    /// The f32 modes that the device offers.
    pub(super) float_controls: FloatControls,
    /// Whether loops are marked "do not unroll".
    pub(super) keep_loops: bool,
    /// Whether the module does not say that its source is Slang, a word that older validation layers reject.
    pub(super) hide_language: bool,
}

impl Patch {
    /// What a device's modules need.
    pub(super) fn of(float_controls: FloatControls, software: bool) -> Self {
        Self { float_controls, keep_loops: software, hide_language: true }
    }
}

/// Why bytes are no SPIR-V module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the module's length is no multiple of four bytes, or it has no header")]
    Length,
    #[error("the module does not start with the SPIR-V magic number")]
    Magic,
    #[error("the instruction at word {0} has an impossible length")]
    Instruction(usize),
    #[error("the module has no entry point")]
    NoEntryPoint,
}

/// The words of a little-endian module.
pub(super) fn words(bytes: &[u8]) -> Result<Vec<u32>, Malformed> {
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() || words.len() < HEADER {
        return Err(Malformed::Length);
    }
    Ok(words.iter().map(|&word| u32::from_le_bytes(word)).collect())
}

/// The module with the changes that `patch` asks for.
///
/// Modes go to every entry point; a mode that the module states itself, either way, stays as it is. SPIR-V 1.4 and
/// later need no extension for them, and the shaders are SPIR-V 1.5.
pub(super) fn patch(module: &[u32], patch: &Patch) -> Result<Vec<u32>, Malformed> {
    let layout = Layout::read(module)?;
    let modes = layout.modes(&patch.float_controls);
    let mut out = Vec::with_capacity(module.len() + 16 * layout.entry_points.len() + 8);
    out.extend_from_slice(&module[..layout.capabilities_end]);
    for mode in &modes {
        if !layout.capabilities.contains(&mode.capability) {
            out.extend([2 << 16 | OP_CAPABILITY, mode.capability]);
        }
    }
    out.extend_from_slice(&module[layout.capabilities_end..layout.entry_points_end]);
    for &entry_point in &layout.entry_points {
        for mode in modes.iter().filter(|m| !layout.states(entry_point, m)) {
            out.extend([4 << 16 | OP_EXECUTION_MODE, entry_point, mode.mode, 32]);
        }
    }
    let rest = &module[layout.entry_points_end..];
    for instruction in Instructions::new(rest, layout.entry_points_end) {
        let words = instruction?.1;
        match (opcode(words[0]), words) {
            (OP_LOOP_MERGE, &[_, merge, target, control, ref literals @ ..])
                if patch.keep_loops =>
            {
                push_kept_loop(&mut out, merge, target, control, literals);
            }
            (OP_SOURCE, &[head, _, ref rest @ ..]) if patch.hide_language => {
                out.extend([head, UNKNOWN_LANGUAGE]);
                out.extend_from_slice(rest);
            }
            _ => out.extend_from_slice(words),
        }
    }
    Ok(out)
}

/// The loop merge with `DontUnroll`, without the controls that exclude it, and with the other controls' literals.
fn push_kept_loop(out: &mut Vec<u32>, merge: u32, target: u32, control: u32, literals: &[u32]) {
    let dropped = UNROLL | PEEL_COUNT | PARTIAL_COUNT;
    let mut kept = Vec::with_capacity(literals.len());
    let mut literals = literals.iter().copied();
    for bit in LOOP_LITERALS.into_iter().filter(|bit| control & bit != 0) {
        let literal = literals.next();
        if dropped & bit == 0 {
            kept.extend(literal);
        }
    }
    // Literals of controls that are not known here.
    kept.extend(literals);
    let length = 4 + kept.len() as u32;
    out.extend([length << 16 | OP_LOOP_MERGE, merge, target, control & !dropped | DONT_UNROLL]);
    out.extend(kept);
}

/// The instructions of a module, each with its place.
#[cfg(feature = "slang")]
pub(crate) fn instructions(
    module: &[u32],
) -> Result<impl Iterator<Item = Result<(usize, &[u32]), Malformed>>, Malformed> {
    match module.split_at_checked(HEADER) {
        None => Err(Malformed::Length),
        Some((&[MAGIC, ..], rest)) => Ok(Instructions::new(rest, HEADER)),
        Some(_) => Err(Malformed::Magic),
    }
}

/// The numbers of the capabilities that a module declares.
pub(super) fn capabilities(module: &[u32]) -> Result<Vec<u32>, Malformed> {
    Layout::read(module).map(|layout| layout.capabilities)
}

/// Where things are in a module, and what it states.
struct Layout {
    /// One past the last capability.
    capabilities_end: usize,
    capabilities: Vec<u32>,
    /// One past the last entry point.
    entry_points_end: usize,
    entry_points: Vec<u32>,
    /// Entry point and mode of each execution mode for 32-bit floats.
    stated: Vec<(u32, u32)>,
    /// Whether the module has floats of another width.
    other_widths: bool,
}

impl Layout {
    fn read(module: &[u32]) -> Result<Self, Malformed> {
        if module.len() < HEADER {
            return Err(Malformed::Length);
        }
        if module[0] != MAGIC {
            return Err(Malformed::Magic);
        }
        let mut layout = Self {
            capabilities_end: HEADER,
            capabilities: Vec::new(),
            entry_points_end: 0,
            entry_points: Vec::new(),
            stated: Vec::new(),
            other_widths: false,
        };
        // Function bodies are walked too, so that a torn module is found here and not by the driver.
        let mut in_functions = false;
        for instruction in Instructions::new(&module[HEADER..], HEADER) {
            let (at, words) = instruction?;
            in_functions |= opcode(words[0]) == OP_FUNCTION;
            if !in_functions {
                layout.note(at, words);
            }
        }
        if layout.entry_points.is_empty() {
            return Err(Malformed::NoEntryPoint);
        }
        Ok(layout)
    }

    fn note(&mut self, at: usize, words: &[u32]) {
        match (opcode(words[0]), &words[1..]) {
            (OP_CAPABILITY, &[capability]) => {
                self.capabilities_end = at + words.len();
                self.capabilities.push(capability);
            }
            (OP_ENTRY_POINT, &[_, id, ..]) => {
                self.entry_points_end = at + words.len();
                self.entry_points.push(id);
            }
            (OP_EXECUTION_MODE, &[id, mode, 32]) => self.stated.push((id, mode)),
            (OP_TYPE_FLOAT, &[_, width, ..]) => self.other_widths |= width != 32,
            _ => {}
        }
    }

    /// The modes to add. Where a device ties the modes of all widths together and the module has other widths, the
    /// mode of 32 bits alone must not be stated.
    fn modes(&self, offered: &FloatControls) -> Vec<Mode> {
        let free = |independent: bool| independent || !self.other_widths;
        let mut modes = Vec::new();
        if offered.signed_zero_inf_nan_preserve {
            modes.push(SIGNED_ZERO_INF_NAN_PRESERVE);
        }
        if offered.denorm_preserve && free(offered.denorm_independent) {
            modes.push(DENORM_PRESERVE);
        }
        if offered.rounding_mode_rte && free(offered.rounding_independent) {
            modes.push(ROUNDING_MODE_RTE);
        }
        modes
    }

    fn states(&self, entry_point: u32, mode: &Mode) -> bool {
        self.stated
            .iter()
            .any(|&(id, m)| id == entry_point && (m == mode.mode || Some(m) == mode.opposite))
    }
}

fn opcode(head: u32) -> u32 {
    head & 0xffff
}

/// The instructions of a stream of words, each with its place in the module.
struct Instructions<'a> {
    words: &'a [u32],
    at: usize,
}

impl<'a> Instructions<'a> {
    fn new(words: &'a [u32], at: usize) -> Self {
        Self { words, at }
    }
}

impl<'a> Iterator for Instructions<'a> {
    type Item = Result<(usize, &'a [u32]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let length = (*self.words.first()? >> 16) as usize;
        let at = self.at;
        if length == 0 || length > self.words.len() {
            self.words = &[];
            return Some(Err(Malformed::Instruction(at)));
        }
        let (instruction, rest) = self.words.split_at(length);
        (self.words, self.at) = (rest, at + length);
        Some(Ok((at, instruction)))
    }
}

#[cfg(test)]
mod tests;
