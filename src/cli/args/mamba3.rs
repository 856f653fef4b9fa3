//! The flags of the Mamba-3 commands.

use clap::Args;

use super::files::FileArgs;
use super::values;

pub(super) const FORWARD_ARRAYS: &str = "\
Arrays (float32, float16 or, with --dtype bf16, bfloat16, but for dt_bias and the results dt, adt
and trap, which are float32; any number of leading axes may stand for rows):
  in   projected [rows, projected_width], dt_bias [heads]
  out  z, x [rows, inner_size], bh, ch [rows, bc_rows, state_size],
       dt, adt, trap [rows, heads], angle [rows, rope_angles]
  0-d arrays inner_size, bc_rows, state_size, rope_angles, epsilon, dt_min, dt_max and a_floor set
  those parameters; a flag overrides them.

A row of projected holds z | x | B | C | dd_dt | dd_A | trap | angle, whose widths are inner_size,
inner_size, bc_rows * state_size (twice), heads (three times) and rope_angles. The results:
  z, x, trap, angle  as they are
  bh, ch             B and C, each state row v as v / sqrt(mean(v^2) + epsilon)
  dt                 clamp(softplus(dd_dt + dt_bias), dt_min, dt_max)
  adt                -dt * max(h, a_floor), with h = 1 + dd_A where dd_A >= 0, else 1 / (1 - dd_A)

Examples:
  backslang sample mamba3-preprocess -o inputs --seed 1
  backslang mamba3-preprocess -i inputs -o outputs
  backslang mamba3-preprocess -i inputs --plan";

pub(super) const BACKWARD_ARRAYS: &str = "\
Arrays (float32, float16 or, with --dtype bf16, bfloat16: all of one type, but for dt_bias, the
gradients of dt, adt and trap, and the results for dt_bias, which are float32; any number of
leading axes may stand for rows):
  in   projected [rows, projected_width], dt_bias [heads],
       z_gradient, x_gradient [rows, inner_size],
       bh_gradient, ch_gradient [rows, bc_rows, state_size],
       dt_gradient, adt_gradient, trap_gradient [rows, heads],
       angle_gradient [rows, rope_angles];
       with --accumulate projected_gradient, dt_bias_gradient or both, to add to
  out  projected_gradient [rows, projected_width],
       dt_bias_partial [rows, heads], dt_bias_gradient [heads]
  0-d arrays epsilon, dt_min, dt_max and a_floor set those parameters; a flag overrides them.

The forward whose gradients these are is mamba3-preprocess; its --help has the formulas.
dt_bias_partial is the gradient of dt_bias row by row; dt_bias_gradient is its sum over the rows.

Examples:
  backslang sample mamba3-preprocess-backward -o inputs --seed 1
  backslang mamba3-preprocess-backward -i inputs -o gradients
  backslang mamba3-preprocess-backward -i inputs -o wide.npz --dt-max 0.2";

/// Flags of `mamba3-preprocess`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Mamba3ForwardArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,

    /// Width of z and of x [default: that of a 0-d array inner_size]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::size())]
    pub(crate) inner_size: Option<usize>,
    /// State rows of B and of C a token: groups · mimo_rank [default: that of a 0-d array bc_rows]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::size())]
    pub(crate) bc_rows: Option<usize>,
    /// Width of one state row [default: that of a 0-d array state_size]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::size())]
    pub(crate) state_size: Option<usize>,
    /// Rotary angles a token [default: those of a 0-d array rope_angles]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::size())]
    pub(crate) rope_angles: Option<usize>,

    #[command(flatten)]
    pub(crate) parameters: ParameterArgs,
}

/// Flags of `mamba3-preprocess-backward`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Mamba3BackwardArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
    #[command(flatten)]
    pub(crate) parameters: ParameterArgs,

    /// Add to projected_gradient and dt_bias_gradient where the inputs hold them; one rounding at the end
    #[arg(long)]
    pub(crate) accumulate: bool,
}

/// The parameters of the preprocess.
#[derive(Debug, Clone, Args)]
pub(crate) struct ParameterArgs {
    /// Added to the mean square of a state row; a finite number > 0 [default: 1e-5]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) epsilon: Option<f32>,
    /// Lower clamp of dt; a number with 0 ≤ dt_min ≤ dt_max [default: 0.001]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) dt_min: Option<f32>,
    /// Upper clamp of dt; a number, may be inf [default: 0.1]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) dt_max: Option<f32>,
    /// Least magnitude of the decay; a number ≥ 0 [default: 1e-4]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = values::number)]
    pub(crate) a_floor: Option<f32>,
}
